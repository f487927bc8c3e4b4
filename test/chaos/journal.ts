/** Reading a journal in tests, waiting for a run, and comparing two journals of the same scenario. */
import type pg from "pg";
import type { CapstanEvent } from "../../src/domain/event.ts";
import { canonicalJson, type JsonValue } from "../../src/domain/json.ts";
import { JournalReader, type JournalRow } from "../../src/store/journal-reader.ts";
import { same } from "./start-worker.ts";

export async function readJournal(db: pg.Pool, runId: string): Promise<JournalRow[]> {
  const rows: JournalRow[] = [];
  for await (const row of new JournalReader(db, same).walk(runId)) rows.push(row);
  return rows;
}

export interface RunFacts {
  readonly state: string;
  readonly wait_reason: string | null;
  readonly worker_id: string | null;
  readonly fencing_token: number;
  readonly next_seq: number;
  readonly crash_count: number;
  readonly inbox_pending: number;
  readonly turn: number;
}

export async function runFacts(db: pg.Pool, runId: string): Promise<RunFacts> {
  const { rows } = await db.query<RunFacts>("select state, wait_reason, worker_id, fencing_token, next_seq, crash_count, inbox_pending, turn from capstan.runs where id = $1", [
    runId,
  ]);
  return rows[0] as RunFacts;
}

