/** What a run makes of the ring's refusals: tools tell the model, a model call ends the run or waits for its quota. */
import pg from "pg";
import { describe, expect, it, onTestFinished, vi } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import type { Guard } from "../../src/capabilities/guard.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { PostgresUsageLedger } from "../../src/store/usage-ledger.ts";
import { silentLog } from "../../src/telemetry/log.ts";
import { openLab, payloads, typesOf, until } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();

const executed: unknown[] = [];
const echo = tool({
  name: "echo",
  description: "Says it again.",
  input: z.object({ text: z.string() }),
  effect: "once",
  execute: (input) => {
    executed.push(input);
    return input.text;
  },
});
const callEcho = { toolCalls: [{ name: "echo", input: { text: "hello" } }] };
const onlyFor =
  (name: string, guard: Guard): Guard =>
  (request, context) =>
    context.agent === name ? guard(request, context) : { kind: "allow" };

describe("a model call that is refused", () => {
  it.each([
    ["has no grant", "GRANT_DENIED", { grants: ["tool:*"] }, undefined],
    ["is denied by the guard", "GUARD_DENIED", {}, (() => ({ kind: "deny", reason: "no" })) satisfies Guard],
    ["makes the guard fail", "GUARD_FAILED", {}, (() => Promise.reject(new Error("down"))) satisfies Guard],
    ["is rewritten by the guard", "GUARD_REWRITE_UNSUPPORTED", {}, (({ request }) => ({ kind: "rewrite", request })) satisfies Guard],
  ] as const)("since it %s ends the run with %s and was never requested", async (_, code, more, guard) => {
    const model = scriptedModel(["never said"], { name: "scripted:refused" });
    const refused = agent({ name: "refused", model: "scripted:refused", instructions: "Speak.", ...more });
    await using lab = await openLab(database.url, { agents: [refused], models: [model], ...(guard === undefined ? {} : { guard: onlyFor("refused", guard) }) });
    const run = await lab.run(refused, "go");
    expect(run.status).toMatchObject({ state: "failed", error: { code } });
    expect(typesOf(run.events)).toEqual(["run.created", "run.failed"]);
    expect(model.calls).toEqual([]);
    await lab.intact(run.id);
  });
});

describe("a tool call that is refused", () => {
  it.each([
    ["has no grant", "GRANT_DENIED", { grants: ["model:*"] }, undefined],
    ["is denied by the guard", "GUARD_DENIED", {}, (() => ({ kind: "deny", reason: "not today" })) satisfies Guard],
    ["is rewritten into what does not fit", "GUARD_FAILED", {}, (() => ({ kind: "rewrite", request: { text: 7 } })) satisfies Guard],
  ] as const)("since it %s is told to the model as %s, and the run goes on", async (_, code, more, guard) => {
    executed.length = 0;
    const model = scriptedModel([callEcho, "then without"], { name: "scripted:told" });
    const told = agent({ name: "told", model: "scripted:told", instructions: "Speak.", tools: [echo], ...more });
    const toolsOnly: Guard = (request, context) => (request.kind === "tool" && guard !== undefined ? (guard as Guard)(request, context) : { kind: "allow" });
    await using lab = await openLab(database.url, { agents: [told], models: [model], guard: onlyFor("told", toolsOnly) });
    const run = await lab.run(told, "go");
    expect(run.status).toMatchObject({ state: "completed", output: "then without" });
    expect(payloads(run.events, "tool.failed")).toMatchObject([{ name: "echo", error: { code } }]);
    expect(JSON.stringify(model.calls[1]?.messages)).toContain(code);
    expect(executed).toEqual([]);
    await lab.intact(run.id);
  });
});

