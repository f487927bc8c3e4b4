/** Schedules as a service makes them: what is kept, what is refused, and what a second start of the service changes. */
import pg from "pg";
import { afterAll, afterEach, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { createClient, ScheduleInvalidError } from "../../src/client/index.ts";
import type { CreateScheduleOptions } from "../../src/client/schedules.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();
const db = new pg.Pool({ connectionString: database.url, max: 3 });
db.on("error", () => {});
const client = createClient({ pool: db });
const { schedules } = client;
afterAll(async () => {
  await client.close();
  await db.end();
});
afterEach(() => db.query("delete from capstan.schedules"));

const clerk = agent({ name: "clerk", model: "test:model", instructions: "x", input: z.object({ question: z.string(), depth: z.number().default(3) }) });
const base = { agent: "clerk", cron: "0 9 * * MON-FRI" };

it("is kept with its defaults, and its first tick is the next one from now on", async () => {
  const created = await schedules.create("weekdays", base);
  expect(created).toMatchObject({ tenant: "default", name: "weekdays", agent: "clerk", cron: "0 9 * * MON-FRI", timezone: "UTC", catch_up: "last", paused: false, input: null });
  const next = new Date(created.next_at as string);
  expect(next.getTime()).toBeGreaterThan(Date.now());
  expect(next.getTime() - Date.now()).toBeLessThan(3 * 86_400_000 + 3_600_000);
  expect([next.getUTCHours(), next.getUTCMinutes()]).toEqual([9, 0]);
  expect(await schedules.get("weekdays")).toEqual(created);
  const { input: _, ...summary } = created;
  expect(await schedules.list()).toEqual([summary]);
});

it("an agent in code checks the input and applies its defaults", async () => {
  expect(await schedules.create("typed", { ...base, agent: clerk, input: { question: "Where?" } })).toMatchObject({ agent: "clerk", input: { question: "Where?", depth: 3 } });
  await expect(schedules.create("untyped", { ...base, agent: clerk, input: { question: 5 } })).rejects.toMatchObject({ code: "INPUT_INVALID" });
  await expect(schedules.create("untyped", { ...base, agent: clerk })).rejects.toMatchObject({ code: "INPUT_INVALID" });
});

describe("said again at every start of a service", () => {
  it("keeps its next tick, unless line or zone have changed", async () => {
    const said = (more: Partial<CreateScheduleOptions> = {}) => schedules.create("again", { ...base, replace: true, ...more });
    const first = await said();
    // As it stands while a tick is due.
    await db.query("update capstan.schedules set next_at = '2026-01-05T09:00:00Z'");
    const due = { next_at: "2026-01-05T09:00:00.000Z" };
    expect(await said()).toEqual({ ...first, ...due });
    const changed = await said({ input: "new", catchUp: "all", priority: 3, agent: "other" });
    expect(changed).toMatchObject({ ...due, input: "new", catch_up: "all", options: { priority: 3 }, agent: "other", created_at: first.created_at });
    expect(changed.updated_at > first.updated_at).toBe(true);
    expect((await said({ timezone: "Asia/Tokyo" })).next_at).toMatch(/T00:00:00.000Z$/);
    await db.query("update capstan.schedules set next_at = '2026-01-05T09:00:00Z'");
    expect((await said({ cron: "30 9 * * MON-FRI" })).next_at).toMatch(/T09:30:00.000Z$/);
  });

  it("stays paused", async () => {
    await schedules.create("stays", base);
    await schedules.pause("stays");
    const again = await schedules.create("stays", { ...base, cron: "@hourly", replace: true });
    expect(again).toMatchObject({ paused: true, cron: "@hourly" });
    expect(again.next_at).toBeUndefined();
    await schedules.resume("stays");
    expect((await schedules.get("stays")).next_at).toMatch(/:00:00.000Z$/);
  });

  it("two services that start at once make one schedule", async () => {
    await Promise.all(Array.from({ length: 3 }, () => schedules.create("both", { ...base, replace: true })));
    expect(await schedules.list()).toHaveLength(1);
    const outcomes = await Promise.allSettled(Array.from({ length: 3 }, () => schedules.create("first-wins", base)));
    expect(outcomes.map(({ status }) => status).toSorted()).toEqual(["fulfilled", "rejected", "rejected"]);
    expect(outcomes.find((outcome) => outcome.status === "rejected")).toMatchObject({ reason: { code: "SCHEDULE_EXISTS" } });
  });
});

it("exists if and only if the caller's transaction commits", async () => {
  const tx = await db.connect();
  try {
    await tx.query("begin");
    await schedules.create("in-tx", { ...base, tx });
    await tx.query("rollback");
  } finally {
    tx.release();
  }
  expect(await schedules.list()).toEqual([]);
});

describe("what is refused", () => {
  const cases: readonly (readonly [what: string, options: Record<string, unknown>, field: string, message: string])[] = [
    ["a wrong field", { cron: "0 24 * * *" }, "cron", 'hour "24" is wrong'],
    ["seconds", { cron: "0 0 9 * * *" }, "cron", "seconds are not possible"],
    ["no line", { cron: undefined }, "cron", "is missing"],
    ["a day that never comes", { cron: "0 0 31 4 *" }, "cron", "never comes"],
    ["an unknown zone", { timezone: "Berlin" }, "timezone", '"Berlin" is not known'],
    ["a policy", { catchUp: "some" }, "catchUp", "must be one of none, last, all"],
    ["an agent's name", { agent: "no such name!" }, "agent", "must have 1 to 64"],
    ["a tenant", { tenant: "" }, "tenant", "must not be empty"],
    ["a priority", { priority: 1.5 }, "priority", "must be a whole number"],
    ["a priority out of range", { priority: 1001 }, "priority", "must be from -1000 to 1000"],
    ["labels", { labels: "nightly" }, "labels", "must be a list of texts"],
    ["one label", { labels: ["ok", 5] }, "labels.1", "must be a text"],
    ["metadata", { metadata: [1] }, "metadata", "must be a JSON object"],
    ["a pool without runs", { pool: "summarize" }, "pool", "must not be summarize"],
    ["a misspelt setting", { timeZone: "Europe/Berlin" }, "timeZone", "is not a setting of schedules"],
    ["a setting that a schedule has not", { runAt: new Date() }, "runAt", "is not a setting of schedules"],
  ];
  it.each(cases)("%s", async (_, options, field, message) => {
    const refused = schedules.create("bad", { ...base, ...options });
    await expect(refused).rejects.toBeInstanceOf(ScheduleInvalidError);
    await expect(refused).rejects.toMatchObject({ code: "SCHEDULE_INVALID", field, details: { schedule: "bad", field } });
    await expect(refused).rejects.toThrow(`schedule bad: ${field} `);
    await expect(refused).rejects.toThrow(message);
    expect(await schedules.list()).toEqual([]);
  });

  it("a name that is none", async () => {
    await expect(schedules.create("two words", base)).rejects.toMatchObject({ code: "SCHEDULE_INVALID", field: "name" });
    await expect(schedules.create(undefined as never, base)).rejects.toMatchObject({ code: "SCHEDULE_INVALID", field: "name" });
  });

  it("an input that no run could hold", async () => {
    await expect(schedules.create("large", { ...base, input: "x".repeat(1_100_000) })).rejects.toMatchObject({ code: "PAYLOAD_TOO_LARGE" });
    await expect(schedules.create("bytes", { ...base, input: [{ type: "file", media_type: "image/png", data: new Uint8Array(4) }] })).rejects.toMatchObject({
      code: "INPUT_INVALID",
    });
    await expect(schedules.create("cycle", { ...base, input: { when: 5n } })).rejects.toMatchObject({ code: "INPUT_INVALID" });
  });

  it("one that is not there", async () => {
    const tenant = { tenant: "acme" };
    await schedules.create("here", base);
    const asks = [
      () => schedules.get("here", tenant),
      () => schedules.pause("here", tenant),
      () => schedules.resume("here", tenant),
      () => schedules.delete("here", tenant),
      () => schedules.runNow("here", tenant),
    ];
    for (const ask of asks) {
      await expect(ask()).rejects.toMatchObject({ name: "ScheduleUnknownError", code: "SCHEDULE_UNKNOWN", message: "tenant acme has no schedule here" });
    }
  });

  it("a run now with a key that belongs to another run", async () => {
    await schedules.create("keyed", { ...base, input: "mine" });
    await client.enqueue("clerk", "other", { idempotencyKey: "taken" });
    await expect(schedules.runNow("keyed", { idempotencyKey: "taken" })).rejects.toMatchObject({ code: "IDEMPOTENCY_CONFLICT" });
  });
});
