/** Ticks of schedules: each starts one run, whoever looks and whatever fails. */
import { afterEach, describe, expect, it } from "vitest";
import { eventSchemas } from "../../src/domain/event.ts";
import { DUE_SCHEDULES_SQL, TICK_SCHEDULE_SQL } from "../../src/queue/sql/schedules.ts";
import { createTestDatabase } from "../support/database.ts";
import { untilBlocked } from "./queue-bench.ts";
import { scheduleBench } from "./schedule-bench.ts";

const database = await createTestDatabase();
const { db, schedules, ahead, loop, runsOf, makeDue } = scheduleBench(database.url);
/** Never due by itself while the tests run. */
const yearly = "0 0 1 1 *";
const row = async (name: string) => (await db.query<Record<string, unknown>>("select * from capstan.schedules where name = $1", [name])).rows[0] as Record<string, unknown>;

afterEach(() => db.query("delete from capstan.schedules"));

it("a tick starts the run that the schedule describes, once", async () => {
  const input = { folder: "src", nothing: null };
  await schedules.create("nightly", {
    agent: "auditor",
    input,
    cron: yearly,
    tenant: "acme",
    subject: "the books",
    priority: 7,
    interactive: true,
    metadata: { team: "ops" },
    labels: ["b", "a"],
    pool: "slow",
    concurrency: { key: "books", limit: 2, onConflict: "refuse" },
  });
  await makeDue("nightly");
  const due = (await row("nightly"))["next_at"] as Date;
  const { schedules: worker } = loop(db);
  expect(await worker.round()).toBe(5_000);
  await worker.round();
  const [run, ...others] = await runsOf("nightly");
  expect(others).toEqual([]);
  expect(run).toMatchObject({ tick: due.toISOString(), key: `schedule:nightly:${due.toISOString()}` });
  expect((await db.query("select * from capstan.runs where id = $1", [run?.id])).rows[0]).toMatchObject({
    tenant: "acme",
    origin: "schedule",
    agent: "auditor",
    subject: "the books",
    priority: 7,
    interactive: true,
    metadata: { team: "ops" },
    labels: ["b", "a"],
    pool: "slow",
    concurrency_key: "auditor/books",
    concurrency_limit: 2,
  });
  const created = (await db.query<{ payload: unknown; actor: string }>("select payload, actor from capstan.events where run_id = $1", [run?.id])).rows[0];
  expect(eventSchemas["run.created"].parse(created?.payload)).toEqual({
    origin: "schedule",
    agent: "auditor",
    definition_sha: null,
    input,
    interactive: true,
    schedule: { name: "nightly", tick: due.toISOString() },
  });
  expect(created?.actor).toBe("schedule:nightly");
  expect((await db.query("select ready, pool from capstan.wishes where run_id = $1", [run?.id])).rows).toEqual([{ ready: true, pool: "slow" }]);
  expect(await schedules.get("nightly", { tenant: "acme" })).toMatchObject({
    next_at: `${due.getUTCFullYear() + 1}-01-01T00:00:00.000Z`,
    last_tick_at: due.toISOString(),
    last_run_id: run?.id,
    input,
  });
});

it("eight loops at once start one run per tick", async () => {
  const names = Array.from({ length: 30 }, (_, i) => `many-${i}`);
  for (const name of names) await schedules.create(name, { agent: "nobody", cron: yearly });
  await makeDue(...names);
  const loops = Array.from({ length: 8 }, () => loop(ahead("0 seconds")));
  // Until a round of each finds nothing left: those that lost a race look again.
  await Promise.all(
    loops.map(async ({ schedules: worker }) => {
      while ((await worker.round()) < 5_000);
    }),
  );
  for (const name of names) expect(await runsOf(name)).toHaveLength(1);
  expect(loops.flatMap(({ log }) => log.filter(({ level }) => level !== "debug"))).toEqual([]);
});

