import pg from "pg";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { createTestDatabase } from "../support/database.ts";
import { capstan, fixtureAgents, ndjson, startCapstan, type RunningCli } from "./support.ts";

const database = await createTestDatabase();
// Ten processes a test: some seconds each where everything else runs at the same time.
vi.setConfig({ testTimeout: 180_000 });
const env = { DATABASE_URL: database.url, CAPSTAN_LOG_LEVEL: "info" };
const run = (args: readonly string[]) => capstan(args, { env });
const json = <T>(text: string): T => JSON.parse(text) as T;

const db = new pg.Pool({ connectionString: database.url, max: 2 });
db.on("error", () => {});
let worker: RunningCli;
beforeAll(async () => {
  worker = startCapstan(["worker", "--agents", fixtureAgents, "--slots", "4"], { env });
  await worker.nextEvent();
});
afterAll(async () => {
  if (worker.child.exitCode === null) worker.child.kill("SIGKILL");
  await worker.exited;
  await db.end();
});

async function ended(input: string, tenant = "default"): Promise<string> {
  const { rows } = await db.query<{ id: string }>("select capstan.enqueue_run(agent => 'helper', input => to_jsonb($1::text), tenant => $2) as id", [input, tenant]);
  const id = rows[0]?.id as string;
  await untilEnded(id);
  return id;
}

async function untilEnded(id: string): Promise<void> {
  for (;;) {
    const { rows } = await db.query("select 1 from capstan.runs where id = $1 and finished_at is not null", [id]);
    if (rows.length > 0) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

describe("runs", () => {
  it("are forked with a message, shown as they were, and their beginning is marked", async () => {
    const base = await ended("good");
    const forked = await run(["runs", "fork", base, "--input", "and more", "--set", "instructions=Be brief."]);
    expect(forked.code, forked.stderr).toBe(0);
    expect(forked.stderr).toContain("tools may do again what they did there behind it");
    const fork = forked.stdout.trim();
    await untilEnded(fork);
    const transcript = await run(["runs", "transcript", fork]);
    expect(transcript.stdout).toMatch(/good[\s\S]*── the \d+ messages above are what the run began with ──[\s\S]*and more/);
    expect((await run(["runs", "show", fork])).stdout).toContain(`run ${base}, event `);
    const events = ndjson<{ seq: number; type: string }>((await run(["runs", "events", fork, "--json"])).stdout);
    expect(events.slice(0, 2)).toMatchObject([
      { seq: 1, type: "run.created" },
      { seq: 2, type: "input.applied" },
    ]);
    const then = json<{ seq: number; turn: number; messages: unknown[] }>((await run(["runs", "show", fork, "--at", "2", "--json"])).stdout);
    expect(then.seq).toBe(2);
    expect(then.messages.length).toBeGreaterThanOrEqual(3);
    expect((await run(["runs", "show", fork, "--at", "2"])).stdout).toContain("it can be forked here");
    const illegal = await run(["runs", "fork", base, "--at", "2", "--json"]);
    expect(illegal.code).toBe(1);
    expect(json<{ error: { code: string; details: unknown } }>(illegal.stdout).error).toMatchObject({ code: "FORK_POINT_ILLEGAL", details: { at: 2, before: 1 } });
    expect((await run(["verify", fork, base])).code).toBe(0);
  });

  it("are retried and cancelled by what they have in common, after a look", async () => {
    const failed = [await ended("fail now", "acme"), await ended("fail now", "acme")];
    const look = await run(["runs", "retry", "--tenant", "acme"]);
    expect(look.code).toBe(0);
    expect(look.stdout).toContain("PROVIDER_BAD_REQUEST");
    expect(look.stderr).toContain("2 runs would be retried; --yes does it");
    const failures = json<{ failures: { code: string; runs: number }[] }>((await run(["runs", "failures", "--tenant", "acme", "--json"])).stdout);
    expect(failures.failures).toMatchObject([{ code: "PROVIDER_BAD_REQUEST", runs: 2 }]);
    const done = json<{ done: number; run_ids: string[] }>((await run(["runs", "retry", "--tenant", "acme", "--yes", "--json"])).stdout);
    expect(done).toMatchObject({ done: 2 });
    for (const id of done.run_ids) await untilEnded(id);
    const one = await run(["runs", "retry", failed[0] as string]);
    expect(one.code, one.stderr).toBe(0);
    expect((await run(["runs", "retry"])).code).toBe(2);
    expect((await run(["runs", "cancel", "--tenant", "nobody", "--yes"])).stderr).toContain("no such runs");
    expect((await run(["runs", "cancel", failed[0] as string])).stdout).toContain("had ended already");
  });
});

describe("conversations", () => {
  it("are begun, go on from message to message, and are shown", async () => {
    const id = (await run(["conversations", "create", "helper", "--title", "Tides"])).stdout.trim();
    const first = await run(["conversations", "send", id, "good", "--wait"]);
    expect(first.code, first.stderr).toBe(0);
    const next = await run(["conversations", "send", id, "better", "--wait", "--json"]);
    expect(next.code, next.stderr).toBe(0);
    const shown = json<{ runs: number; run_ids: string[]; messages: unknown[] }>((await run(["conversations", "show", id, "--json"])).stdout);
    expect(shown.runs).toBe(2);
    expect(shown.messages.length).toBeGreaterThanOrEqual(4);
    expect((await run(["conversations", "list"])).stdout).toContain("Tides");
    expect((await run(["conversations", "show", id])).stdout).toContain("better");
    expect((await run(["conversations", "send", "0190", "x"])).code).toBe(2);
  });
});
