/** A stop that meets a dying worker, or an answer at the same moment: the turn ends once, nothing is claimed that is not known, and no turn begins by itself. */
import { expect, it } from "vitest";
import { createTestDatabase } from "../support/database.ts";
import { lifeBench, waitsFor } from "./life-bench.ts";

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
