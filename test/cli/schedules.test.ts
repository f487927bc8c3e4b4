import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { afterAll, describe, expect, it } from "vitest";
import { createTestDatabase } from "../support/database.ts";
import { capstan, type CliResult } from "./support.ts";

const database = await createTestDatabase();
const db = new pg.Pool({ connectionString: database.url, max: 2 });
db.on("error", () => {});
const folder = await mkdtemp(join(tmpdir(), "capstan-schedules-cli-"));
afterAll(async () => {
  await db.end();
  await rm(folder, { recursive: true, force: true });
});

const schedules = (...args: string[]): Promise<CliResult> => capstan(["schedules", ...args], { env: { DATABASE_URL: database.url } });
async function json<T = Record<string, unknown>>(...args: string[]): Promise<T> {
  const { code, stdout, stderr } = await schedules(...args, "--json");
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  return JSON.parse(stdout) as T;
}

it("a schedule is made, shown, listed, paused, resumed, run and deleted", async () => {
  const file = join(folder, "task.json");
  await writeFile(file, '{"folder": "src"}');
  const flags = ["--timezone", "Europe/Berlin", "--catch-up", "all", "--priority", "5"];
  const created = await json<{ next_ticks: string[] }>("create", "nightly", "30  2 * * *", "auditor", `@${file}`, ...flags);
  expect(created).toMatchObject({
    name: "nightly",
    tenant: "default",
    cron: "30 2 * * *",
    timezone: "Europe/Berlin",
    catch_up: "all",
    options: { priority: 5 },
    input: { folder: "src" },
    actor: "cli",
  });
  expect(created.next_ticks).toHaveLength(5);

  const shown = await schedules("show", "nightly");
  expect(shown).toMatchObject({ code: 0, stderr: "" });
  expect(shown.stdout).toMatch(/^cron +30 2 \* \* \* \(Europe\/Berlin\)$/m);
  expect(shown.stdout).toMatch(/^next +\d{4}-\d\d-\d\d 0[01]:30 UTC, \d{4}-\d\d-\d\d 02:30 there$/m);
  expect(shown.stdout.match(/^then /gm)).toHaveLength(4);
  expect((await schedules("list")).stdout).toMatch(/^nightly +auditor +30 2 \* \* \* +\d{4}-\d\d-\d\d 0[01]:30 +\d{4}-\d\d-\d\d 02:30 Europe\/Berlin$/m);

  expect(await json("pause", "nightly")).toEqual({ name: "nightly", paused: true });
  expect(await json("pause", "nightly")).toEqual({ name: "nightly", paused: false });
  expect((await schedules("list")).stdout).toMatch(/^nightly .* paused +Europe\/Berlin$/m);
  expect((await json<{ next_ticks: string[] }>("show", "nightly")).next_ticks).toEqual([]);
  expect((await schedules("resume", "nightly")).stdout).toBe("nightly  resumed\n");
  expect((await schedules("resume", "nightly")).stdout).toBe("nightly  was not paused\n");

  const { run_id: runId } = await json<{ run_id: string }>("run", "nightly", "--idempotency-key", "k");
  expect((await schedules("run", "nightly", "--idempotency-key", "k")).stdout).toBe(`${runId}\n`);
  expect((await db.query("select agent, origin, priority from capstan.runs where id = $1", [runId])).rows).toEqual([{ agent: "auditor", origin: "schedule", priority: 5 }]);

  expect(await json("delete", "nightly")).toEqual({ name: "nightly", deleted: true });
  expect(await schedules("list")).toMatchObject({ code: 0, stdout: "", stderr: expect.stringContaining("no schedules yet") as string });
}, 180_000);

it("keeps tenants apart", async () => {
  await json("create", "same", "@daily", "clerk", "--tenant", "acme");
  await json("create", "same", "@hourly", "clerk");
  expect((await json<{ schedules: { tenant: string; cron: string }[] }>("list", "--tenant", "acme")).schedules).toMatchObject([{ tenant: "acme", cron: "@daily" }]);
  expect((await schedules("list")).stdout).toMatch(/^acme\/same /m);
  await json("delete", "same", "--tenant", "acme");
  expect(await json("show", "same")).toMatchObject({ cron: "@hourly" });
  await json("delete", "same");
});

describe("what is refused", () => {
  it.each([
    [["create", "bad", "0 25 * * *", "clerk"], 2, 'SCHEDULE_INVALID: schedule bad: cron hour "25" is wrong'],
    [["create", "bad", "* * * * * *", "clerk"], 2, "seconds are not possible"],
    [["create", "bad", "0 0 * * *", "clerk", "--timezone", "Berlin"], 2, 'timezone "Berlin" is not known'],
    [["create", "bad", "0 0 * * *", "clerk", "--catch-up", "some"], 2, "catchUp must be one of none, last, all"],
    [["create", "bad", "0 0 * * *", "clerk", "{broken"], 2, "begins like JSON"],
    [["create", "bad name", "0 0 * * *", "clerk"], 2, "name must have 1 to 64"],
    [["create", "bad", "0 0 * * *", "clerk", "--pool", "summarize"], 2, "pool must not be summarize"],
    [["show", "nobody"], 1, "SCHEDULE_UNKNOWN: tenant default has no schedule nobody"],
    [["pause", "nobody"], 1, "SCHEDULE_UNKNOWN"],
    [["resume", "nobody"], 1, "SCHEDULE_UNKNOWN"],
    [["delete", "nobody", "--tenant", "acme"], 1, "SCHEDULE_UNKNOWN: tenant acme has no schedule nobody"],
    [["run", "nobody"], 1, "SCHEDULE_UNKNOWN"],
  ] as const)("%j", async (args, code, said) => {
    const result = await schedules(...args);
    expect(result).toMatchObject({ code, stdout: "" });
    expect(result.stderr).toContain(said);
  });

  it("a second one of that name, unless it is to replace the first", async () => {
    await json("create", "twice", "0 0 * * *", "clerk");
    const second = await schedules("create", "twice", "0 1 * * *", "clerk");
    expect(second).toMatchObject({ code: 1, stdout: "" });
    expect(second.stderr).toContain("SCHEDULE_EXISTS: tenant default has a schedule twice already");
    expect(await json("create", "twice", "0 1 * * *", "clerk", "--replace")).toMatchObject({ cron: "0 1 * * *" });
    await json("delete", "twice");
  });
});

it("doctor names schedules that fail, and those that nobody serves", async () => {
  const doctor = async () =>
    (
      JSON.parse((await capstan(["doctor", "--json"], { env: { DATABASE_URL: database.url } })).stdout) as { findings: { check: string; level: string; found: string }[] }
    ).findings.filter(({ check }) => check.includes("schedule"));
  expect(await doctor()).toEqual([{ check: "schedules", level: "ok", found: "none" }]);
  await json("create", "fails", "@yearly", "clerk");
  await json("create", "late", "@yearly", "clerk");
  expect(await doctor()).toEqual([{ check: "schedules", level: "ok", found: "2" }]);
  await db.query(`update capstan.schedules set last_error = '{"at": "2026-01-01T00:00:00Z", "code": "KC005", "message": "too large"}' where name = 'fails'`);
  await db.query("update capstan.schedules set next_at = capstan.now() - interval '2 minutes' where name = 'late'");
  expect(await doctor()).toMatchObject([
    { check: "failing_schedule", level: "error", found: "schedule default/fails: KC005: too large" },
    { check: "overdue_schedules", level: "warning", found: "1 schedule due for over a minute (default/late)" },
  ]);
}, 180_000);
