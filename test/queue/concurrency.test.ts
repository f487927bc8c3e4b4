/** Concurrency keys in the database: who goes, who waits, who is next, whatever happens at the same moment. */
import { expect, it } from "vitest";
import type { EnqueueOptions } from "../../src/client/enqueue.ts";
import { ConcurrencyConflictError } from "../../src/client/errors.ts";
import { newEvent } from "../../src/domain/event.ts";
import { ADMIT_SQL, PROMOTE_SQL } from "../../src/queue/sql/relay.ts";
import { LINES_SQL } from "../../src/queue/sql/sweep.ts";
import { createTestDatabase } from "../support/database.ts";
import { claim, patch, queueBench, untilBlocked } from "./queue-bench.ts";

const database = await createTestDatabase();
const bench = queueBench(database.url);
const { db } = bench;
const { store } = await bench.worker();

/** Runs of a key in the order of their enqueue: `go` (let go or at work), `door`, `line` or how they ended. */
async function places(key: string): Promise<string[]> {
  const { rows } = await db.query<{ place: string }>(
    `select case when r.finished_at is not null then r.state when w.run_id is null or w.ready or r.state <> 'queued' then 'go'
       when w.at = capstan.in_line() then 'line' else 'door' end as place
     from capstan.runs r left join capstan.wishes w on w.run_id = r.id where r.concurrency_key like '%/' || $1 order by r.id`,
    [key],
  );
  return rows.map(({ place }) => place);
}

/** What a worker's timers do at the next round. */
async function round(): Promise<void> {
  const { rows } = await db.query<{ keyed: boolean }>(PROMOTE_SQL);
  if (rows[0]?.keyed === true) await db.query(ADMIT_SQL);
}

const enqueue = (key: string, more: Partial<NonNullable<EnqueueOptions["concurrency"]>> = {}, options: EnqueueOptions = {}): Promise<string> =>
  bench.enqueue({ ...options, concurrency: { key, ...more } });
const cancel = (runId: string, by: Pick<typeof db, "query"> = db) => by.query("select capstan.cancel_run($1)", [runId]);

/** A worker takes the run up and ends it in one append. */
async function work(runId: string): Promise<void> {
  const done = await store.append(
    claim(runId, { release: true, patch: { ...patch, status: "completed" }, events: [newEvent("run.completed", { output: "done" }, { turn: 1, attempt: 0, epoch: 0 })] }),
  );
  expect(done.kind).toBe("appended");
}

it("lets one run of a key go at a time and the others in the order of their enqueue", async () => {
  const runs = [await enqueue("one"), await enqueue("one"), await enqueue("one"), await enqueue("one")];
  expect(await places("one")).toEqual(["go", "door", "door", "door"]);
  await round();
  expect(await places("one")).toEqual(["go", "line", "line", "line"]);
  await cancel(runs[0] as string);
  expect(await places("one")).toEqual(["cancelled", "go", "line", "line"]);
  // One that waits and is cancelled leaves no place.
  await cancel(runs[2] as string);
  expect(await places("one")).toEqual(["cancelled", "go", "cancelled", "line"]);
  await cancel(runs[1] as string);
  expect(await places("one")).toEqual(["cancelled", "cancelled", "cancelled", "go"]);
  await cancel(runs[3] as string);
  expect(await enqueue("one")).toEqual(expect.any(String));
  expect((await places("one")).at(-1)).toBe("go");
});

it("keys are of a tenant, and of an agent unless they are for all", async () => {
  await enqueue("mine");
  await enqueue("mine", {}, { tenant: "another" });
  await enqueue("mine", { scope: "all" });
  const { rows } = await db.query("select concurrency_key, concurrency_limit from capstan.runs where concurrency_key like '%/mine' order by id");
  expect(rows).toEqual([
    { concurrency_key: "plain/mine", concurrency_limit: 1 },
    { concurrency_key: "plain/mine", concurrency_limit: 1 },
    { concurrency_key: "*/mine", concurrency_limit: 1 },
  ]);
  expect(await places("mine")).toEqual(["go", "go", "go"]);
});

it("several may go when the limit says so; each end lets exactly one go, also when several end in one transaction or at once", async () => {
  const runs: string[] = [];
  for (let n = 0; n < 9; n++) runs.push(await enqueue("three", { limit: 3 }));
  await round();
  expect(await places("three")).toEqual(["go", "go", "go", ...Array<string>(6).fill("line")]);
  await db.query("select capstan.cancel_run($1), capstan.cancel_run($2)", [runs[0], runs[1]]);
  expect(await places("three")).toEqual(["cancelled", "cancelled", "go", "go", "go", "line", "line", "line", "line"]);
  // Three end, each in a transaction of its own: the second waits for the first.
  const one = await bench.connection();
  await one.query("begin");
  await cancel(runs[2] as string, one);
  const others = [cancel(runs[3] as string), cancel(runs[4] as string)];
  await untilBlocked(db, "%cancel_run%");
  await one.query("commit");
  await Promise.all(others);
  expect(await places("three")).toEqual([...Array<string>(5).fill("cancelled"), "go", "go", "go", "line"]);
});

it("an enqueue that commits after the holder's end is not forgotten, and neither waits for the other", async () => {
  const holder = await enqueue("late");
  const one = await bench.connection();
  await one.query("begin");
  await one.query("select capstan.enqueue_run(agent => 'plain', input => '1', concurrency_key => 'late')");
  // While the caller's transaction is open, the holder ends.
  await cancel(holder);
  await one.query("commit");
  expect(await places("late")).toEqual(["cancelled", "door"]);
  await round();
  expect(await places("late")).toEqual(["cancelled", "go"]);
});

