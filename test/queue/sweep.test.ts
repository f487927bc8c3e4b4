/** The sweep finds the dead and only the dead; what it found is checked again on the locked row. */
import { expect, it } from "vitest";
import { Sweep } from "../../src/queue/sweep.ts";
import { LOST_JOBS_SQL, SWEEP_SQL } from "../../src/queue/sql/sweep.ts";
import { BEAT_SQL } from "../../src/store/workers.ts";
import { silentLog } from "../../src/telemetry/log.ts";
import { createTestDatabase } from "../support/database.ts";
import { claim, held, queueBench, same, untilBlocked } from "./queue-bench.ts";

const database = await createTestDatabase();
const bench = queueBench(database.url);
const { db } = bench;
const sweeper = await bench.worker();

const sweep = async (): Promise<{ buried: number; taken: string[] }> =>
  (await db.query<{ buried: number; taken: string[] }>(SWEEP_SQL, [sweeper.id])).rows[0] as { buried: number; taken: string[] };
const workerRow = async (id: string) =>
  (await db.query<{ ended_at: Date | null; end_reason: string | null }>("select ended_at, end_reason from capstan.workers where id = $1", [id])).rows[0];
const run = async (id: string) => (await db.query("select worker_id, fencing_token, crash_count, taken_over from capstan.runs where id = $1", [id])).rows[0] as object;
const falterHeartbeat = (id: string) => db.query("update capstan.workers set heartbeat_at = now() - interval '1 hour' where id = $1", [id]);
const wishes = async (runId: string) => (await db.query("select ready from capstan.wishes where run_id = $1", [runId])).rows;

async function heldRun() {
  const holder = await bench.worker({ leaseMs: 600_000 });
  const runId = await bench.enqueue();
  await holder.store.append(claim(runId));
  await db.query("delete from capstan.wishes where run_id = $1", [runId]);
  return { holder, runId };
}

it("buries a worker whose heartbeat is stale, takes its runs and wishes for them", async () => {
  const { holder, runId } = await heldRun();
  expect(await sweep()).toEqual({ buried: 0, taken: [] });
  await falterHeartbeat(holder.id);
  expect(await sweep()).toEqual({ buried: 1, taken: [runId] });
  expect(await workerRow(holder.id)).toMatchObject({ end_reason: "lost" });
  expect(await run(runId)).toEqual({ worker_id: null, fencing_token: 2, crash_count: 1, taken_over: true });
  expect(await wishes(runId)).toEqual([{ ready: true }]);
  // Buried for good: a beat that comes late changes nothing, and says so.
  expect((await db.query(BEAT_SQL, [holder.id, 0])).rowCount).toBe(0);
  await expect(holder.store.append(held(runId, 1, 2))).rejects.toMatchObject({ code: "LEASE_LOST" });
  expect(await sweep()).toEqual({ buried: 0, taken: [] });
});

it("a beat that arrives while the sweep waits for the row saves the worker", async () => {
  const { holder, runId } = await heldRun();
  await falterHeartbeat(holder.id);
  const beating = await bench.connection();
  await beating.query("begin");
  await beating.query(BEAT_SQL, [holder.id, 1]);
  const sweeping = sweep();
  await untilBlocked(db, "%update capstan.workers w set ended_at%");
  await beating.query("commit");
  expect(await sweeping).toEqual({ buried: 0, taken: [] });
  expect(await workerRow(holder.id)).toEqual({ ended_at: null, end_reason: null });
  expect(await run(runId)).toMatchObject({ worker_id: holder.id, fencing_token: 1, crash_count: 0 });
});

it("a run that ended, or changed hands, between the sweep's look and its hold is left alone (dbos-inc/dbos-transact-py #742)", async () => {
  const { holder, runId } = await heldRun();
  await falterHeartbeat(holder.id);
  const mover = await bench.connection();
  await mover.query("begin");
  await mover.query("update capstan.runs set worker_id = $2, fencing_token = 7 where id = $1", [runId, sweeper.id]);
  const sweeping = sweep();
  await untilBlocked(db, "%update capstan.runs r set worker_id = null%");
  await mover.query("commit");
  expect(await sweeping).toEqual({ buried: 1, taken: [] });
  expect(await run(runId)).toMatchObject({ worker_id: sweeper.id, fencing_token: 7, crash_count: 0 });

  const ending = await heldRun();
  await falterHeartbeat(ending.holder.id);
  await mover.query("begin");
  await mover.query("select capstan.cancel_run($1)", [ending.runId]);
  const again = sweep();
  await untilBlocked(db, "%update capstan.runs r set worker_id = null%");
  await mover.query("commit");
  expect(await again).toEqual({ buried: 1, taken: [] });
  expect(await wishes(ending.runId)).toEqual([]);
});

