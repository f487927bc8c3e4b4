/** What must hold for every run after any fault: P1 to P5, checked from the rows and from what really happened. */
import type pg from "pg";
import { verifyRun } from "../../src/engine/verify.ts";
import { PostgresDefinitionStore } from "../../src/store/definitions.ts";
import type { EffectLine } from "./effects.ts";
import { readJournal, runFacts } from "./journal.ts";
import { same } from "./start-worker.ts";

/** They have no code that could note anything. */
const engineTools: ReadonlySet<string> = new Set(["context", "agent", "wait", "ask_human"]);

/** Every breach in words; empty when all holds. */
export async function breaches(db: pg.Pool, runId: string, allEffects: readonly EffectLine[]): Promise<string[]> {
  const rows = await readJournal(db, runId);
  const facts = await runFacts(db, runId);
  const definitions = new PostgresDefinitionStore(db, same);
  const report = await verifyRun({
    runId,
    rows: (async function* () {
      yield* rows;
    })(),
    definition: (sha) => definitions.get(sha),
  });
  const problems = [...report.problems];
  rows.forEach(({ event }, i) => event.seq === i + 1 || problems.push(`seq ${event.seq} at place ${i + 1}`));
  if (facts.next_seq !== rows.length + 1) problems.push(`the row says next_seq ${facts.next_seq}, the journal has ${rows.length} events`);
  const atRest = ["completed", "failed", "cancelled", "waiting"].includes(facts.state);
  if (atRest && facts.worker_id !== null) problems.push(`a ${facts.state} run is held by ${facts.worker_id}`);
  if ((rows.at(-1)?.fencingToken ?? 0) > facts.fencing_token) problems.push("the row's fencing token is behind the journal's");

  const effects = allEffects.filter(({ run }) => run === runId);
  const executions = (key: string, kind?: EffectLine["kind"]) => effects.filter((line) => line.key === key && (kind === undefined || line.kind === kind));
  const events = rows.map(({ event, at }) => ({ event, at }));
  const requests = new Map<number, { made: number; lost: number }>();
  const accounted = new Set<EffectLine>();
  let unanswered = false;
  for (const { event, at } of events) {
    if (event.type === "model.requested") unanswered = true;
    else if (event.type === "model.responded" || event.type === "model.failed") unanswered = false;
    else if (event.type === "turn.stopped" && unanswered) {
      // Its worker died before it could call, or with the answer, and nobody makes the request again.
      const seen = requests.get(event.turn);
      if (seen !== undefined) seen.lost++;
    }
    if (event.type === "model.requested") {
      const seen = requests.get(event.turn) ?? { made: 0, lost: 0 };
      requests.set(event.turn, { made: seen.made + 1, lost: seen.lost + (event.payload.again === "lost" ? 1 : 0) });
    } else if (event.type === "model.responded") {
      late(executions(`m${event.turn}`), at, `the model in turn ${event.turn}`);
    } else if (event.type === "call.waiting") {
      for (const line of executions(event.payload.call_id)) accounted.add(line);
    } else if (event.type === "tool.completed" || event.type === "tool.failed" || event.type === "tool.interrupted") {
      const done = executions(event.payload.call_id);
      for (const line of done) accounted.add(line);
      late(done, at, `call ${event.payload.call_id} (${event.payload.name})`);
      if (event.type === "tool.completed" && done.length === 0 && !engineTools.has(event.payload.name))
        problems.push(`${event.payload.call_id} is recorded and was never executed`);
      if (event.type === "tool.interrupted" && done.some(({ kind }) => kind !== "once")) problems.push(`${event.payload.call_id} may be repeated and was given up`);
    }
  }
  for (const { key, kind } of effects) {
    if (kind === "once" && executions(key, "once").length > 1) problems.push(`the side effect of ${key} happened ${executions(key, "once").length} times`);
  }
  // A request is recorded before its call: calls without one cannot be, and one without a call was lost with its worker.
  for (const [turn, { made, lost }] of requests) {
    const calls = executions(`m${turn}`).length;
    for (const line of executions(`m${turn}`)) accounted.add(line);
    if (calls > made || calls < made - lost) problems.push(`turn ${turn}: ${made} requests recorded (${lost} lost), ${calls} calls made`);
  }
  if (atRest) for (const line of effects) if (!accounted.has(line) && !line.key.endsWith(":aborted")) problems.push(`${line.kind} ${line.key} by ${line.pid} is in no journal`);
  return [...new Set(problems)];

  /** What is recorded is never produced again (P3). One millisecond for the two clocks' rounding. */
  function late(lines: readonly EffectLine[], recordedAt: Date, what: string): void {
    for (const line of lines) if (line.atMs > recordedAt.getTime() + 1) problems.push(`${what} ran again by ${line.pid} after it was recorded`);
  }
}
