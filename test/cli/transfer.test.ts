/** A run that moves by the command line: from one database through files and pipes into another. */
import { createHash } from "node:crypto";
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { afterAll, beforeAll, expect, it, vi } from "vitest";
import { eventually } from "../chaos/journal.ts";
import { createTestDatabase } from "../support/database.ts";
import { capstan, fixtureAgents, ndjson, startCapstan, type RunningCli } from "./support.ts";

const [here, there] = [await createTestDatabase(), await createTestDatabase()];
vi.setConfig({ testTimeout: 180_000 });
const folder = mkdtempSync(join(tmpdir(), "capstan-transfer-"));
const env = { DATABASE_URL: here.url, CAPSTAN_LOG_LEVEL: "info", CAPSTAN_TEST_GATE: join(folder, "gate") };
const run = (args: readonly string[], input?: string) => capstan(args, { env, ...(input === undefined ? {} : { input }) });
const runThere = (args: readonly string[], input?: string) => capstan(args, { env: { ...env, DATABASE_URL: there.url }, ...(input === undefined ? {} : { input }) });
const codeOf = (text: string): string => (JSON.parse(text) as { error: { code: string } }).error.code;

const db = new pg.Pool({ connectionString: here.url, max: 2 });
const dbThere = new pg.Pool({ connectionString: there.url, max: 1 });
for (const pool of [db, dbThere]) pool.on("error", () => {});
let worker: RunningCli;
beforeAll(async () => {
  worker = startCapstan(["worker", "--agents", fixtureAgents, "--slots", "4"], { env });
  await worker.nextEvent();
});
afterAll(async () => {
  if (worker.child.exitCode === null) worker.child.kill("SIGKILL");
  await worker.exited;
  await Promise.all([db.end(), dbThere.end()]);
  rmSync(folder, { recursive: true });
});

async function begun(agent: string, input: string, state: string): Promise<string> {
  const { rows } = await db.query<{ id: string }>("select capstan.enqueue_run(agent => $1, input => to_jsonb($2::text)) as id", [agent, input]);
  const id = rows[0]?.id as string;
  await eventually(state, async () => (await db.query("select from capstan.runs where id = $1 and (state = $2 or wait_reason = $2)", [id, state])).rowCount === 1);
  return id;
}
const digestOf = async (pool: pg.Pool, id: string): Promise<string> => {
  const { rows } = await pool.query<{ payload: string }>("select payload::text as payload from capstan.events where run_id = $1 order by seq", [id]);
  return createHash("sha256").update(JSON.stringify(rows)).digest("hex");
};

it("goes through a file: as it was written, under another tenant, paused; once", async () => {
  // A separator that some readers take for the end of a line.
  const id = await begun("talker", "quick\u2028and\u0085well", "input");
  const file = join(folder, "run.ndjson");
  const written = await run(["runs", "export", id, "--output", file, "--json"]);
  expect(written.code, written.stderr).toBe(0);
  const lines = readFileSync(file, "utf8").split("\n");
  expect(JSON.parse(written.stdout)).toEqual({ run_id: id, file, lines: lines.length - 1, bytes: statSync(file).size });
  // It holds what the run said: nobody else is to read it.
  expect(statSync(file).mode & 0o077).toBe(0);
  const again = await run(["runs", "export", id, "--output", file, "--json"]);
  expect([again.code, codeOf(again.stdout)]).toEqual([1, "FILE_UNWRITABLE"]);

  writeFileSync(join(folder, "cut.ndjson"), lines.slice(0, -2).join("\n"));
  const cut = await runThere(["runs", "import", join(folder, "cut.ndjson"), "--json"]);
  expect([cut.code, codeOf(cut.stdout)]).toEqual([1, "IMPORT_DAMAGED"]);
  const imported = await runThere(["runs", "import", file, "--tenant", "acme", "--paused", "--json"]);
  expect(imported.code, imported.stderr).toBe(0);
  const events = lines.filter((line) => line.startsWith('{"type":"event"')).length;
  expect(JSON.parse(imported.stdout)).toEqual({ run_id: id, tenant: "acme", runs: 1, events, blobs: 0, paused: true });
  expect(await digestOf(dbThere, id)).toBe(await digestOf(db, id));
  expect((await dbThere.query("select tenant, paused, state, wait_reason from capstan.runs")).rows).toEqual([
    { tenant: "acme", paused: true, state: "waiting", wait_reason: "input" },
  ]);

  const twice = await runThere(["runs", "import", file, "--json"]);
  expect([twice.code, codeOf(twice.stdout)]).toEqual([1, "IMPORT_EXISTS"]);
  const none = await runThere(["runs", "import", join(folder, "none.ndjson"), "--json"]);
  expect([none.code, codeOf(none.stdout)]).toEqual([1, "FILE_UNREADABLE"]);
});

it("goes through a pipe; a reader that closes early ends it quietly", async () => {
  const id = await begun("helper", "good", "completed");
  const written = await run(["runs", "export", id]);
  expect([written.code, written.stderr]).toEqual([0, ""]);
  const imported = await runThere(["runs", "import"], written.stdout);
  expect(imported.code, imported.stderr).toBe(0);
  expect(imported.stdout).toContain(`imported ${id} of tenant default`);
  expect((await runThere(["verify", id])).code).toBe(0);
  const head = await capstan(["runs", "export", id], { env, closeEarly: true });
  expect([head.code, head.stderr]).toEqual([0, ""]);
});

it("is refused in the middle of a turn; with --pause its turn is waited for", async () => {
  const id = await begun("helper", "gate please", "running");
  await eventually("the tool", async () => (await db.query("select from capstan.events where run_id = $1 and type = 'model.responded'", [id])).rowCount === 1);
  const file = join(folder, "busy.ndjson");
  const refused = await run(["runs", "export", id, "--output", file, "--json"]);
  expect([refused.code, codeOf(refused.stdout)]).toEqual([1, "RUN_BUSY"]);
  expect(existsSync(file)).toBe(false);
  const waiting = startCapstan(["runs", "export", id, "--pause", "--output", file], { env });
  await waiting.said("paused");
  expect(existsSync(file)).toBe(false);
  writeFileSync(env.CAPSTAN_TEST_GATE, "");
  expect(await waiting.exited, waiting.stderr()).toBe(0);
  const types = ndjson<{ type: string; row?: { type: string } }>(readFileSync(file, "utf8")).flatMap(({ type, row }) => (type === "event" ? [row?.type] : []));
  expect(types).toEqual(["run.created", "model.requested", "model.responded", "tool.completed"]);
  expect((await db.query("select paused from capstan.runs where id = $1", [id])).rows).toEqual([{ paused: true }]);
});

it("says what is wrong with a command line", async () => {
  expect((await run(["runs", "export", "0190"])).code).toBe(2);
  expect((await run(["runs", "export", "00000000-0000-7000-8000-000000000000", "--json"])).code).toBe(2);
  const unknown = await run(["runs", "export", "00000000-0000-7000-8000-000000000000"]);
  expect([unknown.code, unknown.stdout, unknown.stderr.split(":")[0]]).toEqual([1, "", "RUN_MISSING"]);
});
