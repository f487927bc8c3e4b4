/** What docs/quotas.md says, held against the code. */
import { spawnSync } from "node:child_process";
import pg from "pg";
import { afterAll, expect, it } from "vitest";
import { buildProgram } from "../../src/cli/program.ts";
import { createTestDatabase } from "../support/database.ts";
import { readRoot, root } from "./sources.ts";

const database = await createTestDatabase();
const db = new pg.Pool({ connectionString: database.url, max: 1 });
db.on("error", () => {});
afterAll(() => db.end());
const page = readRoot("docs/quotas.md");

it("shows the code of examples/quotas.ts, which says what it is said to", { timeout: 120_000 }, async () => {
  const [, code] = /```ts\n([\s\S]*?)\n```/.exec(page) ?? [];
  expect(code).toBe(
    readRoot("examples/quotas.ts")
      .replace(/"\.\.\/src\/index\.ts";.*/, '"capstan";')
      .trimEnd(),
  );
  const { status, stdout, stderr } = spawnSync(process.execPath, ["examples/quotas.ts"], { cwd: root, encoding: "utf8", env: { ...process.env, DATABASE_URL: database.url } });
  expect(status, stderr).toBe(0);
  expect(stdout).toBe(["tenant *: run queued none 2", "tenant *: turn tokens minute 200000", "concurrency_key", "QUEUE_FULL: try again in 5000 ms", "[]", ""].join("\n"));
});

it("has commands that set what they say they set", { timeout: 120_000 }, async () => {
  await db.query("delete from capstan.quota_limits");
  const commands = [...page.matchAll(/^\| `(capstan quotas set [^`]+)` \|/gm)].map(([, line = ""]) => line);
  expect(commands.length).toBeGreaterThanOrEqual(5);
  for (const line of commands) {
    const args = line
      .split(" ")
      .slice(1)
      .map((word) => word.replaceAll("'", ""));
    const { status, stderr } = spawnSync(process.execPath, ["src/cli.ts", ...args], { cwd: root, encoding: "utf8", env: { ...process.env, DATABASE_URL: database.url } });
    expect(status, `${line}: ${stderr}`).toBe(0);
  }
  const { rows } = await db.query(`select concat_ws(' ', scope, value, kind, unit, "window", amount) as quota from capstan.quota_limits order by 1`);
  expect(rows.map(({ quota }: { quota: string }) => quota)).toEqual([
    "agent mailer tool calls minute 30",
    "overall * turn concurrent none 20",
    "tenant * run queued none 1000",
    "tenant * turn cost_usd_micros day 50000000",
    "tenant acme turn tokens minute 200000",
  ]);
  expect(buildProgram().commands.map((command) => command.name())).toEqual(expect.arrayContaining(["quotas", "usage"]));
});

it("names the units and windows that there are", async () => {
  const { rows } = await db.query<{ text: string }>("select pg_get_constraintdef(oid) as text from pg_constraint where conname in ('quota_limits_unit', 'quota_limits_window')");
  for (const word of rows.flatMap(({ text }) => [...text.matchAll(/'(\w+)'/g)].map(([, name = ""]) => name))) expect(page).toContain(word === "none" ? "none" : `\`${word}\``);
});
