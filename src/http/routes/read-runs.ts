/** What there is to see of runs. */
import type { FastifyInstance } from "fastify";
import { z } from "zod";
import { RunFailedError, ResultTimeoutError } from "../../client/errors.ts";
import { recordAudit } from "../../client/audit.ts";
import { waitReasons } from "../../domain/event.ts";
import { runStatuses } from "../../domain/run.ts";
import { listRuns, type RunSummary } from "../../store/run-list.ts";
import { runTree } from "../../store/run-tree.ts";
import type { ApiContext } from "../context.ts";
import { route } from "../route.ts";
import * as runs from "../run-shapes.ts";
import * as s from "../shapes.ts";
import { PageReader } from "../stream/read-pages.ts";

const MAX_WAIT_MS = 60_000;
const SEQ = s.queryNumber(0, 2_147_483_647);

const treeNode = z.looseObject({ run_id: s.uuid, agent: z.string(), state: runs.runState, children: z.array(z.unknown()).describe("As this one") });
const stateView = z.looseObject({ run_id: s.uuid, seq: z.int(), at: z.string(), state: runs.runState, turn: z.int(), epoch: z.int(), messages: z.array(runs.message) });
const totals = z.looseObject({ calls: z.number(), tool_calls: z.number(), input_tokens: z.number(), output_tokens: z.number(), cost_usd_micros: z.number() });