it("a guard sees taint, rewrites a tool's arguments, and the journal says what was executed", async () => {
  executed.length = 0;
  const seen: { kind: string; taint: readonly string[] }[] = [];
  const model = scriptedModel([callEcho, callEcho, "done"], { name: "scripted:rewritten" });
  const rewritten = agent({ name: "rewritten", model: "scripted:rewritten", instructions: "Speak.", tools: [echo] });
  const guard: Guard = ({ kind, request }, { taint }) => {
    seen.push({ kind, taint });
    return kind === "tool" ? { kind: "rewrite", request: { text: `${(request as { text: string }).text}, redacted` } } : { kind: "allow" };
  };
  await using lab = await openLab(database.url, { agents: [rewritten], models: [model], guard: onlyFor("rewritten", guard) });
  const run = await lab.run(rewritten, "go");
  expect(run.status).toMatchObject({ state: "completed" });
  expect(executed).toEqual([{ text: "hello, redacted" }, { text: "hello, redacted" }]);
  expect(payloads(run.events, "tool.completed")[0]).toMatchObject({ executed_input: { text: "hello, redacted" }, output: "hello, redacted" });
  expect(seen.map(({ kind, taint }) => `${kind} ${taint.join()}`)).toEqual(["model ", "tool ", "model tool:echo", "tool tool:echo", "model tool:echo"]);
  await lab.intact(run.id);
});

/** Time passes for the database alone: sessions that begin from now on are ahead. */
async function moveClock(admin: pg.Client, offset: string): Promise<void> {
  await admin.query(`alter database ${database.name} set capstan_clock."offset" = '${offset}'`);
  await admin.query("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()");
}

it("a run that waits for its quota says so, writes nothing while it waits, and resumes by itself when the minute turns", async () => {
  const model = scriptedModel(["one", "two"], { name: "scripted:scarce" });
  const scarce = agent({ name: "scarce", model: "scripted:scarce", instructions: "Speak." });
  const admin = new pg.Client({ connectionString: database.url });
  await admin.connect();
  // The minute has just begun, or it might turn between the two runs by itself.
  const { rows } = await admin.query<{ seconds: number }>("select 65 - extract(second from now())::int as seconds");
  await admin.query(`alter database ${database.name} set capstan_clock."offset" = '${rows[0]?.seconds} seconds'`);
  await using lab = await openLab(database.url, {
    agents: [scarce],
    models: [model],
    settings: { lostJobMs: 500, sweepMs: 100 },
    quotas: [{ scope: "agent", value: "scarce", kind: "turn", unit: "calls", window: "minute", amount: 1 }],
  });
  onTestFinished(async () => {
    await admin.query(`alter database ${database.name} reset capstan_clock."offset"`);
    await admin.end();
  });
  expect((await lab.run(scarce, "first")).status).toMatchObject({ state: "completed", output: "one" });
  const second = await lab.capstan.enqueue(scarce, "second");
  const waiting = await until("the run to wait", async () => {
    const status = await second.status();
    return status.state === "waiting" && status;
  });
  expect(waiting).toMatchObject({ wait_reason: "quota" });
  expect(Date.parse(waiting.wake_at ?? "")).toBeGreaterThan(Date.now());
  const [parked] = payloads(await lab.events(second.id), "run.parked");
  expect(parked).toMatchObject({ reason: "quota", detail: { bucket: "turn/calls/minute/agent/scarce" } });
  expect(parked.detail.retry_after_ms).toBeGreaterThan(0);

  // A look in vain, as a worker takes that is a little early: the run waits on and its journal is as it was.
  await admin.query("update capstan.runs set wake_at = capstan.now() - interval '1 s' where id = $1", [second.id]);
  await admin.query("update capstan.wishes set at = capstan.now() - interval '1 s', ready = true where run_id = $1", [second.id]);
  await until("the run to have been looked at", async () => {
    const found = await admin.query<{ later: boolean }>("select wake_at > capstan.now() as later from capstan.runs where id = $1", [second.id]);
    return found.rows[0]?.later;
  });
  expect(typesOf(await lab.events(second.id))).toEqual(["run.created", "run.parked"]);

  await moveClock(admin, "4 minutes");
  expect(await second.result({ timeoutMs: 30_000 })).toBe("two");
  expect(typesOf(await lab.events(second.id))).toEqual(["run.created", "run.parked", "model.requested", "model.responded", "run.completed"]);
  await lab.intact(second.id);
});