it("whoever comes second in a tick, or knows an older state of the schedule, starts nothing and waits for nobody", async () => {
  await schedules.create("raced", { agent: "nobody", cron: yearly });
  await makeDue("raced");
  const { rows } = await db.query<{ expected_at: string }>(DUE_SCHEDULES_SQL, [10, [], []]);
  const expectedAt = rows[0]?.expected_at as string;
  const tick = [`default`, `raced`, yearly, "UTC", expectedAt, [expectedAt], "2099-01-01T00:00:00Z"];
  const first = await db.connect();
  try {
    await first.query("begin");
    expect((await first.query(TICK_SCHEDULE_SQL, tick)).rows).toEqual([{ ticked: { runs: [expect.any(String)], error: null } }]);
    expect((await db.query(DUE_SCHEDULES_SQL, [10, [], []])).rows).toEqual([]);
    expect((await db.query(TICK_SCHEDULE_SQL, tick)).rows).toEqual([{ ticked: null }]);
    await first.query("commit");
  } finally {
    first.release();
  }
  expect((await db.query(TICK_SCHEDULE_SQL, tick)).rows).toEqual([{ ticked: null }]);
  await makeDue("raced");
  for (const [i, other] of [
    [2, "0 0 2 1 *"],
    [3, "Europe/Berlin"],
  ] as const)
    expect((await db.query(TICK_SCHEDULE_SQL, tick.with(i, other))).rows).toEqual([{ ticked: null }]);
  expect(await runsOf("raced")).toHaveLength(1);
});

it("does not spin while somebody else has the schedule in hand, and has it afterwards", async () => {
  await schedules.create("held", { agent: "nobody", cron: yearly });
  await makeDue("held");
  const { schedules: worker } = loop(db);
  const operator = await db.connect();
  try {
    await operator.query("begin");
    await operator.query("select from capstan.schedules where name = 'held' for update");
    expect(await worker.round()).toBe(1_000);
    await operator.query("commit");
  } finally {
    operator.release();
  }
  await worker.round();
  expect(await runsOf("held")).toHaveLength(1);
});

it("a worker that dies between the run and the commit has started nothing, and the next one starts it once", async () => {
  await schedules.create("cut", { agent: "nobody", cron: yearly });
  await makeDue("cut");
  // Holds every tick where its run is there and its commit is not.
  await db.query(`create function hold_tick() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(4711); return new; end $$`);
  await db.query("create trigger hold_tick after update of last_tick_at on capstan.schedules for each row execute function hold_tick()");
  const gate = await db.connect();
  try {
    await gate.query("select pg_advisory_lock(4711)");
    const dying = loop(ahead("0 seconds")).schedules.round();
    const broken = dying.then(String, String);
    const pid = await untilBlocked(db, "%capstan.tick_schedule%");
    // Another worker neither waits for it nor doubles it.
    const other = loop(ahead("0 seconds"));
    expect(await other.schedules.round()).toBe(1_000);
    await db.query("select pg_terminate_backend($1, 5000)", [pid]);
    expect(await broken).toMatch(/terminat/i);
    expect(await runsOf("cut")).toEqual([]);
    await gate.query("select pg_advisory_unlock(4711)");
    await other.schedules.round();
    expect(await runsOf("cut")).toHaveLength(1);
  } finally {
    gate.release(true);
    await db.query("drop trigger hold_tick on capstan.schedules");
    await db.query("drop function hold_tick");
  }
});

describe("after an outage", () => {
  const hourly = "0 * * * *";
  const hour = 3_600_000;

  it.each([
    ["none", 0],
    ["last", 1],
    ["all", 11],
  ] as const)("catching up %s starts %d of eleven missed runs", async (catchUp, count) => {
    const { next_at: nextAt } = await schedules.create("missed", { agent: "nobody", cron: hourly, catchUp });
    const first = Date.parse(nextAt as string);
    // Ten and a half hours after the first tick, by the database's clock.
    const worker = loop(ahead(`${first + 10.5 * hour - Date.now()} milliseconds`));
    await worker.schedules.round();
    const ticks = Array.from({ length: 11 }, (_, i) => new Date(first + i * hour).toISOString());
    expect((await runsOf("missed")).map(({ tick }) => tick)).toEqual(ticks.slice(11 - count));
    expect((await schedules.get("missed")).next_at).toBe(new Date(first + 11 * hour).toISOString());
    expect(worker.log.map(({ message }) => message)).toEqual([count === 0 ? "a schedule's ticks were missed and are not caught up" : "a schedule started runs"]);
  });

  it("a long one is caught up in rounds, so that others are not kept", async () => {
    const { next_at: nextAt } = await schedules.create("long", { agent: "nobody", cron: hourly, catchUp: "all" });
    const first = Date.parse(nextAt as string);
    const worker = loop(ahead(`${first + 249.5 * hour - Date.now()} milliseconds`));
    const counts: number[] = [];
    for (let waitMs = 0; waitMs === 0; counts.push((await runsOf("long")).length)) waitMs = await worker.schedules.round();
    expect(counts).toEqual([100, 200, 250]);
    expect(new Set((await runsOf("long")).map(({ tick }) => tick)).size).toBe(250);
  });
});

