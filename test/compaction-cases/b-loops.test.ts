/** Chapter B of the reported cases: compactions that repeat, change nothing, grow, or are not asked for in time. */
import { APICallError } from "@ai-sdk/provider";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import type { SummarizerFunction } from "../../src/compaction/effect.ts";
import { classifyFailure } from "../../src/providers/errors.ts";
import { createTestDatabase } from "../support/database.ts";
import { openLab, payloads, typesOf, type Lab } from "../engine/harness.ts";
import { driver, lookTool, ran, reading, sound, textOf, type Told } from "./support.ts";

const database = await createTestDatabase();
const TASK = "Read all pages, and name the odd entries.";
const limits = { maxTurns: 500, modelAttempts: 1 };
const system = "Read.";
const common = { instructions: system, tools: [lookTool], limits };

// 17,000 tokens of a window of 20,000.
const heavySystem = "Read with care. ".repeat(4_250).trimEnd();
const heavy = driver("heavy", { windowTokens: 20_000, turn: reading(14, 1_600) });
const strange = driver("strange", { windowTokens: 50_000, turn: (told) => ({ ...(reading(6)(told) ?? { text: "done" }), usage: { input: 0, output: 0, scale: "provider" } }) });
const additive = driver("additive", {
  windowTokens: 200_000,
  turn: (told) => ({
    ...(reading(6, 100_000)(told) ?? { text: "done" }),
    usage: { input: told.turn === 5 ? 161_200 : 90_000, cache_read: 158_000, cache_write: 3_000, output: 0, scale: "provider" },
  }),
});
const subset = driver("subset", {
  windowTokens: 70_000,
  turn: (told) => ({ ...(reading(8)(told) ?? { text: "done" }), usage: { input: 38_196, cache_read: 38_153, output: 0, scale: "provider" } }),
});
// What must not be large is what the view holds; the tools and the system prompt are.
const schemas = driver("schemas", { windowTokens: 12_000, turn: reading(1, 100) });

/** Refuses what is longer than its window, which it told nobody. */
const refusesOver = (bytes: number, pages: number, size: number) => (told: Told) =>
  JSON.stringify(told.call.messages).length > bytes ? ({ fails: "CONTEXT_OVERFLOW" } as const) : reading(pages, size)(told);
const secretive = driver("secretive", { turn: refusesOver(30_000, 30, 2_000) });
const hopeless = driver("hopeless", { turn: ({ turn, call }) => (turn > 8 ? { fails: "CONTEXT_OVERFLOW" } : reading(20)({ turn, call } as Told)) });
const dumb = driver("dumb", { turn: refusesOver(30_000, 17, 2_000), summary: () => ({ text: " " }) });
const noAuto = driver("no-auto", { turn: refusesOver(30_000, 14, 2_000) });
// Each page takes most of what the window has room for.
const crowded = driver("crowded", { windowTokens: 10_000, turn: reading(20, 18_000) });
// Its one large page leads over the hard line, and the summary does not lead back.
const talkative = driver("talkative", { windowTokens: 12_000, turn: (told) => reading(20, told.turn === 15 ? 7_000 : 2_000)(told) });

const doubles: SummarizerFunction = async ({ messages }) => ({ summary: JSON.stringify(messages).repeat(2) });
/** Just small enough to pass. */
const nearlyAll: SummarizerFunction = async ({ messages }) => ({ summary: messages.map(textOf).join("\n").slice(0, -200) });

