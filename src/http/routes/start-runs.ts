/** Runs are started: one, many, and from what other runs have left. */
import type pg from "pg";
import type { FastifyInstance } from "fastify";
import type { EnqueueOptions } from "../../client/enqueue.ts";
import type { RunStatusView } from "../../client/handle.ts";
import { queryTx } from "../../client/transaction.ts";
import { z } from "zod";
import { act } from "../act.ts";
import type { Access } from "../auth.ts";
import type { ApiContext } from "../context.ts";
import { RequestError } from "../problems.ts";
import { idempotencyKeyOf, traceOf } from "../request-headers.ts";
import { route } from "../route.ts";
import * as runs from "../run-shapes.ts";
import * as s from "../shapes.ts";

export function registerStartRuns(app: FastifyInstance, api: ApiContext): void {
  const { client, named } = api;

  route(app, api, "POST /v1/runs", {
    summary: "Start a run",
    description: "With the header `idempotency-key`, asked again with the same input it gives the run that there is (200); with another input it is refused (409).",
    body: runs.newRun,
    answers: { 200: runs.run.describe("The run that the key belongs to"), 201: runs.run },
    problems: [409],
    async handle({ body, access, request, reply }) {
      const options = enqueueOptions(body, access, { ...traceOf(request), idempotencyKey: idempotencyKeyOf(request) });
      const { id, isNew } = await act(api, access, async (tx, say) => {
        const run = await client.enqueue(body.agent, body.input, { ...options, tx });
        const made = await areNew(tx, named, [run.id]);
        if (made.has(run.id)) await say({ action: "run.create", target: run.id, detail: { agent: body.agent } });
        return { id: run.id, isNew: made.has(run.id) };
      });
      void reply.code(isNew ? 201 : 200).header("location", `/v1/runs/${id}`);
      return await client.run(id).status();
    },
  });

  route(app, api, "POST /v1/runs/batch", {
    summary: "Start up to 1,000 runs: all of them, or none",
    description: "Each may have an `idempotency_key` of its own; with the header `idempotency-key` those that have none get one made of it and their place.",
    body: runs.newRuns,
    answers: { 201: s.list(z.object({ run_id: s.uuid, created: z.boolean() })).describe("In the order of the request") },
    problems: [409],
    async handle({ body, access, request, reply }) {
      const key = idempotencyKeyOf(request);
      const trace = traceOf(request);
      const items = body.runs.map(({ idempotency_key: own, ...run }, n) => ({
        agent: run.agent,
        input: run.input,
        options: enqueueOptions(run, access, { ...trace, idempotencyKey: own ?? (key === undefined ? undefined : `${key}/${n}`) }),
      }));
      const { ids, made } = await act(api, access, async (tx, say) => {
        const handles = await client.enqueueMany(items, { tx });
        const all = handles.map(({ id }) => id);
        const isNew = await areNew(tx, named, all);
        if (isNew.size > 0) await say({ action: "run.create_many", target: all[0] as string, detail: { runs: isNew.size } });
        return { ids: all, made: isNew };
      });
      void reply.code(201);
      return { items: ids.map((id) => ({ run_id: id, created: made.has(id) })) };
    },
  });

  route(app, api, "POST /v1/runs/:run_id/fork", {
    summary: "Start a run that begins with this one's view",
    description: "Up to event `at`; by default up to the last place where it can go on. `idempotency-key` is honoured.",
    params: s.runParams,
    body: s.optionalBody({
      at: z.int().min(1).max(2_147_483_647).optional(),
      input: s.json.optional(),
      overlay: s.overlay.optional(),
      compaction: s.compaction.optional(),
      budget: s.budget.optional(),
      interactive: z.boolean().optional(),
      ...runs.derived,
    }),
    answers: { 200: runs.run.describe("The fork that the key belongs to"), 201: runs.run },
    problems: [409],
    async handle({ params, body, access, request, reply }) {
      const { run_at: runAt, deadline, ...rest } = body;
      const options = s.defined({ ...rest, ...times({ runAt, deadline }), ...traceOf(request), idempotencyKey: idempotencyKeyOf(request), actor: access.actor });
      const { id, isNew } = await act(api, access, async (tx, say) => {
        const run = await client.run(params.run_id).fork({ ...options, tx });
        const made = await areNew(tx, named, [run.id]);
        if (made.has(run.id)) await say({ action: "run.fork", target: params.run_id, detail: { run_id: run.id } });
        return { id: run.id, isNew: made.has(run.id) };
      });
      void reply.code(isNew ? 201 : 200).header("location", `/v1/runs/${id}`);
      return await client.run(id).status();
    },
  });

  route(app, api, "POST /v1/runs/:run_id/retry", {
    summary: "Start a failed or cancelled run again from its last good place",
    description: "As a run of its own. While that one has not ended, asked again it gives that one; with `once` also when it has ended.",
    params: s.runParams,
    body: s.optionalBody({ once: z.boolean().optional(), overlay: s.overlay.optional(), compaction: s.compaction.optional(), budget: s.budget.optional(), ...runs.derived }),
    answers: { 200: runs.run.describe("The retry that there is"), 201: runs.run },
    problems: [409],
    async handle({ params, body, access, request, reply }) {
      const { run_at: runAt, deadline, ...rest } = body;
      const options = s.defined({ ...rest, ...times({ runAt, deadline }), ...traceOf(request), actor: access.actor });
      const { id, isNew } = await act(api, access, async (tx, say) => {
        const run = await client.run(params.run_id).retry({ ...options, tx });
        const made = await areNew(tx, named, [run.id]);
        if (made.has(run.id)) await say({ action: "run.retry", target: params.run_id, detail: { run_id: run.id } });
        return { id: run.id, isNew: made.has(run.id) };
      });
      void reply.code(isNew ? 201 : 200).header("location", `/v1/runs/${id}`);
      return (await client.run(id).status()) satisfies RunStatusView;
    },
  });
}

