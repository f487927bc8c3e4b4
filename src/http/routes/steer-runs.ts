/** What is said to runs that there are. */
import type { FastifyInstance } from "fastify";
import { z } from "zod";
import { act } from "../act.ts";
import type { ApiContext } from "../context.ts";
import { idempotencyKeyOf } from "../request-headers.ts";
import { route } from "../route.ts";
import * as runs from "../run-shapes.ts";
import * as s from "../shapes.ts";

export function registerSteerRuns(app: FastifyInstance, api: ApiContext): void {
  const { client } = api;

  route(app, api, "POST /v1/runs/:run_id/input", {
    summary: "Send input to a run",
    description:
      "An answer to one that waits for input, steering to one at work: applied at its next boundary, exactly once. Sent again with the same `idempotency-key` it is the same input.",
    params: s.runParams,
    body: z.strictObject({ content: s.json }),
    answers: { 202: z.object({ input_id: s.uuid }) },
    problems: [409],
    async handle({ params, body, access, request, reply }) {
      const dedupeKey = idempotencyKeyOf(request);
      const id = await act(api, access, async (tx, say) => {
        const input = await client.run(params.run_id).send(body.content, { actor: access.actor, tx, ...(dedupeKey === undefined ? {} : { dedupeKey }) });
        await say({ action: "run.input", target: params.run_id, detail: { input_id: input } });
        return input;
      });
      void reply.code(202);
      return { input_id: id };
    },
  });

  route(app, api, "POST /v1/runs/:run_id/stop", {
    summary: "Stop the turn at hand of an interactive run and keep the run",
    params: s.runParams,
    body: s.optionalBody({ reason: s.reason }),
    answers: { 202: z.object({ run_id: s.uuid, stopping: z.literal(true) }) },
    problems: [409],
    async handle({ params, body, access, reply }) {
      await act(api, access, async (tx, say) => {
        await client.run(params.run_id).stop(body.reason, { actor: access.actor, tx });
        await say({ action: "run.stop", target: params.run_id });
      });
      void reply.code(202);
      return { run_id: params.run_id, stopping: true };
    },
  });

  route(app, api, "POST /v1/runs/:run_id/cancel", {
    summary: "End a run and all that it started, for good",
    params: s.runParams,
    body: s.optionalBody({ reason: s.reason }),
    answers: { 200: z.object({ run_id: s.uuid, cancelled: z.boolean().describe("False: it had ended already") }) },
    async handle({ params, body, access }) {
      const cancelled = await act(api, access, async (tx) => await client.run(params.run_id).cancel(body.reason, { actor: access.actor, tx }));
      return { run_id: params.run_id, cancelled };
    },
  });

  route(app, api, "POST /v1/runs/:run_id/pause", {
    summary: "Let no turn of the run begin until it is resumed",
    params: s.runParams,
    body: s.noBody,
    answers: { 200: z.object({ run_id: s.uuid, paused: z.boolean().describe("False: it was paused already") }) },
    problems: [409],
    handle: async ({ params, access }) => ({
      run_id: params.run_id,
      paused: await act(api, access, async (tx) => await client.run(params.run_id).pause({ actor: access.actor, tx })),
    }),
  });

  route(app, api, "POST /v1/runs/:run_id/resume", {
    summary: "Let a paused run go on",
    params: s.runParams,
    body: s.noBody,
    answers: { 200: z.object({ run_id: s.uuid, resumed: z.boolean().describe("False: it was not paused") }) },
    problems: [409],
    handle: async ({ params, access }) => ({
      run_id: params.run_id,
      resumed: await act(api, access, async (tx) => await client.run(params.run_id).resume({ actor: access.actor, tx })),
    }),
  });

  route(app, api, "POST /v1/runs/:run_id/signals/:name", {
    summary: "Send a signal to a run",
    description: "Taken by the oldest call that waits for it, or kept until one does. Sent again with the same `idempotency-key` it is the same signal.",
    params: s.runParams.extend({ name: s.word() }),
    body: s.optionalBody({ payload: s.json.optional() }),
    answers: { 202: z.object({ signal_id: s.uuid }) },
    problems: [409],
    async handle({ params, body, access, request, reply }) {
      const dedupeKey = idempotencyKeyOf(request);
      const id = await act(api, access, async (tx, say) => {
        const signal = await client.run(params.run_id).signal(params.name, body.payload ?? null, { actor: access.actor, tx, ...(dedupeKey === undefined ? {} : { dedupeKey }) });
        await say({ action: "run.signal", target: params.run_id, detail: { name: params.name } });
        return signal;
      });
      void reply.code(202);
      return { signal_id: id };
    },
  });

  route(app, api, "POST /v1/runs/:run_id/approvals/:call_id", {
    summary: "Let a call that waits be made, or not",
    description: "The first decision counts. With `approve`, `input` are arguments to use instead of the model's own.",
    params: s.runParams.extend({ call_id: s.word() }),
    body: z.strictObject({ decision: z.enum(["approve", "deny"]), input: s.jsonObject.optional(), reason: s.reason }),
    answers: { 200: z.object({ run_id: s.uuid, call_id: z.string(), decision: z.enum(["approve", "deny"]) }) },
    problems: [409],
    async handle({ params, body, access }) {
      const { decision, input } = body;
      const run = client.run(params.run_id);
      await act(api, access, async (tx) => {
        const options = { actor: access.actor, tx, ...s.defined({ reason: body.reason }) };
        if (decision === "deny") await run.deny(params.call_id, options);
        else await run.approve(params.call_id, { ...options, ...(input === undefined ? {} : { input }) });
      });
      return { run_id: params.run_id, call_id: params.call_id, decision };
    },
  });

  route(app, api, "POST /v1/runs/:run_id/waits/:wait_id/answer", {
    summary: "Answer a question that the run asks",
    params: s.runParams.extend({ wait_id: s.uuid }),
    body: z.strictObject({ answer: s.json }),
    answers: { 200: z.object({ run_id: s.uuid, wait_id: s.uuid, answered: z.literal(true) }) },
    problems: [409],
    async handle({ params, body, access }) {
      await act(api, access, async (tx) => await client.run(params.run_id).answer(params.wait_id.toLowerCase(), body.answer, { actor: access.actor, tx }));
      return { run_id: params.run_id, wait_id: params.wait_id, answered: true };
    },
  });

  route(app, api, "GET /v1/approvals", {
    summary: "What waits for a person: approvals and questions, oldest first",
    query: z.strictObject({
      kind: z.enum(["approval", "question"]).optional(),
      run_id: s.uuid.optional(),
      cursor: s.uuid.optional().describe("`next_cursor` of the page before"),
      limit: s.limit(50, 500),
    }),
    answers: { 200: s.page(runs.wait) },
    async handle({ query, access }) {
      const { kind, run_id: runId, cursor, limit } = query;
      const filter = s.defined({ tenant: access.tenant, kinds: kind === undefined ? undefined : [kind], runId, after: cursor, limit });
      const items = await client.waits.list(filter);
      const next = items.length === limit ? items.at(-1)?.id : undefined;
      return { items, ...(next === undefined ? {} : { next_cursor: next }) };
    },
  });
}
