/** What must hold of every run of a sequence at its end, told by the rows alone. */
import type { CapstanEvent } from "../../src/domain/event.ts";
import { fold, type RunState } from "../../src/domain/fold.ts";
import { canonicalJson, type JsonValue } from "../../src/domain/json.ts";
import { remember } from "../../src/engine/run-memory.ts";
import { verifyRun } from "../../src/engine/verify.ts";
import { JournalReader, type JournalRow } from "../../src/store/journal-reader.ts";
import type { Sequence } from "./interleaving-bench.ts";

const same = (text: string): string => text;

export async function finalProblems(sequence: Sequence): Promise<string[]> {
  const { db, definitions } = sequence.lane;
  const reader = new JournalReader(db, same);
  const problems: string[] = [];
  for (const [runId, name] of sequence.names) {
    const rows: JournalRow[] = [];
    for await (const row of reader.walk(runId)) rows.push(row);
    const events = rows.map(({ event }) => event);
    const report = await verifyRun({
      runId,
      rows: (async function* () {
        yield* rows;
      })(),
      definition: (sha) => definitions.get(sha),
    });
    const found = [...report.problems, ...ofCalls(events, runId, sequence.executed), ...ofInputs(events), ...ofEnd(events)];
    const loaded = await reader.load(runId);
    if (loaded === undefined) found.push("cannot be loaded");
    else if (shown(remember(loaded, 0).state) !== shown(fold(events)))
      found.push(`what a worker loads is not what the journal says:\n${shown(remember(loaded, 0).state)}\n${shown(fold(events))}`);
    problems.push(...found.map((problem) => `${name}: ${problem}`));
  }
  const { rows: odd } = await db.query<{ what: string }>(ODD_SQL, [sequence.tenant]);
  return [...problems, ...odd.map(({ what }) => what)];
}

/** The state that both ways of reading a run must agree on. */
function shown({ status, waitReason, turn, phase, view, epoch, marker, compaction }: RunState): string {
  const task = compaction.task && { ...compaction.task };
  return canonicalJson(
    JSON.parse(
      JSON.stringify({
        status,
        waitReason,
        turn,
        phase: phase.kind,
        view,
        epoch,
        marker,
        task,
        pins: compaction.pins,
        wanted: compaction.wanted,
        applied: compaction.appliedTurns,
      }),
    ) as JsonValue,
  );
}

const onceTools = new Set(["once", "pay", "pay_soon"]);

function ofCalls(events: readonly CapstanEvent[], runId: string, executed: ReadonlyMap<string, number>): string[] {
  const problems: string[] = [];
  for (const event of events) {
    if (event.type !== "tool.completed" && event.type !== "tool.failed" && event.type !== "tool.interrupted") continue;
    const { call_id: callId, name } = event.payload;
    const times = executed.get(`${runId}:${callId}`) ?? 0;
    if (onceTools.has(name) && times > 1) problems.push(`${callId} (${name}) was executed ${times} times`);
    if (event.type === "tool.completed" && (onceTools.has(name) || name === "read") && times === 0) problems.push(`${callId} (${name}) is recorded and was never executed`);
    if (event.type === "tool.failed" && onceTools.has(name) && times > 0) problems.push(`${callId} (${name}) is told as not made (${event.payload.error.code}) and was executed`);
  }
  return problems;
}

function ofInputs(events: readonly CapstanEvent[]): string[] {
  const problems: string[] = [];
  let open = 0;
  let last = 0;
  for (const event of events) {
    if (event.type === "model.responded") open = event.payload.content.filter(({ type }) => type === "tool_call").length;
    else if (event.type === "tool.completed" || event.type === "tool.failed" || event.type === "tool.interrupted") open--;
    else if (event.type === "turn.stopped" && open > 0) problems.push(`event ${event.seq}: stopped with ${open} calls unanswered`);
    else if (event.type === "input.applied") {
      const [part] = event.payload.content;
      const n = part?.type === "text" ? Number(part.text.slice("input ".length)) : Number.NaN;
      if (open > 0) problems.push(`event ${event.seq}: input ${n} came between a call and its result`);
      if (!(n > last)) problems.push(`event ${event.seq}: input ${n} after ${last}`);
      last = n;
    }
  }
  return problems;
}

const afterEnd = new Set(["compaction.requested", "compaction.skipped", "compaction.failed", "context.compacted"]);

function ofEnd(events: readonly CapstanEvent[]): string[] {
  const end = events.findIndex(({ type }) => type === "run.completed" || type === "run.failed" || type === "run.cancelled");
  if (end < 0) return [];
  return events.slice(end + 1).flatMap(({ seq, type }) => (afterEnd.has(type) ? [] : [`event ${seq} (${type}) behind the end`]));
}

const ODD_SQL = `
select 'an open wait of a run that has ended: ' || w.id as what from capstan.waits w join capstan.runs r on r.id = w.run_id where r.tenant = $1 and r.finished_at is not null and w.settled_at is null
union all
select 'an open wait of a run that does not wait for it: ' || w.id || ' ' || r.state || ' ' || coalesce(r.wait_reason, '') from capstan.waits w join capstan.runs r on r.id = w.run_id
  where r.tenant = $1 and r.state = 'waiting' and r.wait_reason in ('input', 'retry', 'compaction', 'context_exhausted') and w.settled_at is null
union all
select 'inbox_pending ' || r.inbox_pending || ' of ' || r.id from capstan.runs r
  where r.tenant = $1 and r.inbox_pending <> (select count(*) from capstan.inbox i where i.run_id = r.id and i.applied_seq is null)
union all
select 'a call with two rows in runs: ' || r.parent_run_id || ' ' || r.parent_call from capstan.runs r where r.tenant = $1 and r.parent_run_id is not null
  group by r.parent_run_id, r.parent_call, r.child_index having count(*) > 1
union all
select 'an item applied twice: ' || e.inbox_id from capstan.events e join capstan.runs r on r.id = e.run_id where r.tenant = $1 and e.inbox_id is not null and e.type = 'input.applied' group by e.inbox_id having count(*) > 1`;
