/** What must hold of a run's compactions after any fault, read from its rows: each task settled once, and rebuilt equals live at every event. */
import type pg from "pg";
import { isUsableMarker } from "../../src/domain/compaction/fold.ts";
import { resumeAtMarker, tailFrom } from "../../src/domain/compaction/resume.ts";
import type { CapstanEvent, EventOf } from "../../src/domain/event.ts";
import { evolve, initialState, type RunState } from "../../src/domain/fold.ts";
import { canonicalJson, type JsonValue } from "../../src/domain/json.ts";
import { remember } from "../../src/engine/run-memory.ts";
import { JournalReader } from "../../src/store/journal-reader.ts";
import { readJournal } from "./journal.ts";
import { same } from "./start-worker.ts";

export interface TaskRow {
  readonly id: string;
  readonly state: string;
  readonly attempts: number;
  readonly fencing_token: number;
  readonly worker_id: string | null;
}

export async function tasksOf(db: pg.Pool, runId: string): Promise<TaskRow[]> {
  const { rows } = await db.query<TaskRow>("select id, state, attempts, fencing_token, worker_id from capstan.compaction_tasks where run_id = $1 order by requested_at", [runId]);
  return rows;
}

export async function openTasks(db: pg.Pool, runIds: readonly string[]): Promise<number> {
  const { rows } = await db.query<{ n: number }>(
    "select count(*)::int as n from capstan.compaction_tasks where run_id = any($1::uuid[]) and state in ('requested', 'summarizing', 'ready')",
    [runIds],
  );
  return rows[0]?.n ?? 0;
}

/** Every breach in words; to be asked once all is quiet. */
export async function compactionBreaches(db: pg.Pool, runId: string): Promise<string[]> {
  const events = (await readJournal(db, runId)).map(({ event }) => event);
  return [...(await taskBreaches(db, runId, events)), ...rebuildBreaches(events), ...(await rowBreaches(db, runId, events))];
}

async function taskBreaches(db: pg.Pool, runId: string, events: readonly CapstanEvent[]): Promise<string[]> {
  const problems: string[] = [];
  const tasks = await tasksOf(db, runId);
  const told = (type: CapstanEvent["type"], id: string): number =>
    events.filter((event) => event.type === type && "task_id" in event.payload && event.payload.task_id === id).length;
  for (const { id, state, worker_id: workerId } of tasks) {
    const [requested, applied, failed] = [told("compaction.requested", id), told("context.compacted", id), told("compaction.failed", id)];
    if (requested !== 1) problems.push(`task ${id} was requested ${requested} times in the journal`);
    if (applied > 1) problems.push(`task ${id} was applied ${applied} times`);
    if (["requested", "summarizing", "ready"].includes(state)) problems.push(`task ${id} is still ${state}`);
    if ((state === "applied") !== (applied === 1)) problems.push(`task ${id} is ${state}, the journal has ${applied} markers of it`);
    if (state === "failed" && failed !== 1) problems.push(`task ${id} is failed, the journal tells it ${failed} times`);
    if (applied + failed > 1) problems.push(`task ${id} was both applied and failed`);
    if (workerId !== null) problems.push(`task ${id} is ${state} and held by ${workerId}`);
  }
  for (const event of events) {
    if (event.type === "compaction.requested" && tasks.every(({ id }) => id !== event.payload.task_id))
      problems.push(`task ${event.payload.task_id} of event ${event.seq} has no row`);
  }
  return problems;
}

/** At each event a worker may have died: what it would have rebuilt from the newest marker is the state that was alive. */
export function rebuildBreaches(events: readonly CapstanEvent[]): string[] {
  const problems: string[] = [];
  const created = events[0];
  if (created?.type !== "run.created") return ["the journal does not begin with run.created"];
  const live = initialState();
  let marker: EventOf<"context.compacted"> | undefined;
  for (const [i, event] of events.entries()) {
    evolve(live, event);
    if (event.type === "context.compacted" && isUsableMarker(event)) marker = event;
    if (marker === undefined) continue;
    const after = tailFrom(marker) - 1;
    const resumed = resumeAtMarker({ created, marker, tail: events.slice(after, i + 1), definitionSha: live.definitionSha, usage: live.usage });
    for (const difference of differences(live, resumed)) problems.push(`rebuilt at ${event.seq} (${event.type}) from marker ${marker.seq}: ${difference}`);
  }
  return problems.slice(0, 8);
}

async function rowBreaches(db: pg.Pool, runId: string, events: readonly CapstanEvent[]): Promise<string[]> {
  const loaded = await new JournalReader(db, same).load(runId);
  if (loaded === undefined) return ["the run is gone"];
  const live = events.reduce(evolve, initialState());
  const problems = differences(live, remember(loaded, 0).state).map((difference) => `loaded from the database: ${difference}`);
  const { rows } = await db.query<{ view_epoch: number; view_marker_seq: number | null }>("select view_epoch, view_marker_seq from capstan.runs where id = $1", [runId]);
  if (rows[0]?.view_epoch !== live.epoch) problems.push(`the row says view epoch ${rows[0]?.view_epoch}, the journal ${live.epoch}`);
  if ((rows[0]?.view_marker_seq ?? undefined) !== live.marker) problems.push(`the row says marker ${rows[0]?.view_marker_seq}, the journal ${live.marker}`);
  return problems;
}

/** Byte for byte, member by member; a Map's order says nothing. */
function differences(live: RunState, rebuilt: RunState): string[] {
  const keys = new Set([...Object.keys(live), ...Object.keys(rebuilt)]) as Set<keyof RunState>;
  return [...keys].flatMap((key) => {
    const [a, b] = [bytesOf(live[key]), bytesOf(rebuilt[key])];
    return a === b ? [] : [`${key} is ${around(b, a)}, live ${around(a, b)}`];
  });
}

function bytesOf(value: unknown): string {
  if (value === undefined) return "absent";
  return canonicalJson(
    JSON.parse(JSON.stringify(value, (_, member: unknown) => (member instanceof Map ? [...member].toSorted((a, b) => Number(a[0]) - Number(b[0])) : member))) as JsonValue,
  );
}

/** The place where two texts part. */
function around(text: string, other: string): string {
  let at = 0;
  while (at < text.length && text[at] === other[at]) at++;
  return text.length < 200 ? text : `…${text.slice(Math.max(0, at - 60), at + 120)}…`;
}
