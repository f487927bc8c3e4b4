/** Schedules that cannot start their run: each is noted where an operator looks, and the others go on. */
import { afterEach, expect, it } from "vitest";
import { createTestDatabase } from "../support/database.ts";
import { scheduleBench } from "./schedule-bench.ts";

const database = await createTestDatabase();
const { db, schedules, loop, runsOf, makeDue } = scheduleBench(database.url);
/** Never due by itself while the tests run. */
const yearly = "0 0 1 1 *";
const row = async (name: string) => (await db.query<Record<string, unknown>>("select * from capstan.schedules where name = $1", [name])).rows[0] as Record<string, unknown>;

afterEach(() => db.query("delete from capstan.schedules"));

it("is passed over and noted when it could never start; the others go on", async () => {
  for (const name of ["wrong-option", "too-large", "key-taken", "good"]) await schedules.create(name, { agent: "nobody", cron: yearly });
  await db.query(`update capstan.schedules set options = '{"priority": "soon"}' where name = 'wrong-option'`);
  await db.query("update capstan.schedules set input = to_jsonb(repeat('x', 1100000)) where name = 'too-large'");
  await makeDue("wrong-option", "too-large", "key-taken", "good");
  const due = (await row("key-taken"))["next_at"] as Date;
  await db.query("select capstan.enqueue_run(agent => 'nobody', input => '\"other\"', idempotency_key => $1)", [`schedule:key-taken:${due.toISOString()}`]);
  const worker = loop(db);
  await worker.schedules.round();
  for (const [name, code] of [
    ["wrong-option", "22P02"],
    ["too-large", "KC005"],
    ["key-taken", "KC001"],
  ] as const) {
    expect(await runsOf(name)).toEqual([]);
    const view = await schedules.get(name);
    expect(view).toMatchObject({ last_error: { code, tick: due.toISOString() }, last_tick_at: due.toISOString() });
    expect(Date.parse(view.next_at as string)).toBeGreaterThan(Date.now());
  }
  expect(await runsOf("good")).toHaveLength(1);
  expect(worker.log.filter(({ level }) => level === "error").map(({ fields }) => fields["schedule"])).toEqual(expect.arrayContaining(["wrong-option", "too-large", "key-taken"]));
  // A tick that starts its run clears the error.
  await db.query("update capstan.schedules set input = '\"small\"' where name = 'too-large'");
  await db.query("update capstan.schedules set next_at = date_trunc('minute', capstan.now()) - interval '1 hour' where name = 'too-large'");
  await worker.schedules.round();
  expect(await runsOf("too-large")).toHaveLength(1);
  expect((await schedules.get("too-large")).last_error).toBeUndefined();
});

it("keeps its tick when the fault lies elsewhere, rests, and starts it later", async () => {
  await schedules.create("unlucky", { agent: "nobody", cron: yearly });
  await schedules.create("lucky", { agent: "somebody", cron: yearly });
  await makeDue("unlucky", "lucky");
  const due = (await row("unlucky"))["next_at"] as Date;
  await db.query(
    `create function no_space() returns trigger language plpgsql as $$ begin if new.agent = 'nobody' then raise exception 'no space left' using errcode = '53100'; end if; return new; end $$`,
  );
  await db.query("create trigger no_space before insert on capstan.runs for each row execute function no_space()");
  const worker = loop(db);
  try {
    await worker.schedules.round();
    expect(await runsOf("lucky")).toHaveLength(1);
    expect(await row("unlucky")).toMatchObject({ next_at: due, last_tick_at: null, last_error: { code: "53100", message: "no space left" } });
  } finally {
    await db.query("drop trigger no_space on capstan.runs");
    await db.query("drop function no_space");
  }
  // It rests: this worker asks for it no more, and waits as if it were not there.
  expect(await worker.schedules.round()).toBe(5_000);
  expect(await runsOf("unlucky")).toEqual([]);
  worker.later(30_000);
  await worker.schedules.round();
  expect((await runsOf("unlucky")).map(({ tick }) => tick)).toEqual([due.toISOString()]);
});

it("many that cannot be read at all do not keep one behind them", async () => {
  const broken = Array.from({ length: 60 }, (_, i) => `broken-${i}`);
  for (const name of [...broken, "behind"]) await schedules.create(name, { agent: "nobody", cron: yearly });
  await db.query("update capstan.schedules set timezone = 'Mars/Olympus', next_at = capstan.now() - interval '1 minute' where name like 'broken-%'");
  await makeDue("behind");
  await db.query("update capstan.schedules set next_at = capstan.now() where name = 'behind'");
  const worker = loop(db);
  for (let rounds = 0; (await worker.schedules.round()) < 5_000; rounds++) expect(rounds).toBeLessThan(3);
  expect(await runsOf("behind")).toHaveLength(1);
  expect((await schedules.get("broken-7")).last_error).toMatchObject({ message: expect.stringContaining("Mars/Olympus") as string });
});
