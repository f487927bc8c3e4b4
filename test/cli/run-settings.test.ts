/** A run's own compaction and budget by the command line, and in the runs that come of it: shown, spawned, exported. */
import pg from "pg";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { compactionPolicy, type CompactionPolicy } from "../../src/domain/compaction/policy.ts";
import type { Budget } from "../../src/domain/budget.ts";
import { PostgresDefinitionStore } from "../../src/store/definitions.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { openLab, payloads, until } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { capstan } from "./support.ts";

const [here, there] = [await createTestDatabase(), await createTestDatabase()];
const db = new pg.Pool({ connectionString: here.url, max: 2 });
db.on("error", () => {});
afterAll(() => db.end());
const env = { DATABASE_URL: here.url };

const clerk = agent({ name: "clerk", model: "offline:auditor", instructions: "Work.", compaction: { keep_last_n: 7 }, budget: { soft: { turns: 3 }, hard: { tokens: 1_000 } } });
beforeAll(() => new PostgresDefinitionStore(db, (text) => text).register(clerk.definition));

/** A value for every field, as one types it. */
const whole: Required<CompactionPolicy> = {
  enabled: true,
  autocompact_at_pct: 70,
  at_tokens: 9_000,
  after_bytes: 60_000,
  keep_first: false,
  keep_last_n: 2,
  target_percentage: 20,
  model: "offline:extractive",
  summarizer: "mine",
  instruction: "Short, please.",
  max_tokens: 2_048,
  prefetch_at_pct: 50,
};
const fields = Object.entries(whole).flatMap(([field, value]) => ["--compaction", `${field}=${String(value)}`]);
const limits = ["--budget", "soft.turns=2", "--budget", "hard.tokens=900", "--budget", "wrap_up=true"];
const budget: Budget = { soft: { turns: 2 }, hard: { tokens: 900 }, wrap_up: true };

async function created(runId: string): Promise<{ compaction?: unknown; budget?: unknown }> {
  const { rows } = await db.query<{ payload: { compaction?: unknown; budget?: unknown } }>("select payload from capstan.events where run_id = $1 and seq = 1", [runId]);
  return rows[0]?.payload ?? {};
}

describe("on the command line", () => {
  it("every field is set by name, or by JSON, and shown", async () => {
    expect(Object.keys(whole).toSorted()).toEqual(Object.keys(compactionPolicy.shape).toSorted());
    const { code, stdout, stderr } = await capstan(["enqueue", "clerk", "a", ...fields, ...limits], { env });
    expect(code, stderr).toBe(0);
    const id = stdout.trim();
    expect(await created(id)).toMatchObject({ compaction: whole, budget });
    const json = await capstan(["enqueue", "clerk", "a", "--compaction", JSON.stringify(whole), "--budget", JSON.stringify(budget)], { env });
    expect(await created(json.stdout.trim())).toMatchObject({ compaction: whole, budget });
    const shown = JSON.parse((await capstan(["runs", "show", id, "--json"], { env })).stdout) as { compaction: unknown; budget: unknown };
    expect(shown).toMatchObject({ compaction: whole, budget });
    const text = (await capstan(["runs", "show", id], { env })).stdout;
    expect(text).toMatch(/^budget +hard\.tokens 900, soft\.turns 2, wrap_up true$/m);
    expect(text).toMatch(/^compaction +.*keep_last_n 2/m);
  });

  it("a schedule, a fork and a message take them too", async () => {
    await capstan(["schedules", "create", "nightly", "@daily", "clerk", "b", "--compaction", "keep_last_n=1", "--budget", "hard.tokens=800"], { env });
    const bySchedule = (await capstan(["schedules", "run", "nightly"], { env })).stdout.trim();
    expect(await created(bySchedule)).toMatchObject({ compaction: { keep_last_n: 1 }, budget: { hard: { tokens: 800 } } });
    const fork = (await capstan(["runs", "fork", bySchedule, "--budget", "hard.tokens=700", "--compaction", "keep_first=false"], { env })).stdout.trim();
    expect(await created(fork)).toMatchObject({ compaction: { keep_last_n: 1, keep_first: false }, budget: { hard: { tokens: 700 } } });
    const conversation = (await capstan(["conversations", "create", "clerk"], { env })).stdout.trim();
    const message = (await capstan(["conversations", "send", conversation, "hello", "--budget", "hard.tokens=600"], { env })).stdout.trim();
    expect(await created(message)).toMatchObject({ budget: { hard: { tokens: 600 } } });
  });

  it("what is wrong is refused by its field, and half of JSON is a slip", async () => {
    const refused = async (...args: string[]) => await capstan(["enqueue", "clerk", "a", ...args], { env });
    expect((await refused("--compaction", "keep_last_n=-1")).stderr).toContain("compaction.keep_last_n must be a whole number of at least 0, not -1");
    expect((await refused("--budget", "hard.tokens=1001")).stderr).toContain("budget.hard.tokens must be at most 1000");
    expect(await refused("--budget", "tokens")).toMatchObject({ code: 2, stderr: expect.stringContaining("hard.tokens=100000") as string });
    expect(await refused("--compaction", '{"enabled": ')).toMatchObject({ code: 2, stderr: expect.stringContaining("begins like JSON") as string });
  });
});

it("goes down to children, and to another database with the run", async () => {
  const spawning = { toolCalls: [{ name: "agent", input: { op: "spawn", agent: "child", input: "x", compaction: { keep_last_n: 0 } } }] };
  const parent = agent({ name: "parent", model: "scripted:parent", instructions: "Work.", spawn: { agents: ["child"] }, interactive: true });
  const child = agent({ name: "child", model: "scripted:child", instructions: "Work." });
  const models = [scriptedModel([spawning, "joined"], { name: "scripted:parent", by: "turn" }), scriptedModel(["did"], { name: "scripted:child", by: "turn" })];
  await using lab = await openLab(here.url, { agents: [parent, child], models });
  const run = await lab.capstan.enqueue(parent, "go", { compaction: { enabled: true, keep_last_n: 5 }, budget: { hard: { tokens: 50_000 }, soft: { tokens: 1 } } });
  await until("the answer", async () => (await run.status()).wait_reason === "input");
  const [spawned] = payloads(await lab.events(run.id), "call.waiting")[0].wait.children as { run_id: string; compaction: unknown; budget: Budget }[];
  expect(spawned?.compaction).toEqual({ enabled: true, keep_last_n: 0 });
  expect(spawned?.budget.hard?.tokens).toBeLessThan(50_000);
  expect(await created(spawned?.run_id ?? "")).toMatchObject({ compaction: spawned?.compaction, budget: spawned?.budget });

  const file = await capstan(["runs", "export", run.id], { env });
  const before = await run.status();
  const imported = await capstan(["runs", "import", "--paused"], { env: { DATABASE_URL: there.url }, input: file.stdout });
  expect(imported.code, imported.stderr).toBe(0);
  const after = JSON.parse((await capstan(["runs", "show", run.id, "--json"], { env: { DATABASE_URL: there.url } })).stdout) as {
    compaction: unknown;
    budget: unknown;
    budget_level?: number;
  };
  expect(after).toMatchObject({ compaction: before.compaction, budget: before.budget });
  const other = new pg.Client({ connectionString: there.url });
  await other.connect();
  const { rows } = await other.query("select budget_level, policy, overrides from capstan.runs where id = $1", [run.id]);
  await other.end();
  expect(rows).toEqual([{ budget_level: 1, policy: { enabled: true, keep_last_n: 5 }, overrides: { budget: { hard: { tokens: 50_000 }, soft: { tokens: 1 } } } }]);
});