it("of two enqueues at the same moment one goes", async () => {
  const one = await bench.connection();
  await one.query("begin");
  await one.query("select capstan.enqueue_run(agent => 'plain', input => '1', concurrency_key => 'same')");
  await enqueue("same");
  await round();
  await one.query("commit");
  expect((await places("same")).toSorted()).toEqual(["door", "go"]);
  await db.query("update capstan.wishes set at = capstan.now() where not ready and at < capstan.in_line()");
  await round();
  expect((await places("same")).toSorted()).toEqual(["go", "line"]);
});

it("one that is to start later holds nothing until its time has come", async () => {
  const later = await enqueue("timed", {}, { runAt: new Date(Date.now() + 3_600_000) });
  const now = await enqueue("timed");
  expect(await places("timed")).toEqual(["door", "door"]);
  await round();
  expect(await places("timed")).toEqual(["door", "go"]);
  const traveller = await bench.connection();
  await traveller.query("select set_config('capstan_clock.offset', '2 hours', false)");
  await traveller.query(ADMIT_SQL);
  expect(await places("timed")).toEqual(["line", "go"]);
  await cancel(now);
  expect(await places("timed")).toEqual(["go", "cancelled"]);
  await cancel(later);
});

it("replace cancels whoever has held the key longest, and takes the place before those in line", async () => {
  const [first, second] = [await enqueue("swap", { limit: 2 }), await enqueue("swap", { limit: 2 })];
  await enqueue("swap", { limit: 2 });
  await round();
  expect(await places("swap")).toEqual(["go", "go", "line"]);
  const newest = await enqueue("swap", { limit: 2, onConflict: "replace" });
  expect(await places("swap")).toEqual(["cancelled", "go", "line", "go"]);
  const { rows } = await db.query("select payload ->> 'reason' as reason from capstan.events where run_id = $1 and type = 'run.cancelled'", [first]);
  expect(rows).toEqual([{ reason: `replaced by run ${newest}` }]);
  await cancel(second);
  expect(await places("swap")).toEqual(["cancelled", "cancelled", "go", "go"]);
});

it("refuse names the run that holds the key, and makes none", async () => {
  const holder = await enqueue("taken");
  const refused = await enqueue("taken", { onConflict: "refuse" }, { idempotencyKey: "again" }).catch((error: unknown) => error);
  expect(refused).toBeInstanceOf(ConcurrencyConflictError);
  expect(refused).toMatchObject({ code: "CONCURRENCY_CONFLICT", runId: holder, details: { run_id: holder, limit: 1 }, message: expect.stringContaining(holder) as string });
  expect(await places("taken")).toEqual(["go"]);
  await cancel(holder);
  const runId = await enqueue("taken", { onConflict: "refuse" }, { idempotencyKey: "again" });
  // The same enqueue once more is the same run, not a conflict with it.
  expect(await enqueue("taken", { onConflict: "refuse" }, { idempotencyKey: "again" })).toBe(runId);
});

it("a parked and a paused run hold their key; a retry waits for it as a new run does", async () => {
  const runId = await enqueue("kept");
  await db.query("select capstan.pause_run($1)", [runId]);
  await enqueue("kept");
  await round();
  expect(await places("kept")).toEqual(["go", "line"]);
  await db.query("select capstan.resume_run($1)", [runId]);
  // Parked with a timer, then cancelled: its wish is not ready, and its place is free all the same.
  const parked = await store.append(claim(runId, { release: true, wish: new Date(Date.now() + 3_600_000), patch: { ...patch, status: "waiting", waitReason: "timer" } }));
  expect(parked.kind).toBe("appended");
  await cancel(runId);
  expect(await places("kept")).toEqual(["cancelled", "go"]);
  await db.query("select capstan.retry_run($1)", [runId]);
  expect(await places("kept")).toEqual(["cancelled", "go", "door"]);
});

it("a run's own end gives its place on in the same commit", async () => {
  const runId = await enqueue("ends");
  await enqueue("ends");
  await round();
  await work(runId);
  expect(await places("ends")).toEqual(["completed", "go"]);
});

it("a place that no end gave on is found along the lines", async () => {
  const runId = await enqueue("lost");
  await enqueue("lost");
  await round();
  // With a snapshot from before the second joined the line, an end sees nobody in it.
  const one = await bench.connection();
  await db.query("update capstan.wishes set at = capstan.now() where not ready and at = capstan.in_line()");
  await one.query("begin isolation level repeatable read");
  await one.query("select 1");
  await round();
  await cancel(runId, one);
  await one.query("commit");
  expect(await places("lost")).toEqual(["cancelled", "line"]);
  const { rows } = await db.query<{ started: number }>(LINES_SQL);
  expect(rows[0]?.started).toBe(1);
  expect(await places("lost")).toEqual(["cancelled", "go"]);
});

it("says what is wrong with a key", async () => {
  const bad = async (args: string) => ((await db.query(`select capstan.enqueue_run(agent => 'plain', input => '1', ${args})`).catch((error: unknown) => error)) as Error).message;
  expect(await bad("concurrency_limit => 2")).toContain("belong to a concurrency_key");
  expect(await bad("concurrency_key => 'k', concurrency_limit => 0")).toContain("outside 1..10000");
  expect(await bad("concurrency_key => 'k', on_conflict => 'wait'")).toContain("queue, replace or refuse");
  expect(await bad("concurrency_key => 'k', concurrency_scope => 'tenant'")).toContain("agent or all");
  expect(await bad("concurrency_key => ''")).toContain("1 to 200 characters");
});