const agents = {
  heavy: agent({ ...common, name: "heavy", model: heavy.name, instructions: heavySystem, compaction: { enabled: true }, settings: { maxOutputTokens: 500 } }),
  strange: agent({ ...common, name: "strange", model: strange.name, compaction: { enabled: true } }),
  additive: agent({ ...common, name: "additive", model: additive.name, compaction: { enabled: true } }),
  subset: agent({ ...common, name: "subset", model: subset.name, compaction: { enabled: true } }),
  schemas: agent({ ...common, name: "schemas", model: schemas.name, instructions: "x".repeat(26_000 + 15_000 - 400), compaction: { enabled: true } }),
  secretive: agent({ ...common, name: "secretive", model: secretive.name, compaction: { enabled: true } }),
  hopeless: agent({ ...common, name: "hopeless", model: hopeless.name, compaction: { enabled: true } }),
  dumb: agent({ ...common, name: "dumb", model: dumb.name, compaction: { enabled: true } }),
  noAuto: agent({ ...common, name: "no-auto", model: noAuto.name, compaction: { enabled: false } }),
  doubled: agent({ ...common, name: "doubled", model: driver("any", { turn: reading(6) }).name, interactive: true, compaction: { summarizer: "doubles" } }),
  crowded: agent({ ...common, name: "crowded", model: crowded.name, compaction: { enabled: true, keep_last_n: 1 }, settings: { maxOutputTokens: 500 } }),
  talkative: agent({
    ...common,
    name: "talkative",
    model: talkative.name,
    compaction: { enabled: true, autocompact_at_pct: 95, summarizer: "nearlyAll" },
    settings: { maxOutputTokens: 3_000 },
  }),
};
const anyModel = driver("any", { turn: reading(6) });

let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, {
    agents: Object.values(agents),
    models: [heavy, strange, additive, subset, schemas, secretive, hopeless, dumb, noAuto, anyModel, crowded, talkative],
    summarizers: { doubles, nearlyAll },
  });
});
afterAll(() => lab[Symbol.asyncDispose]());

describe.concurrent("loops, no-ops, growth", () => {
  it("C15 system prompt and tools of 85 % of the window: told once, and turns go on to the hard line", async () => {
    const run = await ran(lab, agents.heavy, TASK);
    const told = payloads(run.events, "compaction.skipped").map(({ reason }) => reason);
    const markers = payloads(run.events, "context.compacted");
    expect(told.filter((reason) => reason === "irreducible")).toHaveLength(1);
    expect(markers.length).toBeLessThanOrEqual(3);
    await sound(lab, run.id, heavy, { system: heavySystem, task: TASK });
  });

  it("C15 a gauge that shows nothing never fires", async () => {
    const run = await ran(lab, agents.strange, TASK);
    expect(run.status.state).toBe("completed");
    expect(typesOf(run.events).filter((type) => type.startsWith("compaction."))).toEqual([]);
  });

  it("C15 results of most of the window each: not one summary for every turn", async () => {
    const run = await ran(lab, agents.crowded, TASK);
    expect(run.status.state).toBe("completed");
    expect(payloads(run.events, "context.compacted").length).toBeLessThanOrEqual(10);
    await sound(lab, run.id, crowded, { system, task: TASK });
  });

  it("C15 a summary that hardly saves anything: never two in one turn", async () => {
    const run = await ran(lab, agents.talkative, TASK);
    const turns = payloads(run.events, "context.compacted").map(({ carry }) => carry.applied_turns.at(-1));
    expect(new Set(turns).size).toBe(turns.length);
    await sound(lab, run.id, talkative, { system, task: TASK });
  });

  it("C17 a summary of twice the span is thrown away, charged, and changes nothing", async () => {
    const run = await ran(lab, agents.doubled, TASK);
    const outcome = await run.handle.compact();
    expect(outcome).toMatchObject({ applied: "failed", reason: "inflated" });
    const { state } = await sound(lab, run.id, anyModel, { system, task: TASK });
    expect(state.epoch).toBe(0);
    expect(state.waitReason).toBe("input");
  });

  it("C18 cached parts of an additive count fill the window too", async () => {
    const run = await ran(lab, agents.additive, TASK);
    const [requested] = payloads(run.events, "compaction.requested");
    expect(requested.before).toMatchObject({ scale: "provider" });
    expect(requested.before.tokens).toBeGreaterThanOrEqual(161_200);
    expect(payloads(run.events, "compaction.requested")).toHaveLength(1);
  });

  it("C20 cached tokens that are a subset are not added", async () => {
    const run = await ran(lab, agents.subset, TASK);
    expect(run.status.state).toBe("completed");
    expect(typesOf(run.events)).not.toContain("compaction.requested");
  });

  it("C23 system prompt and schemas are counted before the first answer", async () => {
    const run = await ran(lab, agents.schemas, TASK);
    const told = [...payloads(run.events, "compaction.skipped"), ...payloads(run.events, "compaction.requested")];
    const used = told[0]?.detail?.overhead_tokens ?? told[0]?.before?.tokens;
    expect(used).toBeGreaterThan(10_000);
  });

  it("C24 a refusal for length is answered by one compaction and one smaller request", async () => {
    const run = await ran(lab, agents.secretive, TASK);
    expect(run.status.state).toBe("completed");
    const failures = payloads(run.events, "model.failed");
    const markers = payloads(run.events, "context.compacted");
    expect(failures.length).toBeGreaterThanOrEqual(2);
    expect(markers.map(({ trigger }) => trigger)).toEqual(failures.map(() => "overflow"));
    const { requests } = await sound(lab, run.id, secretive, { system, task: TASK });
    const sizes = requests.map(({ messages }) => JSON.stringify(messages).length);
    for (const [i, size] of sizes.entries()) if (size > 30_000) expect(sizes[i + 1]).toBeLessThan(size);
  });

  it("C24 a server that refuses whatever it is sent is asked twice, and the run waits with a typed reason", async () => {
    const run = await ran(lab, agents.hopeless, TASK);
    expect(run.status).toMatchObject({ state: "waiting", wait_reason: "context_exhausted" });
    expect(payloads(run.events, "context.compacted")).toHaveLength(1);
    expect(payloads(run.events, "model.failed")).toHaveLength(2);
  });

  it("C24 without a usable summary the same request is not sent again", async () => {
    const run = await ran(lab, agents.dumb, TASK);
    expect(run.status.state).toBe("completed");
    expect(payloads(run.events, "compaction.failed").map(({ reason }) => reason)).toEqual(["empty"]);
    expect(payloads(run.events, "context.pruned")).toHaveLength(1);
    expect(payloads(run.events, "model.failed")).toHaveLength(1);
    await sound(lab, run.id, dumb, { system, task: TASK });
  });

  it("C59 with auto off the run waits, nobody summarizes, and a compaction by hand lets it go on", async () => {
    const run = await ran(lab, agents.noAuto, TASK);
    expect(run.status).toMatchObject({ state: "waiting", wait_reason: "context_exhausted" });
    expect(noAuto.summaries(run.id)).toEqual([]);
    expect(await run.handle.compact()).toMatchObject({ applied: "live" });
    expect(await run.handle.result({ timeoutMs: 20_000 })).toBe("All is done.");
    expect(noAuto.summaries(run.id)).toHaveLength(1);
    await sound(lab, run.id, noAuto, { system, task: TASK });
  });
});

