/** Further shapes of the reported kinds, through the engine: what comes together with a summary. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { contextTool } from "../../src/agents/engine-tools.ts";
import type { CompactionPolicy } from "../../src/domain/compaction/policy.ts";
import { createTestDatabase } from "../support/database.ts";
import { openLab, payloads, typesOf, until, type AnyAgent, type Lab } from "../engine/harness.ts";
import { type Driver, driver, gate, look, lookTool, patient, ran, reading, type Reply, sound, textOf, type Told } from "./support.ts";

const database = await createTestDatabase();
const TASK = "Read all pages, and name the odd entries.";
const system = "Read.";
const isCompacted = (text: string): boolean => text.includes("<capstan-summary");
const settings = { maxOutputTokens: 500 };
const common = { instructions: system, tools: [lookTool], limits: { maxTurns: 500 }, settings };

const models: Driver[] = [];
const agents: AnyAgent[] = [];
const made = (name: string, options: Parameters<typeof driver>[1], spec: Omit<Partial<Parameters<typeof agent>[0]>, "name" | "model">) => {
  const model = driver(name, options);
  models.push(model);
  const its = agent({ ...common, ...spec, name, model: model.name });
  agents.push(its);
  return { model, agent: its };
};
const enabled: CompactionPolicy = { enabled: true };

const refuses = (bytes: number, otherwise: (told: Told) => Reply | undefined) => (told: Told) =>
  JSON.stringify(told.call.messages).length > bytes ? ({ fails: "CONTEXT_OVERFLOW" } as const) : otherwise(told);
const crowdGate = gate();
const crowd = made("crowd", { turn: refuses(20_000, reading(12)), summary: async () => (await crowdGate.opened, "a summary") }, { compaction: enabled, interactive: true });
const zeroKept = made("zero-kept", { turn: refuses(20_000, reading(24)) }, { compaction: { ...enabled, keep_last_n: 0 } });
/** Does not run ahead of its early summary. */
const unhurried =
  (pages: number) =>
  async (told: Told): Promise<Reply | undefined> => {
    if (told.turn === 17)
      await until(
        "the early summary",
        async () => (await lab.db.query("select from capstan.compaction_tasks where run_id = $1 and state = 'ready'", [told.runId])).rows.length > 0,
      );
    return reading(pages)(told);
  };
const early = made("early", { windowTokens: 20_000, turn: unhurried(26) }, { compaction: { ...enabled, prefetch_at_pct: 30, autocompact_at_pct: 60 } });
const earlyRefused = made(
  "early-refused",
  { windowTokens: 40_000, turn: async (told) => (refuses(46_000, () => ({}))(told)?.fails === undefined ? await unhurried(24)(told) : { fails: "CONTEXT_OVERFLOW" }) },
  { compaction: { ...enabled, prefetch_at_pct: 10, autocompact_at_pct: 90 } },
);
const lateGate = gate();
const lateEarly = made(
  "late-early",
  { windowTokens: 40_000, turn: refuses(34_000, reading(20)), summary: async () => (await lateGate.opened, "a summary") },
  { compaction: { ...enabled, prefetch_at_pct: 10, autocompact_at_pct: 90 } },
);
const lastTurn = made(
  "last-turn",
  { turn: async (told) => (told.turn === 9 ? (await until("the summary", () => lastTurn.model.summaries(told.runId).length > 0), { text: "Done." }) : reading(8)(told)) },
  { compaction: { after_bytes: 14_000 } },
);
const withInput = gate();
const together = made(
  "together",
  { windowTokens: 12_000, turn: reading(30), summary: async () => (await withInput.opened, "a summary") },
  { compaction: enabled, interactive: true },
);
const cancelGate = gate();
const cancelled = made("cancelled", { windowTokens: 8_000, turn: reading(30), summary: async () => (await cancelGate.opened, "a summary") }, { compaction: enabled });
const both = made("both", { windowTokens: 12_000, turn: reading(26) }, { compaction: { ...enabled, after_bytes: 20_000 } });
const brief = driver("elsewhere:brief", { turn: reading(1), summary: () => "a summary by another" });
models.push(brief);
const strangers = made("strangers", { windowTokens: 12_000, turn: reading(28) }, { compaction: { ...enabled, model: brief.name, instruction: "SUMMARIZE shortly." } });
const small = made("small", { windowTokens: 6_000, turn: refuses(24_000, reading(20)) }, {});
const falls = made(
  "falls",
  { windowTokens: 100_000, turn: ({ turn }) => (turn > 6 ? { fails: "PROVIDER_UNAVAILABLE" } : { asks: [look(turn, 5_000)] }) },
  { fallbacks: [small.model.name], compaction: enabled, limits: { maxTurns: 500, modelAttempts: 1 } },
);
const fails = made(
  "fails",
  {
    turn: patient(
      () => lab,
      ({ turn, call }) =>
        turn <= 8
          ? { asks: [look(turn)] }
          : turn === 9
            ? { asks: [{ name: "context", input: { op: "compact" } }] }
            : isCompacted(textOf(call.messages[0])) || turn > 60
              ? undefined
              : { asks: [look(turn, 50)] },
    ),
    summary: ({ nth }) => (nth === 0 ? { fails: "PROVIDER_AUTH" } : "a summary"),
  },
  { tools: [lookTool, contextTool()] },
);
let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, { agents, models, settings: { graceMs: 300 } });
});
afterAll(async () => {
  for (const each of [crowdGate, lateGate, withInput, cancelGate]) each.open();
  await lab[Symbol.asyncDispose]();
});