function enqueueOptions(
  { run_at: runAt, deadline, concurrency, definition_sha: definitionSha, agent: _agent, input: _input, ...rest }: runs.NewRun,
  access: Access,
  more: { readonly traceparent?: string; readonly tracestate?: string; readonly idempotencyKey: string | undefined },
): EnqueueOptions {
  if (access.subject !== undefined && rest.subject !== undefined && rest.subject !== access.subject) {
    throw new RequestError("FORBIDDEN", `this token starts runs of subject ${access.subject} only`);
  }
  const { on_conflict: onConflict, ...key } = concurrency ?? {};
  return s.defined({
    ...rest,
    ...times({ runAt, deadline }),
    ...more,
    definitionSha,
    concurrency: concurrency === undefined ? undefined : s.defined({ ...key, onConflict }),
    tenant: access.tenant,
    subject: access.subject ?? rest.subject,
    actor: access.actor,
  }) as EnqueueOptions;
}

export function times({ runAt, deadline }: { readonly runAt: string | undefined; readonly deadline: string | undefined }): { readonly runAt?: Date; readonly deadline?: Date } {
  return { ...(runAt === undefined ? {} : { runAt: new Date(runAt) }), ...(deadline === undefined ? {} : { deadline: new Date(deadline) }) };
}

/** Those that this transaction has made: their first event, which nobody ever changes, was written by it. */
export async function areNew(tx: pg.PoolClient, named: ApiContext["named"], ids: readonly string[]): Promise<Set<string>> {
  const rows = await queryTx<{ run_id: string }>(
    tx,
    named("select e.run_id from capstan.events e where e.run_id = any($1::uuid[]) and e.seq = 1 and e.xmin = pg_current_xact_id()::xid"),
    [[...ids]],
  );
  return new Set(rows.map(({ run_id: id }) => id));
}
