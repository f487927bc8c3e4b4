/** Workers of summaries, and of turns beside them, that are suspended, blocked, slow or dead at the worst moment. */
import pg from "pg";
import { describe, expect, it } from "vitest";
import { createTestDatabase } from "../support/database.ts";
import { compactionBench } from "./compaction-bench.ts";
import { tasksOf } from "./compaction-checks.ts";
import { SUMMARY } from "./compaction-scenarios.ts";
import { eventually, runFacts } from "./journal.ts";

const database = await createTestDatabase();
const bench = compactionBench(database.url);
const { db } = bench;
const timeout = 300_000;

describe("a worker of summaries", () => {
  it("that is suspended for longer than its lease hands nothing in when it wakes: the task was done by another, once", { timeout }, async () => {
    const pool = "suspended";
    const turns = await bench.worker(pool);
    const runId = await bench.parkedAndAsked(pool);
    const stale = await bench.child("summarize", { env: { CHAOS_SUMMARY: "1500" } });
    await eventually("it works", () => bench.summaries(runId).length === 1, { withinMs: 60_000 });
    stale.kill("SIGSTOP");
    const { fencing_token: staleToken } = await bench.untilTask(runId, "it holds the task", ({ state }) => state === "summarizing");
    const fresh = await bench.child("summarize");
    const applied = await bench.untilTask(runId, "the other worker's summary is applied", ({ state }) => state === "applied");
    expect(applied.fencing_token).toBeGreaterThan(staleToken);
    stale.kill("SIGCONT");
    await eventually("a new incarnation of the suspended process", async () => {
      const { rowCount } = await db.query("select from capstan.workers where pid = $1 and id <> $2 and ended_at is null", [stale.pid, stale.workerId]);
      return rowCount === 1;
    });
    // A stop waits for what is in flight: its summary has been made by then, and has not been taken.
    await stale.stop();
    expect(bench.summaries(runId)).toHaveLength(2);
    expect(await tasksOf(db, runId)).toEqual([applied]);
    expect(await bench.of(runId, "context.compacted")).toHaveLength(1);
    expect(await bench.breaches(runId)).toEqual([]);
    await Promise.all([turns.stop(), fresh.stop()]);
  });

  it("under an older token is refused by the database itself", { timeout }, async () => {
    const pool = "token";
    const turns = await bench.worker(pool);
    const runId = await bench.parkedAndAsked(pool);
    const task = await bench.untilTask(runId, "the task waits", ({ state }) => state === "requested");
    const stale = await bench.child("summarize", { env: { CHAOS_SUMMARY: "60000" } });
    const held = await bench.untilTask(runId, "it holds the task", ({ state }) => state === "summarizing");
    stale.kill("SIGKILL");
    await stale.ended;
    const handIn = async (token: number): Promise<unknown> => (await db.query("select capstan.finish_compaction($1, $2, '{}', null) as done", [task.id, token])).rows[0]?.done;
    const heir = await bench.child("summarize", { env: { CHAOS_SUMMARY: "60000" } });
    const taken = await bench.untilTask(runId, "another holds it", ({ state, fencing_token: token }) => state === "summarizing" && token > held.fencing_token);
    expect(await handIn(held.fencing_token)).toBe(false);
    expect(await tasksOf(db, runId)).toEqual([taken]);
    heir.kill("SIGKILL");
    const fresh = await bench.summarizer();
    await bench.rests(runId);
    expect(await handIn(taken.fencing_token)).toBe(false);
    expect(await bench.of(runId, "context.compacted")).toHaveLength(1);
    expect(await bench.breaches(runId)).toEqual([]);
    await Promise.all([turns.stop(), fresh.stop()]);
  });

  it.each(["the statement comes through", "its connection is cut"] as const)("that dies inside its hand-in: %s (C42)", { timeout }, async (outcome) => {
    const pool = `inside-${outcome.length}`;
    const turns = await bench.worker(pool);
    const runId = await bench.parkedAndAsked(pool);
    await bench.until(runId, "the run is let go", ({ worker_id: holder, inbox_pending: pending }) => holder === null && pending === 0);
    const blocker = new pg.Client({ connectionString: database.url });
    await blocker.connect();
    await blocker.query("begin");
    await blocker.query("select from capstan.runs where id = $1 for update", [runId]);
    const victim = await bench.child("summarize");
    const handingIn = await eventually("it waits inside its hand-in", async () => {
      const { rows } = await db.query<{ pid: number }>(
        "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%finish_compaction%'",
      );
      return rows[0]?.pid;
    });
    victim.kill("SIGKILL");
    await victim.ended;
    if (outcome === "its connection is cut") await db.query("select pg_terminate_backend($1)", [handingIn]);
    await blocker.query("rollback");
    await blocker.end();
    const fresh = await bench.summarizer();
    await bench.rests(runId);
    expect(await bench.of(runId, "context.compacted")).toHaveLength(1);
    // What was stored is used; what was not is made once more.
    expect(bench.summaries(runId)).toHaveLength(outcome === "its connection is cut" ? 2 : 1);
    expect(await bench.breaches(runId)).toEqual([]);
    await Promise.all([turns.stop(), fresh.stop()]);
  });

  it("that blocks its process dies of it; after three the task is given up, visibly, and the run goes on", { timeout }, async () => {
    const pool = "blocking";
    const turns = await bench.worker(pool);
    const runId = await bench.parkedAndAsked(pool);
    for (let n = 1; n <= 3; n++) {
      const victim = await bench.child("summarize", { env: { CHAOS_SUMMARY: "block" } });
      expect(await victim.ended).toBe("SIGKILL");
      expect(bench.summaries(runId)).toHaveLength(n);
    }
    const fresh = await bench.summarizer();
    await bench.rests(runId);
    expect((await bench.of(runId, "compaction.failed")).map(({ payload }) => payload.reason)).toEqual(["interrupted"]);
    expect((await tasksOf(db, runId)).map(({ state }) => state)).toEqual(["failed"]);
    await db.query("select capstan.send(run_id => $1, payload => '\"go on\"')", [runId]);
    await bench.until(runId, "the next answer", ({ state, turn }) => state === "waiting" && turn === 21);
    // With a summarizer that does its work, the next compaction is one.
    await db.query("select capstan.compact_run($1)", [runId]);
    await bench.until(runId, "the marker", async () => (await bench.of(runId, "context.compacted")).length === 1);
    await bench.rests(runId);
    expect(await bench.breaches(runId)).toEqual([]);
    await Promise.all([turns.stop(), fresh.stop()]);
  });

  it("whose summarizer never answers stops waiting for it, and asks again", { timeout }, async () => {
    const pool = "hanging";
    let calls = 0;
    const turns = await bench.worker(pool);
    const summaries = await bench.summarizer(async () => {
      calls++;
      return calls === 1 ? await new Promise<never>(() => {}) : { summary: SUMMARY };
    });
    const runId = await bench.parkedAndAsked(pool, "impatient");
    await bench.rests(runId);
    expect(calls).toBe(2);
    expect(await tasksOf(db, runId)).toMatchObject([{ state: "applied", attempts: 2 }]);
    const { rows } = await db.query("select outcome from capstan.usage_ledger where run_id = $1 and kind = 'summary' order by at", [runId]);
    expect(rows).toEqual([{ outcome: "timed_out" }, { outcome: "ok" }]);
    expect(await bench.breaches(runId)).toEqual([]);
    await Promise.all([turns.stop(), summaries.stop()]);
  });
});

it("the open call of a dead worker of turns is closed, and compaction goes on (C12)", { timeout }, async () => {
  const pool = "dead";
  const runId = await bench.enqueue("hard", { pool });
  // Two calls a turn: the tenth is the payment of the fifth turn, after which the next request does not fit.
  const victim = await bench.child(pool, { failpoint: "tool.executed:10" });
  expect(await victim.ended).toBe("SIGKILL");
  const summaries = await bench.summarizer();
  const turns = await bench.worker(pool);
  await bench.rests(runId);
  expect(await runFacts(db, runId)).toMatchObject({ state: "completed" });
  const [interrupted] = await bench.of(runId, "tool.interrupted");
  const [requested] = await bench.of(runId, "compaction.requested");
  const [marker] = await bench.of(runId, "context.compacted");
  expect(interrupted?.payload.name).toBe("pay");
  expect(requested?.seq).toBeGreaterThan(interrupted?.seq ?? Number.POSITIVE_INFINITY);
  expect(marker?.payload.task_id).toBe(requested?.payload.task_id);
  expect(await bench.breaches(runId)).toEqual([]);
  await Promise.all([turns.stop(), summaries.stop()]);
});
