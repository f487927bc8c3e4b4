/** What docs/schedules.md says, held against the code. */
import { spawnSync } from "node:child_process";
import pg from "pg";
import { afterAll, expect, it } from "vitest";
import { catchUpPolicies, MAX_TICKS_PER_ROUND, nextTick } from "../../src/domain/schedule.ts";
import { createTestDatabase } from "../support/database.ts";
import { readRoot, root } from "./sources.ts";

const database = await createTestDatabase();
const db = new pg.Pool({ connectionString: database.url, max: 1 });
db.on("error", () => {});
afterAll(() => db.end());
const page = readRoot("docs/schedules.md");

it("shows the code of examples/schedules.ts, which runs, and again", async () => {
  const [, code] = /```ts\n([\s\S]*?)\n```/.exec(page) ?? [];
  expect(code).toBe(
    readRoot("examples/schedules.ts")
      .replace(/"\.\.\/src\/index\.ts";.*/, '"capstan";')
      .trimEnd(),
  );
  const run = (): string => {
    const { status, stdout, stderr } = spawnSync(process.execPath, ["examples/schedules.ts"], { cwd: root, encoding: "utf8", env: { ...process.env, DATABASE_URL: database.url } });
    expect(status, stderr).toBe(0);
    return stdout;
  };
  const [first, second] = [run(), run()];
  const { rows } = await db.query<{ next_at: Date; last_run_id: string }>("select next_at, last_run_id from capstan.schedules where name = 'nightly-audit'");
  const said = `next audit: ${rows[0]?.next_at.toISOString()}\n`;
  expect(first.startsWith(said)).toBe(true);
  expect(second).toBe(`${said}one run now: ${rows[0]?.last_run_id}\n`);
  expect((await db.query("select from capstan.runs where origin = 'schedule'")).rowCount).toBe(2);
}, 180_000);

it("gives the ticks around changes of clocks as they are", () => {
  const table = [...page.matchAll(/^\| `([^`]+)` \| `(\w+\/\w+)` \| ([\d :-]+) \| ([\d :,-]+) \|$/gm)];
  expect(table.length).toBeGreaterThanOrEqual(8);
  for (const [line, cron = "", timezone = "", after = "", listed = ""] of table) {
    let at = new Date(`${after.replace(" ", "T")}:00Z`);
    const ticks = listed.split(", ").map(() => {
      at = nextTick({ cron, timezone }, at) as Date;
      return at.toISOString().slice(0, 16).replace("T", " ");
    });
    expect(ticks.join(", "), line).toBe(listed);
  }
});

it("names every policy, and the bound of one commit", () => {
  const policies = [...page.matchAll(/^\| `(none|last|all|\w+)` \| (?=\w)/gm)].map(([, policy]) => policy);
  expect(policies).toEqual(expect.arrayContaining([...catchUpPolicies]));
  expect(page).toContain(`at most ${MAX_TICKS_PER_ROUND} in one commit`);
});

it("names every setting", async () => {
  const { scheduleSettingNames } = await import("../../src/client/schedule-settings.ts");
  const listed = [...(page.split("\n## Settings\n")[1]?.split("\n## ")[0] ?? "").matchAll(/^\| `([^|]+)` \|/gm)].flatMap(([, cell = ""]) => cell.split("`, `"));
  expect(listed.toSorted()).toEqual([...scheduleSettingNames, "replace", "tx"].toSorted());
});
