/** What outlives every process: timers of a month, approvals that expire, runs that begin later, and everything paused. The clock is moved; nobody waits. */
import pg from "pg";
import { expect, it } from "vitest";
import { createTestDatabase } from "../support/database.ts";
import { ended, lifeBench, waitsFor } from "./life-bench.ts";

const database = await createTestDatabase();
const bench = lifeBench(database.url);
const { db } = bench;

/** Time passes for this file's database alone, in sessions that begin from now on. It is dropped afterwards: nobody sets it back. */
async function moveClock(offset: string): Promise<void> {
  const admin = new pg.Client({ connectionString: database.url });
  await admin.connect();
  await admin.query(`alter database ${database.name} set capstan_clock."offset" = '${offset}'`);
  await admin.query("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()");
  await admin.end();
}

it("everything paused stays so over a restart of all processes: nothing is begun, and all is finished after the resume", { timeout: 180_000 }, async () => {
  const pool = "paused";
  const runs = await Promise.all(Array.from({ length: 6 }, () => bench.enqueue("steps", { pool })));
  const family = await bench.enqueue("parent-of-32", { pool });
  const asking = await bench.enqueue("asks", { pool });
  const first = await Promise.all([bench.child(pool), bench.child(pool)]);
  await bench.until(asking, "the run waits for a decision", waitsFor("approval"));
  await bench.until(family, "children are at work", waitsFor("children"));
  expect((await db.query("select capstan.pause_all(reason => 'a restart') as done")).rows).toEqual([{ done: true }]);
  // Half of the processes are let finish, half are not.
  await first[0]?.stop();
  first[1]?.kill("SIGKILL");
  await first[1]?.ended;
  const queued = await bench.enqueue("steps", { pool });
  await db.query("select capstan.decide($1, 'approve')", [(await bench.waits(asking))[0]?.id]);
  const calls = async (): Promise<number> => [...(await everyRun(family)), ...runs, asking, queued].flatMap((id) => bench.effects(id)).length;
  const before = await calls();
  const second = await Promise.all([bench.child(pool), bench.child(pool)]);
  await expect.poll(async () => (await db.query("select from capstan.workers where ended_at is null and pool = $1", [pool])).rows.length, { timeout: 20_000 }).toBe(2);
  await expect.poll(async () => (await db.query("select from capstan.runs where worker_id is not null and pool = $1", [pool])).rows.length, { timeout: 20_000 }).toBe(0);
  // Jobs for everything, which the new processes take: each comes to nothing.
  const { rows: open } = await db.query<{ id: string; agent: string }>("select id, agent from capstan.runs where finished_at is null and pool = $1", [pool]);
  for (const { id, agent } of open) await db.query("select graphile_worker.add_job($1, json_build_object('runId', $2::text))", [`capstan/${pool}/${agent}`, id]);
  await expect.poll(async () => (await db.query("select from graphile_worker.jobs")).rows.length, { timeout: 20_000 }).toBe(0);
  expect(await calls()).toBe(before);
  expect((await db.query("select from capstan.runs where worker_id is not null")).rows).toEqual([]);
  expect((await db.query("select state from capstan.runs where id = $1", [queued])).rows).toEqual([{ state: "queued" }]);
  expect((await db.query("select capstan.resume_all() as done")).rows).toEqual([{ done: true }]);
  for (const runId of [...runs, family, asking, queued]) expect(await bench.until(runId, "the run ends", ended)).toMatchObject({ state: "completed" });
  await bench.intact([...runs, family, asking, queued, ...(await everyRun(family))]);
  await Promise.all(second.map((worker) => worker.stop()));
});

async function everyRun(root: string): Promise<string[]> {
  return (await bench.tree(root)).map(({ id }) => id).filter((id) => id !== root);
}

it("a timer of 30 days, an approval's expiry and a run for next month come due after all processes were replaced", { timeout: 180_000 }, async () => {
  const pool = "month";
  const first = await Promise.all([bench.child(pool), bench.child(pool)]);
  const sleeping = await bench.enqueue("sleeps", { pool });
  const expiring = await bench.enqueue("expires-late", { pool });
  const later = await bench.enqueue("leaf", { pool, runAt: new Date(Date.now() + 30 * 86_400_000) });
  await bench.until(sleeping, "the run sleeps", waitsFor("timer"));
  await bench.until(expiring, "the run waits for a decision", waitsFor("approval"));
  for (const worker of first) worker.kill("SIGKILL");
  await Promise.all(first.map((worker) => worker.ended));
  // Not before its time, whoever comes.
  await moveClock("29 days 23 hours");
  const second = await Promise.all([bench.child(pool), bench.child(pool)]);
  const proof = await bench.enqueue("leaf", { pool });
  await bench.until(proof, "the new processes work", ended);
  expect((await db.query("select state from capstan.runs where id = any($1) order by state", [[sleeping, expiring, later]])).rows.map(({ state }) => state)).toEqual([
    "queued",
    "waiting",
    "waiting",
  ]);
  await Promise.all(second.map((worker) => worker.stop()));
  await moveClock("30 days 1 hour");
  const third = await bench.child(pool);
  for (const runId of [sleeping, expiring, later]) expect(await bench.until(runId, "the run ends", ended)).toMatchObject({ state: "completed" });
  expect((await bench.of(sleeping, "tool.completed")).map(({ payload }) => payload.output)).toEqual([{ woke_at: expect.any(String) }]);
  expect((await bench.of(expiring, "approval.decided")).map(({ payload }) => [payload.decision, payload.expired])).toEqual([["deny", true]]);
  expect(bench.effects(expiring).filter(({ kind }) => kind === "once")).toEqual([]);
  await bench.intact([expiring, later]);
  await third.stop();
});
