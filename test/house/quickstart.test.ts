/** docs/quickstart.md as a newcomer follows it: every block in its order, in an empty folder, against a database of its own. */
import { spawn, spawnSync, type ChildProcess } from "node:child_process";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { createTestDatabase } from "../support/database.ts";
import { readRoot, root } from "./sources.ts";

const database = await createTestDatabase();
const db = new pg.Pool({ connectionString: database.url, max: 2 });
db.on("error", () => {});
const folder = mkdtempSync(join(tmpdir(), "capstan-quickstart-"));
const canRun = (command: string, args: readonly string[]): boolean => spawnSync(command, args, { stdio: "ignore" }).status === 0;
const python = [process.env["CAPSTAN_TEST_PYTHON"], "python3", "/usr/bin/python3"].find((name) => name !== undefined && canRun(name, ["-c", "import psycopg"]));
const hasPsql = canRun("psql", ["--version"]);

/** Roles are the server's: the page's is called otherwise here, or two test runs on one server would meet. */
const role = `quickstart_${database.name.replaceAll(/\W/g, "_").slice(-20)}`;
const shopUrl = new URL(database.url);
shopUrl.username = role;
shopUrl.password = "change me";
const env = { ...process.env, DATABASE_URL: database.url, SHOP_DATABASE_URL: shopUrl.href, PATH: `${join(folder, "bin")}:${process.env["PATH"] ?? ""}`, CAPSTAN_MODEL: undefined };

interface Block {
  readonly language: string;
  readonly info: string;
  readonly code: string;
}
const blocks = [...readRoot("docs/quickstart.md").matchAll(/^```(\w+) ?(.*)\n([\s\S]*?)\n```$/gm)].map(([, language = "", info = "", code = ""]): Block => ({
  language,
  info,
  code,
}));
const named = (name: string): Block => blocks.find(({ info }) => info === name) as Block;
const ofLanguage = (language: string): Block[] => blocks.filter((block) => block.language === language);

/** The package under its own name, as an install would have put it there: its sources, since tests build nothing. */
function install(): void {
  mkdirSync(join(folder, "bin"));
  mkdirSync(join(folder, "node_modules", "capstan"), { recursive: true });
  writeFileSync(join(folder, "package.json"), JSON.stringify({ type: "module" }));
  const exports = { ".": "./index.js", "./client": "./client.js" };
  writeFileSync(join(folder, "node_modules", "capstan", "package.json"), JSON.stringify({ name: "capstan", type: "module", exports }));
  writeFileSync(join(folder, "node_modules", "capstan", "index.js"), `export * from ${JSON.stringify(join(root, "src/index.ts"))};\n`);
  writeFileSync(join(folder, "node_modules", "capstan", "client.js"), `export * from ${JSON.stringify(join(root, "src/client/index.ts"))};\n`);
  symlinkSync(join(root, "node_modules", "zod"), join(folder, "node_modules", "zod"));
  addCommand("capstan", `exec ${JSON.stringify(process.execPath)} ${JSON.stringify(join(root, "src/cli.ts"))} "$@"`);
  addCommand("node", `exec ${JSON.stringify(process.execPath)} "$@"`);
  if (python !== undefined) addCommand("python3", `exec ${JSON.stringify(python)} "$@"`);
}
function addCommand(name: string, text: string): void {
  writeFileSync(join(folder, "bin", name), `#!/bin/sh\n${text}\n`);
  chmodSync(join(folder, "bin", name), 0o755);
}

async function run(program: string, args: readonly string[]): Promise<{ code: number | null; stdout: string; stderr: string }> {
  const child = spawn(program, args, { cwd: folder, env, stdio: ["ignore", "pipe", "pipe"] });
  let stdout = "";
  let stderr = "";
  child.stdout.on("data", (chunk: Buffer) => (stdout += chunk.toString()));
  child.stderr.on("data", (chunk: Buffer) => (stderr += chunk.toString()));
  const code = await new Promise<number | null>((resolve, reject) => {
    child.once("error", reject);
    child.once("close", resolve);
  });
  return { code, stdout, stderr };
}
const shell = (code: string) => run("/bin/sh", ["-e", "-c", code]);

