/** Runs by the clock. */
import type { FastifyInstance } from "fastify";
import { z } from "zod";
import { ScheduleClient, type CreateScheduleOptions } from "../../client/schedules.ts";
import { catchUpPolicies } from "../../domain/schedule.ts";
import { wholeNumber } from "../../domain/ranges.ts";
import { act } from "../act.ts";
import type { ApiContext } from "../context.ts";
import { idempotencyKeyOf } from "../request-headers.ts";
import { route } from "../route.ts";
import * as runs from "../run-shapes.ts";
import * as s from "../shapes.ts";

const scheduleParams = z.strictObject({ schedule: s.word() });
const changed = z.object({ changed: z.boolean().describe("False: it was so already") });
const view = z
  .looseObject({
    tenant: z.string(),
    name: z.string(),
    agent: z.string(),
    cron: z.string(),
    timezone: z.string(),
    catch_up: z.enum(catchUpPolicies),
    paused: z.boolean(),
    next_at: z.string().optional(),
    created_at: z.string(),
    updated_at: z.string(),
  })
  .meta({ id: "Schedule" });

const newSchedule = z
  .strictObject({
    name: s.agentName,
    agent: s.agentName,
    input: s.json.optional(),
    cron: s.word(),
    timezone: s.word().optional(),
    catch_up: z.enum(catchUpPolicies).optional(),
    replace: z.boolean().default(false).describe("One of that name is brought to these settings instead of being refused"),
    subject: s.word().optional(),
    priority: s.priority.optional(),
    interactive: z.boolean().optional(),
    metadata: s.metadata.optional(),
    labels: s.labels.optional(),
    pool: s.word().optional(),
    concurrency_key: s.word().optional(),
    concurrency_limit: wholeNumber(1, 10_000).optional(),
    concurrency_scope: z.enum(["agent", "all"]).optional(),
    on_conflict: z.enum(["queue", "replace", "refuse"]).optional(),
    compaction: s.compaction.optional(),
    budget: s.budget.optional(),
  })
  .refine((given) => given.concurrency_key !== undefined || (given.concurrency_limit ?? given.concurrency_scope ?? given.on_conflict) === undefined, {
    path: ["concurrency_key"],
    message: "must be given with concurrency_limit, concurrency_scope and on_conflict",
  })
  .meta({ id: "NewSchedule" });

export function registerSchedules(app: FastifyInstance, api: ApiContext): void {
  const { client, named } = api;

  route(app, api, "GET /v1/schedules", {
    summary: "List schedules by name",
    answers: { 200: s.list(view) },
    handle: async ({ access }) => ({ items: await client.schedules.list({ tenant: access.tenant }) }),
  });

  route(app, api, "GET /v1/schedules/:schedule", {
    summary: "Show a schedule with its input",
    params: scheduleParams,
    answers: { 200: view },
    handle: async ({ params, access }) => await client.schedules.get(params.schedule, { tenant: access.tenant }),
  });

  route(app, api, "POST /v1/schedules", {
    summary: "Make a schedule",
    body: newSchedule,
    answers: { 200: view.describe("The one of that name, with these settings"), 201: view },
    problems: [409],
    async handle({ body, access, reply }) {
      const { name, catch_up: catchUp, concurrency_key: key, concurrency_limit: limit, concurrency_scope: scope, on_conflict: onConflict, ...rest } = body;
      const concurrency = key === undefined ? undefined : s.defined({ key, limit, scope, onConflict });
      const settings = s.defined({ ...rest, catchUp, concurrency, subject: access.subject ?? body.subject, tenant: access.tenant, actor: access.actor }) as CreateScheduleOptions;
      const made = await act(api, access, async (tx, say) => {
        const schedule = await client.schedules.create(name, { ...settings, tx });
        await say({ action: "schedule.set", target: name, detail: { agent: body.agent, cron: schedule.cron } });
        return schedule;
      });
      void reply.code(body.replace ? 200 : 201).header("location", `/v1/schedules/${encodeURIComponent(name)}`);
      return made;
    },
  });

  route(app, api, "DELETE /v1/schedules/:schedule", {
    summary: "Delete a schedule",
    description: "Its runs stay.",
    params: scheduleParams,
    answers: { 200: z.object({ deleted: z.literal(true) }) },
    async handle({ params, access }) {
      await act(api, access, async (tx, say) => {
        await new ScheduleClient(tx, named).delete(params.schedule, { tenant: access.tenant });
        await say({ action: "schedule.delete", target: params.schedule });
      });
      return { deleted: true };
    },
  });

  for (const verb of ["pause", "resume"] as const) {
    route(app, api, `POST /v1/schedules/:schedule/${verb}`, {
      summary: verb === "pause" ? "Let no tick start a run" : "Go on from the next tick",
      params: scheduleParams,
      body: s.noBody,
      answers: { 200: changed },
      async handle({ params, access }) {
        const done = await act(api, access, async (tx, say) => {
          const isNew = await new ScheduleClient(tx, named)[verb](params.schedule, { tenant: access.tenant, actor: access.actor });
          if (isNew) await say({ action: `schedule.${verb}`, target: params.schedule });
          return isNew;
        });
        return { changed: done };
      },
    });
  }

  route(app, api, "POST /v1/schedules/:schedule/run", {
    summary: "Start a run of a schedule now",
    description: "Its next tick stays where it is. `idempotency-key` is honoured.",
    params: scheduleParams,
    body: s.noBody,
    answers: { 201: runs.started },
    problems: [409],
    async handle({ params, access, request, reply }) {
      const idempotencyKey = idempotencyKeyOf(request);
      const id = await act(api, access, async (tx, say) => {
        const options = { tenant: access.tenant, actor: access.actor, ...(idempotencyKey === undefined ? {} : { idempotencyKey }) };
        const runId = await new ScheduleClient(tx, named).runNow(params.schedule, options);
        await say({ action: "schedule.run", target: params.schedule, detail: { run_id: runId } });
        return runId;
      });
      void reply.code(201).header("location", `/v1/runs/${id}`);
      return { run_id: id };
    },
  });
}
