/** The database restarts, or cuts connections, while summaries are in the making: the pool of summaries stays up and every run ends. */
import { afterAll, describe, expect, it } from "vitest";
import { migrate } from "../../src/store/migrate.ts";
import { startTestPostgres, type TestPostgres } from "../../src/testing/postgres.ts";
import { compactionBench } from "./compaction-bench.ts";
import { tasksOf } from "./compaction-checks.ts";
import { eventually, runFacts } from "./journal.ts";

// A server of its own: restarting the suite's would disturb the files that run beside this one.
const postgres: TestPostgres = await startTestPostgres({ mode: process.env["CAPSTAN_TEST_POSTGRES"] === "container" ? "container" : "embedded" });
const database = await postgres.createDatabase();
await migrate({ connectionString: database.url });
const bench = compactionBench(database.url);
const { db } = bench;
afterAll(() => postgres.stop());
const timeout = 300_000;

/** Runs that wait at the hard line, that go on meanwhile, and that prepare a summary. */
const enqueueAll = (pool: string): Promise<string[]> => Promise.all(["hard", "hard", "share", "bytes", "overflow", "self-once"].map((name) => bench.enqueue(name, { pool })));

async function allEnd(runs: readonly string[]): Promise<void> {
  for (const runId of runs) {
    await bench.rests(runId);
    expect(await runFacts(db, runId)).toMatchObject({ state: "completed" });
    expect(await bench.breaches(runId)).toEqual([]);
  }
  // Two of them could not have gone on without.
  for (const runId of runs.slice(0, 2)) expect((await tasksOf(db, runId)).some(({ state }) => state === "applied")).toBe(true);
}

const summaryInFlight = (runs: readonly string[]): Promise<unknown> =>
  eventually(
    "a summary is in the making",
    async () => (await db.query("select from capstan.compaction_tasks where run_id = any($1::uuid[]) and state = 'summarizing'", [runs])).rowCount !== 0,
    { withinMs: 60_000 },
  );

describe("Postgres restarted while summaries are in flight", () => {
  it.each(["fast", "immediate"] as const)("%s: both pools stay up and all runs end", { timeout }, async (mode) => {
    const pool = `restart-${mode}`;
    const turns = await bench.child(pool);
    const summaries = await bench.child("summarize", { env: { CHAOS_SUMMARY: "1000" } });
    const runs = await enqueueAll(pool);
    await summaryInFlight(runs);
    await postgres.restart(mode);
    await allEnd(runs);
    expect([turns.isAlive(), summaries.isAlive()]).toEqual([true, true]);
    await Promise.all([turns.stop(), summaries.stop()]);
  });
});

it("all connections of both workers terminated again and again: they stay up and all runs end", { timeout }, async () => {
  const pool = "cut";
  // Beats come through in between: the worker is never taken for dead.
  const env = { CAPSTAN_LEASE_MS: "8000", CAPSTAN_HEARTBEAT_MS: "300", CHAOS_SUMMARY: "400" };
  const summaries = await bench.child("summarize", { env });
  const turns = await bench.child(pool, { env });
  const runs = await enqueueAll(pool);
  await summaryInFlight(runs);
  for (let cut = 0; cut < 5; cut++) {
    await db.query("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name like 'capstan%' and pid <> pg_backend_pid()");
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
  await allEnd(runs);
  expect([turns.isAlive(), summaries.isAlive()]).toEqual([true, true]);
  // And it is of use afterwards: nothing stays locked.
  const next = await bench.enqueue("hard", { pool });
  await allEnd([next, next]);
  await Promise.all([turns.stop(), summaries.stop()]);
});