describe.concurrent("what comes together with a summary", () => {
  it("sixteen inputs that wait in front of the summary of a refused request do not hide it", async () => {
    const handle = await lab.capstan.enqueue(crowd.agent, TASK);
    await until("the wait", async () => (await handle.status()).wait_reason === "compaction");
    for (let n = 1; n <= 16; n++) await handle.send(`input ${n}`);
    crowdGate.open();
    await until("the marker", async () => typesOf(await lab.events(handle.id)).includes("context.compacted"), 10_000);
    await until("all inputs", async () => (await handle.status()).wait_reason === "input");
    const { requests } = await sound(lab, handle.id, crowd.model, { system, task: TASK });
    const said = requests.at(-1)?.messages.map(textOf) ?? [];
    for (let n = 1; n <= 16; n++) expect(said.filter((text) => text === `input ${n}`)).toHaveLength(1);
  });

  it("a request that was refused is the same turn's again, also when no message of it is kept", async () => {
    const run = await ran(lab, zeroKept.agent, TASK);
    expect(run.status.state).toBe("completed");
    const refused = run.events.filter(({ type }) => type === "model.failed");
    expect(refused.length).toBeGreaterThan(0);
    for (const { turn, seq } of refused) {
      const next = run.events.find((event) => event.type === "model.requested" && event.seq > seq);
      expect(next).toMatchObject({ turn, payload: { again: "failed" } });
    }
    expect(payloads(run.events, "model.requested").length).toBe(25 + refused.length);
    await sound(lab, run.id, zeroKept.model, { system, task: TASK });
  });

  it("a summary that was made early is put in when its line is reached, not before", async () => {
    const run = await ran(lab, early.agent, TASK);
    expect(run.status.state).toBe("completed");
    const prepared = run.events.find(({ type }) => type === "compaction.prepared");
    const marker = run.events.find(({ type }) => type === "context.compacted");
    expect(prepared).toBeDefined();
    expect(payloads(run.events, "context.compacted")[0].before.tokens).toBeGreaterThanOrEqual(11_500);
    expect(marker?.turn ?? 0).toBeGreaterThan((prepared?.turn ?? 0) + 2);
    await sound(lab, run.id, early.model, { system, task: TASK });
  });

  it("a summary that was made early is put in when the provider refuses before", async () => {
    const run = await ran(lab, earlyRefused.agent, TASK);
    expect(run.status.state).toBe("completed");
    const types = typesOf(run.events);
    expect(types).toContain("compaction.prepared");
    expect(types.slice(types.indexOf("model.failed"))).toContain("context.compacted");
    expect(payloads(run.events, "run.parked")).toEqual([]);
    await sound(lab, run.id, earlyRefused.model, { system, task: TASK });
  });

  it("a summary that is being made early when the provider refuses is waited for, and put in as it comes", async () => {
    const handle = await lab.capstan.enqueue(lateEarly.agent, TASK);
    await until("the wait", async () => (await handle.status()).wait_reason === "compaction");
    lateGate.open();
    expect(await handle.result({ timeoutMs: 20_000 })).toBe("All is done.");
    await sound(lab, handle.id, lateEarly.model, { system, task: TASK });
  });

  it("a run that ends in the very turn its summary arrives ends", async () => {
    const run = await ran(lab, lastTurn.agent, TASK);
    expect(run.status.state).toBe("completed");
    await sound(lab, run.id, lastTurn.model, { system, task: TASK });
    await until(
      "the task is settled",
      async () => (await lab.db.query("select from capstan.compaction_tasks where run_id = $1 and state in ('requested', 'summarizing', 'ready')", [run.id])).rows.length === 0,
    );
  });

  it("input that arrives with the summary is behind it, once", async () => {
    const handle = await lab.capstan.enqueue(together.agent, TASK);
    await until("the wait", async () => (await handle.status()).wait_reason === "compaction", 30_000);
    const sent = handle.send("NEWS");
    withInput.open();
    await sent;
    await lab.settled(handle.id, 30_000);
    const { requests } = await sound(lab, handle.id, together.model, { system, task: TASK });
    expect(JSON.stringify(requests.at(-1)).split("NEWS").length - 1).toBeLessThanOrEqual(1);
    expect(requests.some(({ messages }) => messages.filter((message) => textOf(message) === "NEWS").length === 1)).toBe(true);
  });

  it("a run that is cancelled while it waits is over, and its task too", async () => {
    const handle = await lab.capstan.enqueue(cancelled.agent, TASK);
    await until("the wait", async () => (await handle.status()).wait_reason === "compaction");
    await handle.cancel();
    cancelGate.open();
    await until("the task", async () => (await lab.db.query("select from capstan.compaction_tasks where run_id = $1 and state = 'superseded'", [handle.id])).rows.length === 1);
    expect((await handle.status()).state).toBe("cancelled");
    await sound(lab, handle.id, cancelled.model, { system, task: TASK });
  });

  it("bytes and percentage together: whichever is first", async () => {
    const run = await ran(lab, both.agent, TASK);
    expect(run.status.state).toBe("completed");
    expect(payloads(run.events, "compaction.requested").every(({ by_bytes }) => by_bytes === true)).toBe(true);
    await sound(lab, run.id, both.model, { system, task: TASK });
  });

  it("a summarizer of another provider, with an instruction of its own", async () => {
    const run = await ran(lab, strangers.agent, TASK);
    expect(run.status.state).toBe("completed");
    expect(payloads(run.events, "context.compacted")[0]).toMatchObject({ model: brief.name, head: { summary: "a summary by another" } });
    expect(brief.summaries(run.id)[0]?.system).toBe("SUMMARIZE shortly.");
    await sound(lab, run.id, strangers.model, { system, task: TASK });
  });

  it("a fallback with a smaller window compacts to its own", async () => {
    const run = await ran(lab, falls.agent, TASK);
    expect(run.status.state).toBe("completed");
    expect(payloads(run.events, "context.compacted").map(({ trigger }) => trigger)).toContain("overflow");
    await sound(lab, run.id, small.model, { system, task: TASK });
  });

  it("a wish of the agent whose summary fails is told, and the run goes on", async () => {
    const run = await ran(lab, fails.agent, TASK);
    expect(run.status.state).toBe("completed");
    expect(payloads(run.events, "compaction.failed").map(({ reason }) => reason)).toEqual(["provider"]);
    await sound(lab, run.id, fails.model, { system, task: TASK });
  });
});
