import { execFileSync } from "node:child_process";
import { chmod, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";
import { afterAll, describe, expect, it } from "vitest";
import { deleteEmbeddedPostgres, embeddedPostgresStatus } from "../../src/embedded/index.ts";
import { capstan, fixtureAgents, startCapstan } from "./support.ts";

const folder = await mkdtemp(join(tmpdir(), "capstan-up-"));
await chmod(folder, 0o755);
const dir = join(folder, ".capstan");
const postgres = join(dir, "postgres");
const env = { CAPSTAN_DIR: dir };

afterAll(async () => {
  await deleteEmbeddedPostgres(postgres);
  await rm(folder, { recursive: true, force: true });
});

/** Processes that descend from one, or whose command line names our folder: a server that was detached among them. */
function processesOf(pid: number): string[] {
  const rows = execFileSync("ps", ["-eo", "pid=,ppid=,command="], { encoding: "utf8" })
    .trim()
    .split("\n")
    .map((line) => /^\s*(\d+)\s+(\d+)\s+(.*)$/.exec(line) as RegExpExecArray);
  const family = new Set([String(pid)]);
  for (let grown = true; grown;) {
    const before = family.size;
    for (const [, child = "", parent = ""] of rows) if (family.has(parent)) family.add(child);
    grown = family.size > before;
  }
  return rows.filter(([, child = "", , command = ""]) => family.has(child) || command.includes(folder)).map(([, child, , command]) => `${child} ${command}`);
}

describe("up", () => {
  it("says what to do where there is neither DATABASE_URL nor a database, and makes nothing", async () => {
    const { code, stderr, stdout } = await capstan(["runs", "list"], { env });
    expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
    expect(stderr).toMatch(/^DATABASE_MISSING: .*capstan up/);
    const relative = await capstan(["runs", "list"], { cwd: folder });
    expect(relative.stderr).toContain(join(folder, ".capstan", "postgres"));
    expect(await embeddedPostgresStatus(postgres)).toEqual({ running: false });
  });

  it("brings a server, the schema and a worker up, and at Ctrl-C takes all of it down", { timeout: 180_000 }, async () => {
    const up = startCapstan(["up", "--agents", fixtureAgents], { env, cwd: folder });
    const ready = await up.nextEvent();
    expect(ready).toMatchObject({ event: "ready", agents: ["auditor", "talker", "helper"], runs: 0, postgres: { embedded: true } });
    const done = await capstan(["enqueue", "helper", "hello", "--wait"], { env });
    expect(done).toMatchObject({ code: 0, stdout: "done: hello\n" });
    expect(await capstan(["enqueue", "helper", "fail now", "--wait"], { env })).toMatchObject({ code: 5 });
    await up.said("run failed");
    expect(processesOf(up.pid).length).toBeGreaterThan(1);
    // Twice at once, as npm makes it of one Ctrl-C.
    up.child.kill("SIGINT");
    up.child.kill("SIGINT");
    expect(await up.nextEvent()).toMatchObject({ event: "stopped" });
    expect(await up.exited).toBe(0);
    expect(processesOf(up.pid)).toEqual([]);
    expect((await embeddedPostgresStatus(postgres)).running).toBe(false);
  });

  it("leaves data that a later command finds by starting the server for as long as it needs it", async () => {
    const { code, stdout, stderr } = await capstan(["runs", "list", "--json"], { env });
    expect(code).toBe(0);
    expect((JSON.parse(stdout) as { runs: unknown[] }).runs).toMatchObject([
      { agent: "helper", state: "failed" },
      { agent: "helper", state: "completed" },
    ]);
    expect(stderr).toContain("starting the embedded Postgres");
    expect((await embeddedPostgresStatus(postgres)).running).toBe(false);
  });

  it("finds the data again, and at a second signal exits at once and lets the server go", { timeout: 180_000 }, async () => {
    const up = startCapstan(["up", "--agents", fixtureAgents], { env, cwd: folder });
    const ready = await up.nextEvent();
    expect(ready).toMatchObject({ event: "ready", runs: 2, open: 0 });
    // A tool that never ends keeps the first signal's stop waiting.
    const client = new pg.Client({ connectionString: (ready["postgres"] as { url: string }).url });
    client.on("error", () => {});
    await client.connect();
    await client.query("select capstan.enqueue_run('helper', '\"gate\"')");
    while ((await client.query("select 1 from capstan.events e join capstan.runs r on r.id = e.run_id where r.finished_at is null and e.type = 'model.responded'")).rowCount === 0);
    up.child.kill("SIGINT");
    await up.said("stopping");
    await sleep(700);
    up.child.kill("SIGINT");
    expect(await up.exited).toBe(130);
    await client.end().catch(() => {});
    while ((await embeddedPostgresStatus(postgres)).running) await sleep(20);
    expect(processesOf(up.pid)).toEqual([]);
  });
});