export function registerReadRuns(app: FastifyInstance, api: ApiContext): void {
  const { client, db, named, stream } = api;
  const pages = new PageReader(db, named);

  route(app, api, "GET /v1/runs", {
    summary: "List runs, newest first",
    query: z.strictObject({
      state: z.enum(runStatuses).optional(),
      wait_reason: z.enum(waitReasons).optional(),
      agent: s.agentName.optional(),
      label: s.word().optional(),
      subject: s.word().optional(),
      conversation_id: s.uuid.optional(),
      created_after: s.time.optional(),
      created_before: s.time.optional(),
      q: s.word().optional().describe("In its id, agent, subject, labels or error code"),
      cursor: s.uuid.optional().describe("`next_cursor` of the page before"),
      limit: s.limit(50, 500),
    }),
    answers: { 200: s.page(runs.runSummary) },
    async handle({ query, access }) {
      const { state, wait_reason: waitReason, conversation_id: conversationId, created_after: after, created_before: before, cursor, ...rest } = query;
      const filter = s.defined({
        ...rest,
        states: state === undefined ? undefined : [state],
        waitReason,
        conversationId,
        createdAfter: after === undefined ? undefined : new Date(after),
        createdBefore: before === undefined ? undefined : new Date(before),
        before: cursor,
        tenant: access.tenant,
      });
      const { runs: found, next_before: next } = await listRuns(db, named, filter);
      return { items: found.map(shownSummary), ...(next === null ? {} : { next_cursor: next }) };
    },
  });

  route(app, api, "GET /v1/runs/:run_id", {
    summary: "Show a run",
    params: s.runParams,
    answers: { 200: runs.run },
    handle: async ({ params }) => await client.run(params.run_id).status(),
  });

  route(app, api, "GET /v1/runs/:run_id/result", {
    summary: "Wait until the run has ended",
    description: "Answers with the run as soon as it has ended, or as it is when the time is over.",
    params: s.runParams,
    query: z.strictObject({ wait_ms: s.queryNumber(0, MAX_WAIT_MS).default(30_000) }),
    answers: { 200: runs.run },
    async handle({ params, query, reply }) {
      const run = client.run(params.run_id);
      const status = await run.status();
      if (status.finished_at !== undefined || query.wait_ms === 0) return status;
      const gone = new AbortController();
      reply.raw.once("close", () => gone.abort());
      const signal = AbortSignal.any([gone.signal, api.stopping]);
      try {
        await run.result({ timeoutMs: query.wait_ms, signal });
      } catch (error) {
        // How it ended, or that it has not, stands in the answer.
        if (!(error instanceof RunFailedError || error instanceof ResultTimeoutError || signal.aborted)) throw error;
      }
      return await run.status();
    },
  });

  route(app, api, "GET /v1/runs/:run_id/events", {
    summary: "Events of a run, as a page or as a stream",
    description:
      "With `accept: text/event-stream` a stream: all events behind `last-event-id` (or `after`), then each as it happens, each with its seq as id; live text as `delta` events without an id (`deltas=false` leaves it out), and `end` when the run is over. See docs/http.md.",
    params: s.runParams,
    query: z.strictObject({ after: SEQ.default(0), limit: s.limit(100, 100), deltas: s.queryFlag.default("true") }),
    answers: { 200: z.object({ items: z.array(runs.event), next_after: z.int(), ended: z.boolean().describe("There is nothing more, and nothing will come") }) },
    async handle({ params, query, access, request, reply }) {
      const { after, limit, deltas } = query;
      if (stream.accepts(request)) {
        return stream.open(request, reply, { runId: params.run_id, after, deltas: deltas === "true", ...(access.tokenId === undefined ? {} : { tokenId: access.tokenId }) });
      }
      const [found] = await pages.pages([{ runId: params.run_id, after }]);
      const items = (found?.events ?? []).slice(0, limit);
      const last = items.at(-1)?.seq ?? after;
      const ended = found !== undefined && !found.head.missing && found.head.ended && last >= found.head.lastSeq;
      return { items, next_after: last, ended };
    },
  });

  route(app, api, "GET /v1/runs/:run_id/transcript", {
    summary: "The messages that the model sees now",
    params: s.runParams,
    answers: { 200: stateView },
    async handle({ params, access }) {
      const run = client.run(params.run_id);
      const { last_seq: lastSeq } = await run.status();
      const view = await run.at(lastSeq);
      await recordAudit(db, named, { tenant: access.tenant, actor: access.actor, tokenId: access.tokenId, action: "transcript.read", target: params.run_id });
      return view;
    },
  });

  route(app, api, "GET /v1/runs/:run_id/state", {
    summary: "The run as it was right after one of its events",
    params: s.runParams,
    query: z.strictObject({ seq: s.queryNumber(1, 2_147_483_647) }),
    answers: { 200: stateView },
    async handle({ params, query, access }) {
      const view = await client.run(params.run_id).at(query.seq);
      await recordAudit(db, named, {
        tenant: access.tenant,
        actor: access.actor,
        tokenId: access.tokenId,
        action: "transcript.read",
        target: params.run_id,
        detail: { seq: query.seq },
      });
      return view;
    },
  });

  route(app, api, "GET /v1/runs/:run_id/tree", {
    summary: "The run with all that it started",
    params: s.runParams,
    answers: { 200: z.object({ root: treeNode, runs: z.int(), is_cut: z.boolean().describe("There are more than are shown") }) },
    async handle({ params }) {
      const tree = await runTree(db, named, params.run_id.toLowerCase());
      // It was there a moment ago: retention took it in between.
      return tree === undefined ? await client.run(params.run_id).status() : { ...tree, root: shownNode(tree.root) };
    },
  });

  route(app, api, "GET /v1/runs/:run_id/usage", {
    summary: "What the run and all that it started have used",
    params: s.runParams,
    answers: { 200: z.object({ total: totals, runs: z.array(totals.extend({ run_id: s.uuid, depth: z.int(), agent: z.string(), state: z.string() })), is_cut: z.boolean() }) },
    handle: async ({ params }) => await client.usage.ofTree(params.run_id),
  });

  route(app, api, "GET /v1/runs/:run_id/waits", {
    summary: "What the run waits for now",
    params: s.runParams,
    answers: { 200: s.list(runs.wait) },
    handle: async ({ params }) => ({ items: await client.run(params.run_id).waits() }),
  });
}

export function shownSummary({ id, ...rest }: RunSummary): object {
  return { run_id: id, ...shown(rest) };
}

interface Node {
  readonly id: string;
  readonly children: readonly Node[];
}

function shownNode({ id, children, ...rest }: Node): object {
  return { run_id: id, ...shown(rest), children: children.map(shownNode) };
}

/** Points in time as texts; what there is not is left out. */
function shown(row: object): object {
  return Object.fromEntries(Object.entries(row).flatMap(([name, value]) => (value === null ? [] : [[name, value instanceof Date ? value.toISOString() : (value as unknown)]])));
}