it("without a quota a turn makes not one statement more, with one it reserves and settles each call", async () => {
  const steps = [callEcho, callEcho, "done"];
  const plain = agent({ name: "plain", model: "scripted:plain", instructions: "Speak.", tools: [echo] });
  const statements = async (quotas: Parameters<typeof openLab>[1]["quotas"]): Promise<string[]> => {
    const model = scriptedModel([...steps, ...steps], { name: "scripted:plain" });
    await using lab = await openLab(database.url, { agents: [plain], models: [model], settings: { sweepMs: 60_000 }, ...(quotas === undefined ? {} : { quotas }) });
    await lab.run(plain, "to warm up");
    const query = vi.spyOn(pg.Client.prototype, "query");
    try {
      expect((await lab.run(plain, "go")).status).toMatchObject({ state: "completed" });
      return query.mock.calls.map(([config]) => (typeof config === "string" ? config : ((config as { name?: string; text?: string }).name ?? (config as { text: string }).text)));
    } finally {
      query.mockRestore();
    }
  };
  const without = await statements(undefined);
  expect(without.length).toBeGreaterThan(5);
  expect(without.filter((statement) => /quota/i.test(statement))).toEqual([]);
  const limited = await statements([{ scope: "overall", kind: "turn", unit: "calls", window: "month", amount: 1_000 }]);
  expect(limited.filter((statement) => /quota/i.test(statement)).toSorted()).toEqual([
    ...Array<string>(3).fill("capstan-quota-reserve"),
    ...Array<string>(3).fill("capstan-quota-settle"),
  ]);
});

it("a reply that was rejected and a summary count as usage like any other call, once (C36)", async () => {
  const usage = { input: 1_000, output: 50 };
  const model = scriptedModel(
    [
      { text: "x".repeat(8_000), usage },
      { toolCalls: [{ name: "echo", input: { text: Number.NaN } }], usage },
    ],
    { name: "scripted:rejected" },
  );
  const rejected = agent({ name: "rejected", model: "scripted:rejected", instructions: "Speak.", limits: { inlinePayloadBytes: 4_096 } });
  await using lab = await openLab(database.url, { agents: [rejected], models: [model], catalogue: { prices: { "scripted:rejected": { input: 2, output: 10 } } } });
  for (const why of ["too large to record", "not JSON"]) {
    const run = await lab.run(rejected, why);
    expect(run.status).toMatchObject({ state: "failed", error: { code: "PROVIDER_BAD_RESPONSE" }, usage: { input_tokens: 1_000, output_tokens: 50, cost_usd_micros: 2_500 } });
    await new PostgresUsageLedger(lab.db, (text) => text, { log: silentLog, signal: new AbortController().signal }).record({
      runId: run.id,
      tenant: "default",
      agent: "rejected",
      model: "scripted:small",
      kind: "summary",
      turn: 1,
      attempt: 1,
      outcome: "empty",
      estimated: false,
      usage: { inputTokens: 300, outputTokens: 20, cacheReadTokens: 0, cacheWriteTokens: 0, costUsdMicros: 7 },
    });
    // Replaying a journal performs nothing, so it adds nothing.
    await lab.intact(run.id);
    const { rows } = await lab.db.query(
      "select kind, model, outcome, input_tokens::int, output_tokens::int, cost_usd_micros::int from capstan.usage where run_id = $1 order by kind",
      [run.id],
    );
    expect(rows).toEqual([
      { kind: "summary", model: "scripted:small", outcome: "empty", input_tokens: 300, output_tokens: 20, cost_usd_micros: 7 },
      { kind: "turn", model: "scripted:rejected", outcome: "PROVIDER_BAD_RESPONSE", input_tokens: 1_000, output_tokens: 50, cost_usd_micros: 2_500 },
    ]);
  }
});