describe("pausing", () => {
  it("a paused schedule has no ticks, and those that fell into the pause are not caught up", async () => {
    const { next_at: nextAt } = await schedules.create("rests", { agent: "nobody", cron: "0 * * * *", catchUp: "all" });
    expect(await schedules.pause("rests", { actor: "ada" })).toBe(true);
    expect(await schedules.pause("rests")).toBe(false);
    const later = ahead(`${Date.parse(nextAt as string) + 5.5 * 3_600_000 - Date.now()} milliseconds`);
    await loop(later).schedules.round();
    const paused = await schedules.get("rests");
    expect(paused).toMatchObject({ paused: true, actor: "ada" });
    expect(paused.next_at).toBeUndefined();
    const { ScheduleClient } = await import("../../src/client/schedules.ts");
    const laterClient = new ScheduleClient(later, (text) => text);
    expect(await laterClient.resume("rests")).toBe(true);
    expect(await laterClient.resume("rests")).toBe(false);
    expect(await schedules.get("rests")).toMatchObject({ paused: false, next_at: new Date(Date.parse(nextAt as string) + 6 * 3_600_000).toISOString() });
    await loop(later).schedules.round();
    expect(await runsOf("rests")).toEqual([]);
  });

  it("a pause that was committed while a worker reckoned stands", async () => {
    await schedules.create("just-paused", { agent: "nobody", cron: yearly });
    await makeDue("just-paused");
    const [due] = (await db.query<{ expected_at: string }>(DUE_SCHEDULES_SQL, [10, [], []])).rows;
    await schedules.pause("just-paused");
    const tick = ["default", "just-paused", yearly, "UTC", due?.expected_at, [due?.expected_at], "2099-01-01T00:00:00Z"];
    expect((await db.query(TICK_SCHEDULE_SQL, tick)).rows).toEqual([{ ticked: null }]);
    expect(await runsOf("just-paused")).toEqual([]);
  });
});

it("run now starts one run at once, also of a paused schedule, and leaves the next tick where it is", async () => {
  const { next_at: nextAt } = await schedules.create("wanted", { agent: "nobody", input: "go", cron: yearly });
  const first = await schedules.runNow("wanted", { actor: "ada" });
  expect(await schedules.get("wanted")).toMatchObject({ next_at: nextAt, last_run_id: first });
  await schedules.pause("wanted");
  const second = await schedules.runNow("wanted", { idempotencyKey: "button-1" });
  expect(await schedules.runNow("wanted", { idempotencyKey: "button-1" })).toBe(second);
  expect((await runsOf("wanted")).map(({ id }) => id).toSorted()).toEqual([first, second].toSorted());
});

it("waits exactly for a tick that is near, and looks every five seconds otherwise", async () => {
  const { next_at: nextAt } = await schedules.create("near", { agent: "nobody", cron: "* * * * *" });
  const near = ahead(`${Date.parse(nextAt as string) - 3_000 - Date.now()} milliseconds`);
  const waitMs = await loop(near).schedules.round();
  expect(waitMs).toBeGreaterThan(0);
  expect(waitMs).toBeLessThanOrEqual(3_000);
  await schedules.delete("near");
  expect(await loop(near).schedules.round()).toBe(5_000);
});