let worker: ChildProcess | undefined;
beforeAll(async () => {
  install();
  for (const { language, info, code } of blocks) if (["ts", "python"].includes(language)) writeFileSync(join(folder, info), code);
  const up = blocks.find(({ info }) => info === "background") as Block;
  const [program = "", ...args] = up.code.split(" ");
  worker = spawn(program, args, { cwd: folder, env, stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  await new Promise<void>((resolve, reject) => {
    worker?.once("exit", () => reject(new Error(`capstan up has ended: ${said}`)));
    for (const stream of [worker?.stdout, worker?.stderr]) {
      stream?.on("data", (chunk: Buffer) => {
        said += chunk.toString();
        if (said.includes("Ctrl-C stops everything")) resolve();
      });
    }
  });
  worker.removeAllListeners("exit");
});
afterAll(async () => {
  if (worker?.exitCode === null) {
    const gone = new Promise((resolve) => worker?.once("exit", resolve));
    worker.kill("SIGTERM");
    await gone;
  }
  await db.query(`drop role if exists ${role}`);
  await db.end();
  rmSync(folder, { recursive: true, force: true });
});

describe("docs/quickstart.md", () => {
  it("has a block for each step, and none that is not tried here", () => {
    expect(blocks.map(({ language, info }) => `${language} ${info}`.trim())).toEqual([
      "ts agents.ts",
      "sh background",
      "sh",
      "sh",
      "sql",
      "sql",
      "sql",
      "sql",
      "python enqueue.py",
      "sh python",
      "ts enqueue.ts",
      "sh",
      "sh",
    ]);
  });

  it("starts a run by the command line, and shows its output", async () => {
    const [first] = ofLanguage("sh").filter(({ info }) => info === "");
    const { code, stdout, stderr } = await shell(first?.code ?? "false");
    expect({ code, said: stdout.trim().length > 0 }, stderr).toEqual({ code: 0, said: true });
  });

  it("starts runs by SQL, as psql sends it", async () => {
    const psql = blocks.filter(({ language, info }) => language === "sh" && info === "")[1]?.code ?? "";
    expect(psql).toBe('psql "$DATABASE_URL"');
    for (const { code } of ofLanguage("sql")) {
      const text = code.replaceAll(/\bshop (login)/g, `${role} $1`).replaceAll("pin_role('shop'", `pin_role('${role}'`);
      if (!hasPsql) {
        await db.query(text);
        continue;
      }
      writeFileSync(join(folder, "statements.sql"), `${text}\n`);
      const { code: exit, stderr } = await shell(`${psql} --no-psqlrc --set ON_ERROR_STOP=1 --file statements.sql`);
      expect(exit, stderr).toBe(0);
    }
    const { rows } = await db.query<{ key: string; runs: number }>(
      "select idempotency_key as key, count(*)::int as runs from capstan.runs where idempotency_key is not null group by 1",
    );
    expect(rows).toEqual([{ key: "order 2", runs: 1 }]);
    const { rows: set } = await db.query<{ budget: unknown; compaction: { keep_last_n: number } }>(
      "select s.v -> 'budget' as budget, s.v -> 'compaction' as compaction from capstan.runs r cross join lateral capstan.run_status(r.id) s(v) where r.policy is not null",
    );
    expect(set).toMatchObject([{ budget: { soft: { tokens: 10_000 }, hard: { tokens: 15_000 }, wrap_up: true }, compaction: { enabled: true, keep_last_n: 2 } }]);
  });

  // Where psycopg is not installed, the statements are tried all the same; .ci/run installs it and demands the program.
  if (python !== undefined || process.env["CAPSTAN_TEST_PYTHON"] !== undefined) {
    it("starts a run from Python, as a login that is pinned to its tenant", async () => {
      const { code, stdout, stderr } = await shell(ofLanguage("sh").find(({ info }) => info === "python")?.code ?? "false");
      expect({ code, stdout }, stderr).toEqual({ code: 0, stdout: expect.stringMatching(/^run [0-9a-f-]{36} is (queued|running|completed)\nrefused with KC021\n$/) as string });
    });
  }

  it("asks in Python what the database understands", async () => {
    const statements = [...named("enqueue.py").code.matchAll(/"(select [^"]+)"/g)].map(([, text = ""]) => text);
    expect(statements).toHaveLength(3);
    for (const text of statements) {
      let n = 0;
      await db.query(`prepare quickstart as ${text.replaceAll("%s", () => `$${++n}`)}`);
      await db.query("deallocate quickstart").catch(() => {});
    }
  });

  it("starts a run from TypeScript, as the same login, and waits for its output", async () => {
    const block = ofLanguage("sh").find(({ code }) => code === "node enqueue.ts");
    const { code, stdout, stderr } = await shell(block?.code ?? "false");
    expect({ code, said: stdout.trim().length > 0 }, stderr).toEqual({ code: 0, said: true });
    const { rows } = await db.query("select tenant, state from capstan.runs where idempotency_key = 'order 5'");
    expect(rows).toEqual([{ tenant: "shop", state: "completed" }]);
  });

  it("looks at them", async () => {
    const { stdout, stderr } = await shell(blocks.at(-1)?.code ?? "false");
    // The test's server does without what a crash of the machine would need; nothing else is wrong.
    expect(
      [...stdout.matchAll(/^error +(\w+)/gm)].map(([, check]) => check),
      stderr,
    ).toEqual(process.env["CAPSTAN_TEST_POSTGRES"] === "container" ? expect.any(Array) : ["durability"]);
    expect(stdout).toContain("ok       enqueuer_role: applications can enqueue without reading journals");
    expect(stdout).toContain("clerk");
  });
});
