/** Asks for a compaction by hand and waits, bounded, for what comes of it. */
import type { CompactionReason } from "../domain/compaction/types.ts";
import type { JsonObject } from "../domain/json.ts";
import type { HandleContext } from "./handle.ts";
import { fromPostgres } from "./errors.ts";
import { queryTx } from "./transaction.ts";
import { waitFor } from "./wait-for.ts";

export interface CompactOptions {
  /** `now` (default): refused with RUN_BUSY while the run is in the middle of a turn. `boundary`: done when the turn ends. */
  readonly when?: "now" | "boundary";
  /** Wait for the outcome so long; 0 does not wait. Default 30,000, with `when: "boundary"` 0. */
  readonly timeoutMs?: number;
  readonly actor?: string;
}

export interface CompactView {
  readonly run_id: string;
  /** The task; absent when nothing was to be done, or the request has not been looked at yet. */
  readonly compaction_id?: string;
  /** `live`: the view is the compacted one. `marker`: the run has ended, and what continues it begins with the compacted view. `noop`: nothing could be cut. `failed`: nothing was changed. `pending`: not known yet. */
  readonly applied: "live" | "marker" | "noop" | "failed" | "pending";
  readonly before_tokens?: number;
  readonly after_tokens?: number;
  readonly scale?: string;
  /** Why not, for `noop` and `failed`. */
  readonly reason?: CompactionReason;
  readonly detail?: JsonObject;
}

const POLL_MS = 150;
const DEFAULT_WAIT_MS = 30_000;

interface Found {
  readonly type: string;
  readonly seq: number;
  readonly after_end?: boolean | null;
  readonly payload: JsonObject & {
    readonly task_id?: string;
    readonly reason?: CompactionReason;
    readonly detail?: JsonObject;
    readonly before?: { readonly tokens: number };
    readonly after?: { readonly tokens: number; readonly scale: string };
  };
}

const ASKED_SQL = `
select e.type, e.seq, e.payload from capstan.inbox i join capstan.events e on e.run_id = i.run_id and e.seq = i.applied_seq where i.id = $1 and i.run_id = $2::uuid`;

/** What came of it stands behind the event that answers the request: a long journal is not read at each look. */
const ENDED_SQL = `
select e.type, e.seq, e.payload, r.finished_at < e.at as after_end from capstan.events e join capstan.runs r on r.id = e.run_id
where e.run_id = $1::uuid and e.seq > $3 and e.type in ('context.compacted', 'compaction.failed') and e.payload ->> 'task_id' = $2 order by e.seq desc limit 1`;

type Context = Pick<HandleContext, "db" | "named">;

export async function compactRun(runId: string, context: Context, { when = "now", timeoutMs = when === "now" ? DEFAULT_WAIT_MS : 0, actor }: CompactOptions): Promise<CompactView> {
  const inboxId = await askToCompact(runId, context, { when, ...(actor === undefined ? {} : { actor }) });
  return await compactionOutcome(runId, context, { inboxId, timeoutMs });
}

/** Gives the id of the request, by which its outcome is found. */
export async function askToCompact(runId: string, context: Context, { when = "now", actor }: Pick<CompactOptions, "when" | "actor">): Promise<string> {
  const asked = await queryOne<{ id: string }>(context, "select capstan.compact_run($1::uuid, $2, $3) as id", [runId, when === "boundary", actor ?? null]);
  return (asked as { id: string }).id;
}

/** Waits until it is known, the time is over, or the signal fires. */
export async function compactionOutcome(
  runId: string,
  context: Context,
  { inboxId, timeoutMs, signal }: { readonly inboxId: string; readonly timeoutMs: number; readonly signal?: AbortSignal },
): Promise<CompactView> {
  const until = performance.now() + timeoutMs;
  let taskId: string | undefined;
  let askedSeq = 0;
  for (;;) {
    if (taskId === undefined) {
      const found = await queryOne<Found>(context, ASKED_SQL, [inboxId, runId]);
      if (found?.type === "compaction.skipped" && found.payload.reason !== "joined") return { run_id: runId, applied: "noop", ...whyNot(found) };
      askedSeq = found?.seq ?? 0;
      taskId = found?.type === "compaction.skipped" ? (found.payload.detail?.["task_id"] as string | undefined) : found?.payload.task_id;
    }
    if (taskId !== undefined) {
      const ended = await queryOne<Found>(context, ENDED_SQL, [runId, taskId, askedSeq]);
      if (ended !== undefined) return outcomeOf(runId, taskId, ended);
    }
    if (performance.now() >= until || signal?.aborted === true) return { run_id: runId, ...(taskId === undefined ? {} : { compaction_id: taskId }), applied: "pending" };
    await waitFor(undefined, POLL_MS, signal);
  }
}

async function queryOne<Row extends object>({ db, named }: Context, text: string, values: readonly unknown[]): Promise<Row | undefined> {
  try {
    return (await queryTx<Row & Record<string, unknown>>(db, named(text), values))[0];
  } catch (error) {
    throw fromPostgres(error);
  }
}

function outcomeOf(runId: string, taskId: string, { type, payload, after_end: isAfterEnd }: Found): CompactView {
  const base = { run_id: runId, compaction_id: taskId };
  if (type === "compaction.failed") return { ...base, applied: "failed", ...whyNot({ payload }) };
  const { before, after } = payload;
  return {
    ...base,
    applied: isAfterEnd === true ? "marker" : "live",
    ...(before === undefined || after === undefined ? {} : { before_tokens: before.tokens, after_tokens: after.tokens, scale: after.scale }),
  };
}

function whyNot({ payload }: Pick<Found, "payload">): { reason?: CompactionReason; detail?: JsonObject } {
  return { ...(payload.reason === undefined ? {} : { reason: payload.reason }), ...(payload.detail === undefined ? {} : { detail: payload.detail }) };
}
