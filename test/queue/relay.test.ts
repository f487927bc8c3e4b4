/** From wishes to jobs: how many, in which order, when, and never for somebody else. */
import { expect, it, onTestFinished } from "vitest";
import { Relay } from "../../src/queue/relay.ts";
import { DISPATCH_SQL, PROMOTE_SQL } from "../../src/queue/sql/relay.ts";
import { silentLog } from "../../src/telemetry/log.ts";
import { createTestDatabase } from "../support/database.ts";
import { queueBench, same } from "./queue-bench.ts";

const database = await createTestDatabase();
const bench = queueBench(database.url);
const { db } = bench;
await bench.worker();

const jobs = async (pool: string) =>
  (
    await db.query<{ run_id: string; priority: number }>(
      "select p.payload ->> 'runId' as run_id, j.priority from graphile_worker.jobs j join graphile_worker._private_jobs p on p.id = j.id where j.task_identifier = $1 order by j.id",
      [`capstan/${pool}/plain`],
    )
  ).rows;
const wishCount = async (pool: string) => (await db.query<{ n: number }>("select count(*)::int as n from capstan.wishes where pool = $1", [pool])).rows[0]?.n;
const dispatch = async (pool: string, room: number) => (await db.query<{ run_id: string }>(DISPATCH_SQL, [pool, ["plain"], room, ""])).rows.map((row) => row.run_id);

it("admits only a few more jobs than it has slots, however many runs wait (vercel/workflow #1332)", { timeout: 120_000 }, async () => {
  const pool = "crowd";
  await db.query("select count(capstan.enqueue_run(agent => 'plain', input => to_jsonb(n), pool => $1)) from generate_series(1, 2000) n", [pool]);
  let running = 0;
  const relay = new Relay({ pool: db, named: same, poolName: pool, agents: ["plain"], slots: 5, log: silentLog, running: () => running });
  onTestFinished(() => relay.stop());
  const untilJobs = async (count: number): Promise<void> => {
    for (const deadline = performance.now() + 10_000; (await jobs(pool)).length < count && performance.now() < deadline; await new Promise((resolve) => setTimeout(resolve, 10)))
      relay.poke();
  };
  relay.start();
  await untilJobs(6);
  // Poked as often as a busy worker would, it admits nothing while nothing starts, for as long as nothing does.
  for (let n = 0; n < 150; n++) {
    relay.poke();
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  const first = await jobs(pool);
  expect(first).toHaveLength(6);
  expect(await wishCount(pool)).toBe(1_994);
  // Five begin within a second: as many may stand ready behind them.
  running = 5;
  for (const { run_id: runId } of first.slice(0, 5)) relay.jobStarted(runId);
  await untilJobs(10);
  for (let n = 0; n < 50; n++) {
    relay.poke();
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  expect(await jobs(pool)).toHaveLength(10);
  expect(new Set((await jobs(pool)).map(({ run_id: runId }) => runId)).size).toBe(10);
});

it("takes lower priorities first, then whoever has waited longest", async () => {
  const pool = "order";
  const [late, urgent, first, second] = [
    await bench.enqueue({ pool, priority: 10 }),
    await bench.enqueue({ pool, priority: -10 }),
    await bench.enqueue({ pool }),
    await bench.enqueue({ pool }),
  ];
  const order: string[] = [];
  for (let n = 0; n < 4; n++) order.push(...(await dispatch(pool, 1)));
  expect(order).toEqual([urgent, first, second, late]);
  // In the queue they are all alike: a priority there would overtake other tenants' jobs.
  expect((await jobs(pool)).map(({ run_id: runId, priority }) => [runId, priority])).toEqual([urgent, first, second, late].map((runId) => [runId, 0]));
});

it("takes only wishes of its own pool and agents", async () => {
  const runId = await bench.enqueue({ pool: "mine" });
  expect(await dispatch("theirs", 10)).toEqual([]);
  expect((await db.query(DISPATCH_SQL, ["mine", ["another"], 10, ""])).rows).toEqual([]);
  expect(await dispatch("mine", 10)).toEqual([runId]);
});

it("two relays share the wishes, and a wish that one has taken the other does not wait for", async () => {
  const pool = "shared";
  const runs = await Promise.all(Array.from({ length: 30 }, () => bench.enqueue({ pool })));
  // A worker's runner makes its tasks known at its start; here nobody has.
  await db.query("select graphile_worker.add_job($1, '{}')", [`capstan/${pool}/plain`]);
  await db.query("delete from graphile_worker._private_jobs");
  const one = await bench.connection();
  await one.query("begin");
  const taken = (await one.query<{ run_id: string }>(DISPATCH_SQL, [pool, ["plain"], 10, ""])).rows.map((row) => row.run_id);
  const rest = await dispatch(pool, 100);
  expect(rest).toHaveLength(20);
  expect(rest.filter((runId) => taken.includes(runId))).toEqual([]);
  // A relay that dies takes its jobs with it: the wishes are back.
  await one.query("rollback");
  expect(new Set([...rest, ...(await dispatch(pool, 100))])).toEqual(new Set(runs));
  expect(await jobs(pool)).toHaveLength(30);
});

it("a run for later has no job until its time has come, and then gets one", async () => {
  const pool = "later";
  const runId = await bench.enqueue({ pool, runAt: new Date(Date.now() + 3_600_000) });
  await db.query(PROMOTE_SQL);
  expect(await dispatch(pool, 10)).toEqual([]);
  const soon = await bench.enqueue({ pool, runAt: new Date(Date.now() + 400) });
  const relay = new Relay({ pool: db, named: same, poolName: pool, agents: ["plain"], slots: 5, log: silentLog, running: () => 0 });
  onTestFinished(() => relay.stop());
  relay.start();
  for (const deadline = performance.now() + 10_000; (await jobs(pool)).length === 0 && performance.now() < deadline;) await new Promise((resolve) => setTimeout(resolve, 5));
  expect((await jobs(pool)).map(({ run_id }) => run_id)).toEqual([soon]);
  // Time passes for the database alone.
  const traveller = await bench.connection();
  await traveller.query("select set_config('capstan_clock.offset', '2 hours', false)");
  const promoted = await traveller.query<{ promoted: number }>(PROMOTE_SQL);
  expect(promoted.rows[0]?.promoted).toBe(1);
  for (const deadline = performance.now() + 10_000; (await jobs(pool)).length < 2 && performance.now() < deadline;) {
    relay.poke();
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  expect((await jobs(pool)).map(({ run_id }) => run_id)).toEqual([soon, runId]);
});

it("says when the next timer is due", async () => {
  const pool = "timers";
  await db.query("delete from capstan.wishes where not ready");
  expect((await db.query(PROMOTE_SQL)).rows).toEqual([{ promoted: 0, keyed: false, next_in_ms: null }]);
  await bench.enqueue({ pool, runAt: new Date(Date.now() + 60_000) });
  const next = (await db.query<{ next_in_ms: number }>(PROMOTE_SQL)).rows[0]?.next_in_ms ?? 0;
  expect(next).toBeGreaterThan(50_000);
  expect(next).toBeLessThanOrEqual(60_500);
});