it("two sweeps at once take each run once", async () => {
  const all = await Promise.all(Array.from({ length: 6 }, () => heldRun()));
  for (const { holder } of all) await falterHeartbeat(holder.id);
  const rounds = await Promise.all([sweep(), sweep(), sweep()]);
  expect(rounds.flatMap(({ taken }) => taken).toSorted()).toEqual(all.map(({ runId }) => runId).toSorted());
  for (const { runId } of all) expect(await run(runId)).toMatchObject({ fencing_token: 2, crash_count: 1 });
});

it("a claim that raced with its worker's burial is found in the next round", async () => {
  const { holder, runId } = await heldRun();
  await db.query("update capstan.workers set ended_at = now(), end_reason = 'stopped' where id = $1", [holder.id]);
  expect(await sweep()).toEqual({ buried: 0, taken: [runId] });
});

it("frees jobs that a dead worker had locked (graphile/worker #204, #222)", async () => {
  const { holder } = await heldRun();
  await db.query("update capstan.workers set queue_pools = '{pool-of-the-dead}' where id = $1", [holder.id]);
  await db.query("select graphile_worker.add_job('capstan/turn/plain', '{}')");
  await db.query("update graphile_worker._private_jobs set locked_at = now(), locked_by = 'pool-of-the-dead'");
  await falterHeartbeat(holder.id);
  const round = new Sweep({
    pool: db,
    named: same,
    workerSchema: "graphile_worker",
    log: silentLog,
    everyMs: 60_000,
    lostAfterMs: 60_000,
    workerId: () => sweeper.id,
    mayBury: () => true,
    onTaken: () => {},
    settleQuotas: () => Promise.resolve(),
    releaseForgotten: () => Promise.resolve(),
  });
  await round.round();
  expect((await db.query("select locked_by from graphile_worker._private_jobs where locked_by = 'pool-of-the-dead'")).rows).toEqual([]);
  expect((await db.query("select queue_pools from capstan.workers where id = $1", [holder.id])).rows).toEqual([{ queue_pools: [] }]);
});

it("frees jobs of a worker that died before it had named its queue", async () => {
  await db.query("select graphile_worker.add_job('capstan/turn/plain', '{}')");
  await db.query("update graphile_worker._private_jobs set locked_at = now() - interval '1 minute', locked_by = 'pool-of-nobody' where locked_by is null");
  const round = (lostAfterMs: number) =>
    new Sweep({
      pool: db,
      named: same,
      workerSchema: "graphile_worker",
      log: silentLog,
      everyMs: 60_000,
      lostAfterMs,
      workerId: () => sweeper.id,
      mayBury: () => true,
      onTaken: () => {},
      settleQuotas: () => Promise.resolve(),
      releaseForgotten: () => Promise.resolve(),
    }).round();
  const locked = async () => (await db.query("select from graphile_worker._private_jobs where locked_by = 'pool-of-nobody'")).rowCount;
  // It may be one that is just starting.
  await round(120_000);
  expect(await locked()).toBeGreaterThan(0);
  await round(5_000);
  expect(await locked()).toBe(0);
  await db.query("select graphile_worker.force_unlock_workers('{pool-of-nobody}')");
});

it("buries nobody while it cannot trust its own view of the database", async () => {
  const { holder } = await heldRun();
  await falterHeartbeat(holder.id);
  const blind = new Sweep({
    pool: db,
    named: same,
    workerSchema: "graphile_worker",
    log: silentLog,
    everyMs: 60_000,
    lostAfterMs: 60_000,
    workerId: () => sweeper.id,
    mayBury: () => false,
    onTaken: () => {},
    settleQuotas: () => Promise.resolve(),
    releaseForgotten: () => Promise.resolve(),
  });
  await blind.round();
  expect(await workerRow(holder.id)).toEqual({ ended_at: null, end_reason: null });
  await sweep();
});

it("wishes again for a run that lost its job, and not for one whose job waits", async () => {
  await db.query("delete from graphile_worker._private_jobs");
  const lost = await bench.enqueue();
  await db.query("delete from capstan.wishes where run_id = $1", [lost]);
  await db.query("update capstan.runs set updated_at = now() - interval '1 minute' where id = $1", [lost]);
  const find = async () => (await db.query<{ run_id: string }>(LOST_JOBS_SQL, [15_000])).rows.map((row) => row.run_id);
  await db.query("select graphile_worker.add_job('capstan/turn/plain', json_build_object('runId', $1::text))", [lost]);
  expect(await find()).toEqual([]);
  await db.query("delete from graphile_worker._private_jobs");
  expect(await find()).toEqual([lost]);
  expect(await find()).toEqual([]);
});
