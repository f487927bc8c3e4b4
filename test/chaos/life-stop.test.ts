/** A stop that meets a dying worker, or an answer at the same moment: the turn ends once, nothing is claimed that is not known, and no turn begins by itself. */
import { expect, it } from "vitest";
import { lifeFailpoints, turnFailpoints, type Failpoint } from "../../src/engine/failpoints.ts";
import { createTestDatabase } from "../support/database.ts";
import { eventually } from "./journal.ts";
import { isFull, lifeBench, waitsFor } from "./life-bench.ts";

const database = await createTestDatabase();
const bench = lifeBench(database.url);
const { db } = bench;

it("a decision and a stop that find the run parked together: the stop counts, and no turn begins before there is input", { timeout: 60_000 }, async () => {
  const pool = "decided-and-stopped";
  const runId = await bench.enqueue("stoppable", { pool });
  const first = await bench.worker(pool);
  await bench.until(runId, "the run waits", waitsFor("approval"));
  await first.stop();
  const [wait] = await bench.waits(runId);
  await db.query("select capstan.decide($1, 'approve')", [wait?.id]);
  await db.query("select capstan.stop_run($1, 'enough')", [runId]);
  const second = await bench.worker(pool);
  await bench.until(runId, "the run takes input", waitsFor("input"));
  const events = await bench.events(runId);
  expect(events.filter(({ type }) => type === "turn.stopped")).toHaveLength(1);
  expect(events.filter(({ type }) => type === "model.requested")).toHaveLength(1);
  expect(events.at(-1)).toMatchObject({ type: "run.parked", payload: { reason: "input" } });
  await db.query("select capstan.send(run_id => $1, payload => '\"go on\"')", [runId]);
  await bench.until(runId, "the next answer", (facts) => waitsFor("input")(facts) && facts.turn === 2);
  await bench.intact([runId]);
  await second.stop();
});

it("a call with side effects whose worker died is told as unknown, not as never made, when the turn is stopped", { timeout: 60_000 }, async () => {
  const pool = "died-and-stopped";
  const runId = await bench.enqueue("stoppable", { pool });
  const child = await bench.child(pool, { failpoint: "tool.executed:1" });
  await child.ended;
  expect(bench.effects(runId).filter(({ kind }) => kind === "once")).toHaveLength(1);
  await db.query("select capstan.stop_run($1)", [runId]);
  const heir = await bench.worker(pool);
  await bench.until(runId, "the run takes input", waitsFor("input"));
  expect((await bench.of(runId, "tool.interrupted")).map(({ payload }) => payload)).toEqual([expect.objectContaining({ name: "pay_slowly", reason: "worker_lost" })]);
  expect((await bench.of(runId, "tool.failed")).map(({ payload }) => [payload.name, payload.error.code])).toEqual([
    ["look", "STOPPED"],
    ["pay", "STOPPED"],
  ]);
  await bench.intact([runId]);
  await heir.stop();
});

const all = [...turnFailpoints, ...lifeFailpoints].filter((point) => point !== "growth.before_warning" && !point.startsWith("results.") && !point.startsWith("end."));
const chosen: readonly Failpoint[] = isFull ? all : ["stop.before_append", "stop.committed", "answer.committed", "wait.committed"];

/** The stop as a person makes it: again until it is taken. A run that no worker has begun refuses it, so one comes to begin it. */
async function stopUntilTaken(runId: string, begin: () => Promise<void>): Promise<void> {
  let begun = false;
  await eventually("the stop is taken", async () => {
    try {
      await db.query("select capstan.stop_run($1, 'enough')", [runId]);
      return true;
    } catch (error) {
      expect(error).toMatchObject({ code: "KC009" });
      if (!begun) await begin();
      begun = true;
      return false;
    }
  });
}

it("ends the turn exactly once, wherever its worker dies, and no side effect is repeated", { timeout: 1_800_000 }, async () => {
  const waiting = chosen.entries();
  const problems: string[] = [];
  const killed: Failpoint[] = [];
  const lane = async (): Promise<void> => {
    for (const [id, point] of waiting) {
      try {
        const pool = `stop-${id}`;
        const runId = await bench.enqueue("stoppable", { pool });
        const victim = await bench.child(pool, { failpoint: `${point}:1` });
        const heirs: Awaited<ReturnType<typeof bench.worker>>[] = [];
        const heir = async (): Promise<void> => void heirs.push(await bench.worker(pool));
        const rests = bench.until(runId, `the run waits (${point})`, waitsFor("approval"));
        rests.catch(() => {});
        await Promise.race([victim.ended, rests]);
        if (point.startsWith("answer.")) {
          await db.query("select capstan.decide(w.id, 'approve') from capstan.waits w where w.run_id = $1", [runId]);
          await victim.ended;
        }
        await stopUntilTaken(runId, heir);
        if (point.startsWith("stop.")) await victim.ended;
        if (heirs.length === 0) await heir();
        // At some places the victim is quicker than the stop and lives on.
        await bench.until(runId, `the run takes input (${point})`, waitsFor("input"));
        const events = await bench.events(runId);
        expect(events.filter(({ type }) => type === "turn.stopped")).toHaveLength(1);
        expect(events.slice(-2).map(({ type }) => type)).toEqual(["turn.stopped", "run.parked"]);
        expect((await bench.waits(runId)).filter(({ settled_at: at }) => at === null)).toEqual([]);
        await db.query("select capstan.send(run_id => $1, payload => '\"go on\"')", [runId]);
        // Stopped before it was answered, the first request is in effect made again.
        await bench.until(runId, `the next answer (${point})`, (facts) => facts.turn === 2 && (waitsFor("input")(facts) || waitsFor("approval")(facts)));
        expect(await bench.of(runId, "turn.stopped")).toHaveLength(1);
        await Promise.all([...heirs.map((worker) => worker.stop()), victim.stop()]);
        if ((await victim.ended) === "SIGKILL") killed.push(point);
        await bench.intact([runId]);
      } catch (error) {
        problems.push(`${point}: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
      }
    }
  };
  await Promise.all([lane(), lane()]);
  expect(problems).toEqual([]);
  expect(chosen.filter((point) => !killed.includes(point))).toEqual([]);
});