describe("C24 what says that a request is too long", () => {
  const body = (status: number | undefined, error: unknown): APICallError =>
    new APICallError({
      message: "refused",
      url: "http://model",
      requestBodyValues: {},
      responseBody: typeof error === "string" ? error : JSON.stringify(error),
      ...(status === undefined ? {} : { statusCode: status }),
    });
  it.each([
    [true, body(400, { error: { code: "context_length_exceeded", message: "Bad request" } })],
    [true, body(400, "code=context_length_exceeded")],
    [true, body(400, { error: { message: "The input exceeds the maximum allowed input length of 262144" } })],
    [true, body(400, { error: "prompt too long; exceeded max context length by 17 tokens" })],
    [true, body(400, { error: { type: "invalid_request_error", message: "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000" } })],
    [true, body(413, "Request Entity Too Large")],
    [true, body(413, { error: { message: "request body is too large: 34 MB" } })],
    [true, body(500, { error: { message: "context size has been exceeded" } })],
    [true, body(400, { error: { type: "exceed_context_size_error", message: "n_prompt_tokens 9000" } })],
    [true, body(undefined, { error: { code: "model_context_window_exceeded", message: "stopped" } })],
    [true, body(400, { error: { message: "prompt is too long: 212345 tokens > 200000 maximum" } })],
    [true, body(400, { message: "Input is too long for requested model." })],
    [false, body(429, { error: { code: "rate_limit_exceeded", message: "Request too large on tokens per minute (TPM): Limit 30000, Requested 41000" } })],
    [false, body(429, { error: { message: "Number of tokens has exceeded your per-minute limit" } })],
    [false, body(400, { error: { message: "tools[0].function.name: string too long" } })],
  ])("C24 is it? %s", (expected, error) => {
    expect(classifyFailure(error, { answering: false, nowMs: 0 }).code === "CONTEXT_OVERFLOW").toBe(expected);
  });
});
