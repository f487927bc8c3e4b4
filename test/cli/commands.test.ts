import pg from "pg";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { createTestDatabase } from "../support/database.ts";
import { capstan, fixtureAgents, ndjson, startCapstan, type CliOptions, type RunningCli } from "./support.ts";

const database = await createTestDatabase();
const folder = await mkdtemp(join(tmpdir(), "capstan-cli-"));
const gate = join(folder, "gate");
const env = { DATABASE_URL: database.url, CAPSTAN_TEST_GATE: gate, CAPSTAN_LOG_LEVEL: "info" };
const run = (args: readonly string[], options: CliOptions = {}) => capstan(args, { ...options, env: { ...env, ...options.env } });
const json = <T>(text: string): T => JSON.parse(text) as T;
const nobody = "0190c0de-0000-7000-8000-000000000000";

const db = new pg.Pool({ connectionString: database.url, max: 2 });
// A server that goes away is the tests' business where they run into it, not an uncaught error.
db.on("error", () => {});
let worker: RunningCli;
let ready: unknown;
beforeAll(async () => {
  worker = startCapstan(["worker", "--agents", fixtureAgents, "--slots", "4"], { env });
  ready = await worker.nextEvent();
});
afterAll(async () => {
  if (worker.child.exitCode === null) worker.child.kill("SIGKILL");
  await worker.exited;
  await db.end();
  await rm(folder, { recursive: true, force: true });
});

interface RunJson {
  readonly id: string;
  readonly state: string;
  readonly tenant: string;
}

/** Starts a run without a process, for tests that are about something else. */
async function enqueue(agent: string, input: unknown, tenant = "default"): Promise<string> {
  const { rows } = await db.query<{ id: string }>("select capstan.enqueue_run(agent => $1, input => $2::jsonb, tenant => $3) as id", [agent, JSON.stringify(input), tenant]);
  return (rows[0] as { id: string }).id;
}