/** Looks again until `ready` gives something. The error says what was seen last. */
export async function eventually<T>(
  what: string,
  ready: () => Promise<T | undefined | false> | T | undefined | false,
  { withinMs = 30_000, describe }: { withinMs?: number; describe?: () => Promise<string> | string } = {},
): Promise<T> {
  const deadline = performance.now() + withinMs;
  for (;;) {
    const seen = await ready();
    if (seen !== undefined && seen !== false) return seen;
    if (performance.now() > deadline) throw new Error(`not within ${withinMs} ms: ${what}${describe === undefined ? "" : `\n${await describe()}`}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** The run's state, its events in short, and what queue and workers hold: for the message of a test that waited in vain. */
export async function describeRun(db: pg.Pool, runId: string): Promise<string> {
  const facts = await runFacts(db, runId);
  const { rows: wishes } = await db.query("select * from capstan.wishes where run_id = $1", [runId]);
  const { rows: jobs } = await db.query("select id, task_identifier, locked_at, locked_by, attempts, last_error from graphile_worker.jobs");
  const { rows: workers } = await db.query("select id, pool, pid, heartbeat_at, ended_at, end_reason, busy, queue_pools from capstan.workers order by started_at desc limit 4");
  const events = (await readJournal(db, runId)).map(({ event, fencingToken }) => `${event.seq} ${event.type} turn ${event.turn} token ${fencingToken}`);
  return JSON.stringify({ runId, facts, wishes, jobs, workers, events }, undefined, 1);
}

type Shape = Readonly<Record<string, JsonValue>>;

/**
 * What two journals of one scenario must have in common, however often their workers died. Left out, and why:
 * - seq, times, durations, tokens of usage and fencing, ids: they say when and by whom, not what;
 * - requests of a turn but the last, `again`, attempts, model.failed INTERRUPTED: a call that died is made again;
 * - tool.started: which worker announces a call depends on how many were open when it came;
 * - the order of a turn's results: parallel calls end in any order;
 * - when a run rested for its calls, and on the way of ids and times: what is answered from outside may come before it rests;
 *   and the hashes of requests that a child's id or a timer's time stands in;
 * - whether a call with side effects completed or was interrupted, and from then on the hashes and sizes of requests,
 *   since the model is told of it. (verifyRun rebuilds every hash from the rows all the same.)
 */
export function essence(events: readonly CapstanEvent[], onceTools: ReadonlySet<string>): string[] {
  const shapes: Shape[] = [];
  const interruptedFrom = events.find((event) => event.type === "tool.interrupted" || hasOwnResult(event))?.turn ?? Number.POSITIVE_INFINITY;
  const lastRequest = new Map<number, number>();
  for (const event of events) if (event.type === "model.requested") lastRequest.set(event.turn, event.seq);
  for (const event of events) {
    const { type, turn } = event;
    if (type === "tool.started" || (type === "model.failed" && event.payload.error.code === "INTERRUPTED")) continue;
    if ((type === "run.parked" && restsForCalls.has(event.payload.reason)) || (type === "run.resumed" && restsForCalls.has(event.payload.from))) continue;
    if (type === "model.requested") {
      if (lastRequest.get(turn) !== event.seq) continue;
      const { model, render, breakpoints, hash, size_bytes } = event.payload;
      shapes.push({ type, turn, model, render, breakpoints, ...(turn <= interruptedFrom ? { hash, size_bytes } : {}) });
    } else if (type === "tool.completed" || type === "tool.failed" || type === "tool.interrupted") {
      const { call_id, index, name } = event.payload;
      const end: Shape = onceTools.has(name)
        ? {}
        : type === "tool.completed"
          ? { output: withoutIds(event.payload.output) }
          : type === "tool.failed"
            ? { error: event.payload.error as unknown as JsonValue }
            : { interrupted: true };
      shapes.push({ type: onceTools.has(name) ? "tool end" : type, turn, call_id, index, name, ...end });
    } else if (type === "model.responded") {
      const { content, finish, announced } = event.payload;
      shapes.push({ type, turn, content: content as unknown as JsonValue, finish: finish as JsonValue, announced: announced ?? null });
    } else if (type === "call.waiting") {
      const { index, name, wait } = event.payload;
      shapes.push({ type, turn, index, name, kind: wait.kind });
    } else if (type === "approval.decided") {
      shapes.push({ type, turn, index: event.payload.index, decision: event.payload.decision });
    } else shapes.push({ type, turn, payload: event.payload as unknown as JsonValue });
  }
  return sortResults(shapes).map((shape) => canonicalJson(shape));
}

const restsForCalls: ReadonlySet<string> = new Set(["approval", "children", "signal", "timer"]);

/** Results that differ from run to run: those of children name them, those of timers say when. */
function hasOwnResult(event: CapstanEvent): boolean {
  return event.type === "call.waiting" && (event.payload.wait.kind === "children" || event.payload.wait.kind === "timer");
}

function withoutIds(output: JsonValue): JsonValue {
  const text = JSON.stringify(output) ?? "null";
  return JSON.parse(text.replaceAll(/[0-9a-f]{8}-[0-9a-f-]{27}/g, "<id>").replaceAll(/\d{4}-\d\d-\d\dT[0-9:.]+Z/g, "<time>")) as JsonValue;
}

/** What happens to the calls of one response may do so in any order. */
function sortResults(shapes: readonly Shape[]): Shape[] {
  const typeOf = (shape: Shape | undefined): string => (typeof shape?.["type"] === "string" ? shape["type"] : "");
  const isEnd = (shape: Shape | undefined): boolean => /^(tool|call|approval)/.test(typeOf(shape));
  const out: Shape[] = [];
  for (let i = 0; i < shapes.length;) {
    let end = i + 1;
    while (isEnd(shapes[i]) && isEnd(shapes[end])) end++;
    out.push(...shapes.slice(i, end).toSorted((a, b) => Number(a["index"]) - Number(b["index"]) || typeOf(a).localeCompare(typeOf(b))));
    i = end;
  }
  return out;
}

export function bareReference(essenceOfInterrupted: readonly string[], reference: readonly string[]): string[] {
  // Where a run was interrupted, hashes are absent: the reference is stripped at the same places.
  return reference.map((line, i) => {
    const other = JSON.parse(essenceOfInterrupted[i] ?? "{}") as Record<string, JsonValue>;
    const mine = JSON.parse(line) as Record<string, JsonValue>;
    if (mine["type"] === "model.requested" && other["type"] === "model.requested" && !("hash" in other)) {
      delete mine["hash"];
      delete mine["size_bytes"];
    }
    return canonicalJson(mine);
  });
}
