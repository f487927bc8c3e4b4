/** The database restarts, goes away, has no connection free, cuts connections: workers stay up and every run ends. */
import pg from "pg";
import { afterAll, describe, expect, it } from "vitest";
import { createCapstan } from "../../src/main.ts";
import { migrate } from "../../src/store/migrate.ts";
import { startTestPostgres, type TestDatabase, type TestPostgres } from "../../src/testing/postgres.ts";
import type { FaultBench } from "./fault-bench.ts";
import { ended, faultBench } from "./fault-bench.ts";
import { eventually } from "./journal.ts";

// A server of its own: restarting the suite's would disturb the files that run beside this one.
const postgres: TestPostgres = await startTestPostgres({ mode: process.env["CAPSTAN_TEST_POSTGRES"] === "container" ? "container" : "embedded" });
const database: TestDatabase = await postgres.createDatabase();
await migrate({ connectionString: database.url });
const bench: FaultBench = faultBench(database.url);
const { db } = bench;
afterAll(() => postgres.stop());

const enqueueMany = (pool: string) => Promise.all(["long", "long", "long", "big", "big"].map((name) => bench.enqueue(name, { pool })));

async function allEnd(runs: readonly string[]): Promise<void> {
  for (const runId of runs) {
    await bench.until(runId, "the run ends", ended, 120_000);
    expect(await bench.breaches(runId)).toEqual([]);
  }
}

/** Backends of everything but this test's own pool. */
const terminateWorkers = () =>
  db.query("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name like 'capstan%' and pid <> pg_backend_pid()");

describe("Postgres restarted while turns are in flight", () => {
  it.each(["fast", "immediate"] as const)("%s: workers stay up and all runs end (timgit/pg-boss #365, #381)", { timeout: 240_000 }, async (mode) => {
    const pool = `restart-${mode}`;
    const worker = await bench.child(pool);
    const runs = await enqueueMany(pool);
    for (const runId of runs) await bench.untilEffect(runId, "c0_0");
    await postgres.restart(mode);
    await allEnd(runs);
    expect(worker.isAlive()).toBe(true);
    await worker.stop();
  });
});

it("all connections terminated again and again while results are recorded: all runs end, nothing is done twice (graphile/worker #254)", { timeout: 240_000 }, async () => {
  const pool = "cut";
  const worker = await bench.child(pool, { env: { CAPSTAN_LEASE_MS: "4000", CAPSTAN_HEARTBEAT_MS: "300", CAPSTAN_SWEEP_MS: "300", CAPSTAN_LOST_JOB_MS: "2000" } });
  const runs = await enqueueMany(pool);
  for (const runId of runs) await bench.untilEffect(runId, "c0_0");
  for (let cut = 0; cut < 5; cut++) {
    await terminateWorkers();
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
  await allEnd(runs);
  expect(worker.isAlive()).toBe(true);
  // The beats came through often enough, so the worker kept its runs: what is in the journal was done once.
  for (const runId of runs) {
    const keys = bench.effects(runId).flatMap(({ kind, key }) => (kind === "once" ? [key] : []));
    expect(keys.length).toBe(new Set(keys).size);
  }
  // The queue works on after its runner was built again: a new run starts at once and nothing stays locked.
  const next = await bench.enqueue("long", { pool });
  await bench.until(next, "a run after the cuts", ended);
  await worker.stop();
});

describe("a database that is away for 20 s", () => {
  const pool = "away";
  it("worker and enqueue-only process log it, stay up and go on (timgit/pg-boss #365, #381)", { timeout: 240_000 }, async () => {
    const worker = await bench.child(pool, { env: {} });
    const lines: string[] = [];
    const tell = (fields: object, message: string): number => lines.push(`${message} ${JSON.stringify(fields)}`);
    // Enqueues alone: no worker, no heartbeat, nothing but the client's pool.
    const client = createCapstan({ connectionString: database.url, agents: [], observability: { log: { debug: tell, info: tell, warn: tell, error: tell } } });
    const runs = await enqueueMany(pool);
    for (const runId of runs) await bench.untilEffect(runId, "c0_0");
    await away(20_000, async () => {
      await expect(client.enqueue("long", "while it is away", { pool })).rejects.toThrow(/cannot be reached|not currently accepting connections/);
    });
    const late = await eventually("the client enqueues again", () => client.enqueue("long", "after", { pool }).catch(() => undefined));
    await allEnd([...runs, late.id]);
    expect(worker.isAlive()).toBe(true);
    expect(worker.log()).toMatch(/outcome unknown|trying again|round failed|cannot be reached/);
    await client.close();
    await worker.stop();
  });
});

it("no connection free at the start (53300): the worker waits and then works", { timeout: 120_000 }, async () => {
  const pool = "crowded";
  const runId = await bench.enqueue("long", { pool });
  await db.query(`alter database "${database.name}" connection limit 0`);
  // A superuser passes any limit, so workers come as a role of their own.
  await db.query(
    "do $$ begin if not exists (select from pg_roles where rolname = 'crowd') then create role crowd login password 'crowd' in role pg_read_all_data, pg_write_all_data; end if; end $$",
  );
  await db.query("grant usage, create on schema capstan, graphile_worker to crowd");
  await db.query("grant all on all tables in schema capstan, graphile_worker to crowd");
  await db.query("grant all on all sequences in schema capstan, graphile_worker to crowd");
  await db.query("grant execute on all functions in schema capstan, graphile_worker to crowd");
  await db.query(
    "do $$ declare t record; begin for t in select c.oid::regclass as name from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'graphile_worker' and c.relkind = 'r' loop execute format('create policy crowd_all on %s to crowd using (true) with check (true)', t.name); end loop; end $$",
  );
  const url = new URL(database.url);
  url.username = "crowd";
  url.password = "crowd";
  const starting = bench.child(pool, { url: url.toString() });
  await eventually("the worker is refused", async () => {
    const probe = new pg.Client({ connectionString: url.toString() });
    return probe.connect().then(
      () => probe.end().then(() => false),
      (error: pg.DatabaseError) => error.code === "53300",
    );
  });
  // Long enough for it to have tried.
  await new Promise((resolve) => setTimeout(resolve, 3_000));
  await db.query(`alter database "${database.name}" connection limit -1`);
  const worker = await starting;
  expect(worker.workerId).not.toBe("");
  await bench.until(runId, "the run ends", ended);
  await worker.stop();
});

/** Nobody can connect and every connection is cut, for so long. */
async function away(ms: number, meanwhile: () => Promise<void>): Promise<void> {
  const admin = new pg.Client({ connectionString: postgres.url });
  await admin.connect();
  try {
    await admin.query(`alter database "${database.name}" allow_connections false`);
    await admin.query("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", [database.name]);
    const until = performance.now() + ms;
    await meanwhile();
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, until - performance.now())));
  } finally {
    await admin.query(`alter database "${database.name}" allow_connections true`);
    await admin.end();
  }
}