async function untilState(runId: string, ...states: string[]): Promise<void> {
  for (;;) {
    const { rows } = await db.query<{ state: string }>("select state from capstan.runs where id = $1", [runId]);
    if (states.includes(rows[0]?.state ?? "")) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

it("a worker says what it serves once it is ready", () => {
  expect(ready).toMatchObject({ event: "ready", agents: ["talker", "helper"], slots: 4, pool: "turn" });
});

describe("enqueue", () => {
  it("waits for the output, takes input from standard input and finds the run again by its key", async () => {
    const args = ["enqueue", "helper", "-", "--text", "--wait", "--json", "--idempotency-key", "once", "--tenant", "acme"];
    const first = await run(args, { input: '{"not": "json here"}' });
    expect(first).toMatchObject({ code: 0 });
    const result = json<{ run_id: string; output: string }>(first.stdout);
    expect(result.output).toBe('done: {"not": "json here"}');
    expect(json<{ run_id: string }>((await run(args, { input: '{"not": "json here"}' })).stdout).run_id).toBe(result.run_id);
    const other = await run(args, { input: "another" });
    expect(other.code).toBe(1);
    expect(other.stderr).toContain("IDEMPOTENCY_CONFLICT: ");
    expect(json<{ error: { code: string } }>(other.stdout).error.code).toBe("IDEMPOTENCY_CONFLICT");
  });

  it("exits 5 when the run fails, and says why", async () => {
    const { code, stdout, stderr } = await run(["enqueue", "helper", "fail now", "--wait"]);
    expect({ code, stdout }).toEqual({ code: 5, stdout: "" });
    expect(stderr).toContain("PROVIDER_BAD_REQUEST: ");
  });

  it("follows a run to its end, with turns, tools and gauge, and without a tool's escape sequences", async () => {
    const { code, stdout } = await run(["enqueue", "helper", "look", "--follow"], { env: { FORCE_COLOR: "" } });
    expect(code).toBe(0);
    expect(stdout).toMatch(/turn 1\n.*\n.*→ look_up\({"key":"look"}\)/);
    expect(stdout).toContain("ctx 1.2k / 8.0k (15%)");
    expect(stdout).toContain("completed: done: look");
    expect(stdout).not.toContain("\u001B");
  });

  it("warns when no worker has the agent, and refuses what cannot be meant", async () => {
    const lonely = await run(["enqueue", "nobody", "x", "--run-at", "+1h"]);
    expect(lonely).toMatchObject({ code: 0 });
    expect(lonely.stderr).toMatch(/no worker with agent nobody is running.*; the database knows helper, talker$/m);
    const shown = await run(["runs", "show", lonely.stdout.trim()]);
    expect(shown.stdout).toMatch(/^waits for +a worker with agent nobody in pool turn$/m);
    expect(await run(["enqueue", "helper", "{bad json"])).toMatchObject({ code: 2, stdout: "", stderr: expect.stringMatching(/^USAGE: .*--text/) as string });
    const { code, stderr } = await run(["enqueue", "helper", "x", "--run-at", "tomorrow"]);
    expect({ code, stderr }).toEqual({ code: 2, stderr: expect.stringMatching(/^USAGE: --run-at tomorrow: give an ISO 8601 time/) as string });
  });
});

describe("runs", () => {
  it("are listed by keyset pages and filters, as JSON and as a table", async () => {
    const ids: string[] = [];
    for (const n of [1, 2, 3]) ids.unshift(await enqueue("helper", `quick ${n}`, "pages"));
    for (const id of ids) await untilState(id, "completed");
    const first = json<{ runs: RunJson[]; next_before: string }>((await run(["runs", "list", "--tenant", "pages", "--state", "completed", "--limit", "2", "--json"])).stdout);
    expect(first.runs.map(({ id }) => id)).toEqual(ids.slice(0, 2));
    const second = json<{ runs: RunJson[]; next_before: null }>((await run(["runs", "list", "--tenant", "pages", "--limit", "2", "--before", first.next_before, "--json"])).stdout);
    expect(second).toMatchObject({ runs: [{ id: ids[2] }], next_before: null });
    const table = await run(["runs", "list", "--tenant", "pages"]);
    const lines = table.stdout.trimEnd().split("\n");
    expect(lines).toHaveLength(4);
    expect(new Set(lines.map((line) => line.search(/STATE|completed/))).size).toBe(1);
    expect(await run(["runs", "list", "--tenant", "nobody"])).toEqual({ code: 0, stdout: "", stderr: "no runs\n" });
  });

  it("are shown, with events and transcript that parse", async () => {
    const id = await enqueue("helper", "look closely");
    await untilState(id, "completed");
    expect(json((await run(["runs", "show", id, "--json"])).stdout)).toMatchObject({ id, state: "completed", output: "done: look closely", turn: 3, held_by: null });
    const shown = await run(["runs", "show", id]);
    expect(shown.stdout).toMatch(/^used .* out, no price$/m);
    expect(shown.stdout).not.toContain("waits for");
    const events = ndjson<{ seq: number; type: string }>((await run(["runs", "events", id, "--after", "1", "--json"])).stdout);
    expect(events.map(({ seq }) => seq)).toEqual(events.map((_, i) => i + 2));
    expect(events.at(-1)?.type).toBe("run.completed");
    const { messages } = json<{ messages: { role: string }[] }>((await run(["runs", "transcript", id, "--json"])).stdout);
    expect(messages.map(({ role }) => role)).toEqual(["user", "assistant", "tool", "assistant", "tool", "assistant"]);
    const text = await run(["runs", "transcript", id]);
    expect(text.stdout).toContain("✓ look_up");
    expect(text.stdout).not.toContain("\u001B");
  });

  it("take input while they wait, and are cancelled, one wrong id among them notwithstanding", async () => {
    const id = await enqueue("talker", "quick hello");
    await untilState(id, "waiting");
    const sent = await run(["runs", "input", id, "more", "--json"]);
    expect(json(sent.stdout)).toMatchObject({ run_id: id });
    await untilState(id, "waiting");
    const cancelled = await run(["runs", "cancel", nobody, id, "--reason", "enough", "--json"]);
    expect(cancelled.code).toBe(1);
    expect(cancelled.stderr).toBe(`RUN_MISSING: no run ${nobody}\n`);
    expect(json<{ runs: { outcome: string }[] }>(cancelled.stdout).runs.map(({ outcome }) => outcome)).toEqual(["refused", "cancelled"]);
    const followed = await run(["runs", "follow", id, "--json"]);
    expect(followed.code).toBe(5);
    expect(ndjson<{ type: string }>(followed.stdout).map(({ type }) => type)).toContain("input.applied");
    expect(await run(["runs", "input", id, "too late"])).toMatchObject({ code: 1, stderr: expect.stringMatching(/^RUN_FINISHED: /) as string });
  });

  it("end quietly when the reader has seen enough", async () => {
    const id = await enqueue("helper", `quick ${"x".repeat(300_000)}`);
    await untilState(id, "completed");
    const { code, stderr } = await run(["runs", "events", id, "--json"], { closeEarly: true });
    expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  });

  it("an address that is none is refused by name, and with --json on standard output too", async () => {
    const result = await run(["runs", "list", "--json"], { env: { DATABASE_URL: "garbage" } });
    expect(result).toMatchObject({ code: 2, stderr: "CONFIG_INVALID: environment: DATABASE_URL is no postgres:// URL\n" });
    expect(json(result.stdout)).toMatchObject({ error: { code: "CONFIG_INVALID" } });
  });

  it.each([
    [["runs", "show", nobody], 1, "RUN_MISSING: "],
    [["runs", "show", "foo"], 2, "USAGE: "],
    [["agents", "show", "stranger"], 1, "AGENT_UNKNOWN: "],
    [["bogus"], 2, "error: unknown command"],
  ])("say what is wrong in one line: %j", async (args, code, message) => {
    const result = await run(args);
    expect(result).toMatchObject({ code, stdout: "" });
    expect(result.stderr.startsWith(message)).toBe(true);
    expect(result.stderr).not.toMatch(/\n\s+at /);
  });
});

it("agents are listed and shown", async () => {
  const { agents } = json<{ agents: { name: string; workers: number }[] }>((await run(["agents", "list", "--json"])).stdout);
  expect(agents).toMatchObject([
    { name: "helper", workers: 1, model: "fixture:model", tools: 2, versions: 1 },
    { name: "talker", workers: 1 },
  ]);
  const shown = await run(["agents", "show", "helper"]);
  expect(shown).toMatchObject({ code: 0 });
  expect(shown.stdout).toContain('"name": "wait_for_gate"');
});

it("verify rebuilds all requests, and exits 4 when a row was changed", async () => {
  const [id, other] = [await enqueue("helper", "quick and true"), await enqueue("helper", "with tools")];
  for (const each of [id, other]) await untilState(each, "completed");
  const good = await run(["verify", "--all", "--json"]);
  expect(good.code).toBe(0);
  const reports = ndjson<{ ok: boolean; requests: number }>(good.stdout);
  expect(reports.length).toBeGreaterThan(1);
  expect(reports.every(({ ok }) => ok)).toBe(true);
  await db.query(
    "begin; set local capstan_retention.running = on; update capstan.events set payload = jsonb_set(payload::jsonb, '{input}', '\"quick and trve\"') where run_id = '" +
      id +
      "' and seq = 1; commit",
  );
  const bad = await run(["verify", id, "--json"]);
  expect(bad.code).toBe(4);
  expect(ndjson(bad.stdout)).toMatchObject([{ run_id: id, ok: false, problems: [expect.stringContaining("recorded hash")] }]);
});

describe("a worker that is asked to stop", () => {
  it("lets the tool that runs finish, records it, and exits 0", async () => {
    const id = await enqueue("helper", "gate one");
    await untilEvent(id, "model.responded");
    worker.child.kill("SIGTERM");
    await worker.said("worker stopping");
    await writeFile(gate, "");
    expect(await worker.nextEvent()).toMatchObject({ event: "stopped" });
    expect(await worker.exited).toBe(0);
    const { rows } = await db.query(
      "select (select count(*)::int from capstan.events where run_id = $1 and type = 'tool.completed') as completed, worker_id from capstan.runs where id = $1",
      [id],
    );
    expect(rows).toEqual([{ completed: 1, worker_id: null }]);
    const { rows: left } = await db.query("select 1 from capstan.workers where ended_at is null");
    expect(left).toEqual([]);
  });

  it("exits at once at a second signal, and another worker goes on", { timeout: 180_000 }, async () => {
    await rm(gate);
    const id = await enqueue("helper", "gate two");
    // A short lease, so that the next worker takes over soon.
    const short = { ...env, CAPSTAN_LEASE_MS: "1000", CAPSTAN_HEARTBEAT_MS: "200", CAPSTAN_SWEEP_MS: "100" };
    worker = startCapstan(["worker", "--agents", fixtureAgents], { env: short });
    await worker.nextEvent();
    await untilEvent(id, "model.responded");
    worker.child.kill("SIGTERM");
    await worker.said("worker stopping");
    // Two signals within half a second are one press of a key (npm passes Ctrl-C on): this one is ignored…
    worker.child.kill("SIGTERM");
    await new Promise((resolve) => setTimeout(resolve, 700));
    expect(worker.child.exitCode).toBeNull();
    // …and this one is meant.
    worker.child.kill("SIGTERM");
    expect(await worker.exited).toBe(143);
    await writeFile(gate, "");
    worker = startCapstan(["worker", "--agents", fixtureAgents], { env: short });
    await untilState(id, "completed");
    // The tool has side effects and was under way: it is not repeated (P4), the model asked again.
    const { rows } = await db.query("select type, payload ->> 'reason' as reason from capstan.events where run_id = $1 and type like 'tool.%' order by seq limit 1", [id]);
    expect(rows).toEqual([{ type: "tool.interrupted", reason: "worker_lost" }]);
  });
});

async function untilEvent(runId: string, type: string): Promise<void> {
  for (;;) {
    const { rowCount } = await db.query("select 1 from capstan.events where run_id = $1 and type = $2", [runId, type]);
    if (rowCount !== 0) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
