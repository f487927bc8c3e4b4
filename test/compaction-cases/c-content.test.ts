/** Chapter C of the reported cases: reasoning, and content that is empty, oversized, or no text. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import type { CompactionPolicy } from "../../src/domain/compaction/policy.ts";
import { canonicalJson, type JsonValue } from "../../src/domain/json.ts";
import type { AssistantMessage, Message } from "../../src/domain/transcript/message.ts";
import { createTestDatabase } from "../support/database.ts";
import { openLab, payloads, typesOf, until, type AnyAgent, type Lab } from "../engine/harness.ts";
import { type Driver, driver, look, lookTool, patient, ran, reading, sound, SUMMARY, textOf, type Told } from "./support.ts";

const database = await createTestDatabase();
const TASK = "Read all pages, and name the odd entries.";
const system = "Read.";
const settings = { maxOutputTokens: 500 };
const common = { instructions: system, tools: [lookTool], limits: { maxTurns: 500 }, settings };

const models: Driver[] = [];
const agents: AnyAgent[] = [];
const made = (name: string, options: Parameters<typeof driver>[1], compaction: CompactionPolicy, more: { readonly interactive?: boolean } = {}) => {
  const model = driver(name, options);
  models.push(model);
  const its = agent({ ...common, ...more, name, model: model.name, compaction });
  agents.push(its);
  return { model, agent: its };
};
const chat = (name: string, options: Parameters<typeof driver>[1], compaction: CompactionPolicy = {}) => made(name, options, compaction, { interactive: true });
const materialBytes = ({ call }: Told): number => Buffer.byteLength(textOf(call.messages[0]));

const thinksAlways = made(
  "thinks-always",
  { windowTokens: 8_000, turn: ({ turn }) => (turn > 24 ? undefined : { thinks: `secret thought ${turn}`, asks: [look(turn), look(turn + 100, 100)] }) },
  { enabled: true },
);
const thinksOnce = made(
  "thinks-once",
  {
    windowTokens: 8_000,
    turn: ({ turn, call }) => (turn > 24 ? undefined : { ...(call.messages.at(-1)?.role === "user" ? { thinks: `secret thought ${turn}` } : {}), asks: [look(turn)] }),
  },
  { enabled: true },
);
// A third of what it is given fits.
const narrow = driver("narrow", {
  windowTokens: 4_000,
  turn: reading(1),
  summary: (told) => (materialBytes(told) > 9_000 ? { fails: "CONTEXT_OVERFLOW" } : "DONE: a part was read."),
});
const never = driver("never", { windowTokens: 4_000, turn: reading(1), summary: () => ({ fails: "CONTEXT_OVERFLOW" }) });
models.push(narrow, never);
const thrice = chat("thrice", { turn: reading(12, 3_000) }, { model: narrow.name });
const softly = chat("softly", { turn: reading(12, 3_000) }, { model: never.name });
const hardly = made("hardly", { windowTokens: 8_000, turn: reading(14, 3_000) }, { enabled: true, model: never.name });
const oneHuge = chat(
  "one-huge",
  { turn: ({ turn }) => (turn > 6 ? undefined : turn === 2 ? { text: `I thought: ${"all of it matters ".repeat(6_000)}`, asks: [look(2)] } : { asks: [look(turn)] }) },
  { model: narrow.name },
);
const fails = chat("fails", { turn: reading(6), summary: () => ({ fails: "PROVIDER_BAD_REQUEST" }) });
const passing = chat("passing", { turn: reading(6), summary: ({ nth }) => (nth === 0 ? { fails: "PROVIDER_OVERLOADED" } : "Error 17 was found on page 3.") });
const blank = chat("blank", { turn: ({ turn }) => (turn % 8 === 0 ? undefined : { asks: [look(turn)] }), summary: () => "a good summary" });
const callsTools = chat("calls-tools", {
  turn: reading(6),
  summary: () => ({ asks: [{ name: "look", input: { page: 666, bytes: 10 } }], usage: { input: 1_000, output: 7, scale: "provider" } }),
});
const picture = made("picture", { windowTokens: 200_000, turn: () => ({ text: "A cat." }) }, { enabled: true });
const pictures = made("pictures", { turn: patient(() => lab, reading(12)) }, { after_bytes: 44_000, keep_first: false });
const overcounted = made(
  "overcounted",
  {
    windowTokens: 60_000,
    turn: (told) => ({ ...(reading(12)(told) ?? { text: "All is done." }), usage: { input: told.turn * 6_000, output: 1, scale: "provider" } }),
    summary: () => ({ fails: "CONTEXT_OVERFLOW" }),
  },
  { enabled: true },
);
const costly = chat("costly", { turn: reading(6), summary: () => ({ text: SUMMARY, usage: { input: 5_000, output: 50, scale: "provider" } }) });
const poor = chat("poor", { turn: reading(6) });

let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, {
    agents,
    models,
    settings: { graceMs: 300 },
    quotas: [{ scope: "agent", value: "poor", kind: "summary", unit: "tokens", window: "day", amount: 1_000 }],
  });
});
afterAll(() => lab[Symbol.asyncDispose]());

const beginsSigned = ({ content }: AssistantMessage): boolean => content[0]?.type === "reasoning";
const isSigned = (message: Message): boolean => message.role === "assistant" && message.content.some(({ type }) => type === "reasoning");
const usageRows = async (runId: string) =>
  (
    await lab.db.query(
      "select outcome, input_tokens::int as input, output_tokens::int as output, estimated from capstan.usage where run_id = $1 and kind = 'summary' order by at",
      [runId],
    )
  ).rows;

describe.concurrent("reasoning, empty and oversized content", () => {
  it.each([["thinks-always"], ["thinks-once"]])("C25 signed reasoning is whole or gone, and no summarizer reads it: %s", async (name) => {
    const { agent: its, model } = name === "thinks-always" ? thinksAlways : thinksOnce;
    const run = await ran(lab, its, TASK);
    expect(run.status.state).toBe("completed");
    expect(payloads(run.events, "context.compacted").length).toBeGreaterThan(0);
    const { requests, events } = await sound(lab, run.id, model, { system, task: TASK });
    for (const { messages } of requests) {
      const loop = messages.slice(messages.findLastIndex(({ role }) => role === "user") + 1);
      const first = loop[0];
      if (loop.some(isSigned) && first?.role === "assistant") expect(beginsSigned(first)).toBe(true);
    }
    // Each response stands in a request as it was given, or not at all.
    const given = new Set(payloads(events, "model.responded").map(({ content }) => canonicalJson(content)));
    for (const { messages } of requests)
      for (const message of messages) if (message.role === "assistant") expect(given.has(canonicalJson(message.content as unknown as JsonValue))).toBe(true);
    for (const call of model.summaries(run.id)) expect(JSON.stringify(call)).not.toContain("secret thought");
  });

  it("C27 a span of three times the summarizer's window goes down the ladder, and the rung is recorded", async () => {
    const run = await ran(lab, thrice.agent, TASK);
    expect(await run.handle.compact()).toMatchObject({ applied: "live" });
    const [marker] = payloads(await lab.events(run.id), "context.compacted");
    expect(marker.rung).toBeGreaterThanOrEqual(1);
    expect(marker).toMatchObject({ model: narrow.name, head: { summary: "DONE: a part was read." } });
    await sound(lab, run.id, thrice.model, { system, task: TASK });
  });

  it("C27 one answer of a hundred thousand characters in the span", async () => {
    const run = await ran(lab, oneHuge.agent, TASK);
    expect(await run.handle.compact()).toMatchObject({ applied: "live" });
    await sound(lab, run.id, oneHuge.model, { system, task: TASK });
  });

  it("C27 a summarizer that takes nothing: skipped while there is room, never with the same size twice", async () => {
    const run = await ran(lab, softly.agent, TASK);
    expect(await run.handle.compact()).toMatchObject({ applied: "failed", reason: "input_too_large" });
    const sizes = never.summaries(run.id).map((call) => textOf(call.messages[0]).length);
    expect(sizes).toEqual(sizes.toSorted((a, b) => b - a));
    expect(new Set(sizes).size).toBe(sizes.length);
    expect((await sound(lab, run.id, softly.model, { system, task: TASK })).state.epoch).toBe(0);
  });

  it("C27 a summarizer that takes nothing: a skeleton by rules when the next request would not fit", async () => {
    const run = await ran(lab, hardly.agent, TASK);
    const rungs = payloads(run.events, "context.compacted").map(({ rung }) => rung);
    expect(rungs).toContain(4);
    expect(run.status.state).toBe("completed");
    await sound(lab, run.id, hardly.model, { system, task: TASK });
  });

  it("C28 a failing summarizer changes nothing", async () => {
    const run = await ran(lab, fails.agent, TASK);
    const before = (await sound(lab, run.id, fails.model, { system, task: TASK })).state.view;
    expect(await run.handle.compact()).toMatchObject({ applied: "failed", reason: "provider" });
    const { state } = await sound(lab, run.id, fails.model, { system, task: TASK });
    expect(state.view).toEqual(before);
    expect(state.waitReason).toBe("input");
  });

  it("C28 one that fails in passing is asked again later, and an answer may begin with Error", async () => {
    const run = await ran(lab, passing.agent, TASK);
    const startedMs = performance.now();
    expect(await run.handle.compact()).toMatchObject({ applied: "live" });
    expect(performance.now() - startedMs).toBeGreaterThan(400);
    expect(passing.model.summaries(run.id)).toHaveLength(2);
    expect(payloads(await lab.events(run.id), "context.compacted")[0].head.summary).toBe("Error 17 was found on page 3.");
  });

  it("C30 a blank summary that an old row holds is passed over: the marker before it stands", async () => {
    const run = await ran(lab, blank.agent, TASK);
    await run.handle.compact();
    await lab.db.query(
      `with old as (select * from capstan.events where run_id = $1 and type = 'context.compacted'), moved as (
         update capstan.runs set next_seq = next_seq + 1, view_marker_seq = next_seq where id = $1 returning next_seq - 1 as seq)
       insert into capstan.events (run_id, at, append_id, seq, turn, fencing_token, view_epoch, size, version, attempt, type, payload)
       select o.run_id, o.at, o.append_id, m.seq, o.turn, o.fencing_token, o.view_epoch + 1, o.size, o.version, o.attempt, o.type,
         jsonb_set(jsonb_set(o.payload::jsonb, '{head,summary}', '"  "'), '{task_id}', '"11111111-1111-4111-8111-111111111111"')::json
       from old o cross join moved m`,
      [run.id],
    );
    await run.handle.send("And now?");
    await until("the answer", async () => (await run.handle.status()).wait_reason === "input" && blank.model.requests(run.id).length > 8);
    const last = blank.model.requests(run.id).at(-1);
    expect(textOf(last?.messages[0])).toContain("a good summary");
    for (const { messages } of blank.model.requests(run.id)) for (const message of messages) expect(textOf(message).trim() === "" && message.role === "user").toBe(false);
  });

  it("C31 a summarizer that calls a tool is asked a few times, executes nothing, and each try is paid for", async () => {
    const run = await ran(lab, callsTools.agent, TASK);
    expect(await run.handle.compact()).toMatchObject({ applied: "failed", reason: "tool_call" });
    const asked = callsTools.model.summaries(run.id);
    expect(asked.length).toBeGreaterThan(1);
    expect(asked.length).toBeLessThanOrEqual(4);
    for (const call of asked) expect(call.tools).toEqual([]);
    expect(JSON.stringify(await lab.events(run.id))).not.toContain("page 666");
    expect(await usageRows(run.id)).toEqual(asked.map(() => ({ outcome: "tool_call", input: 1_000, output: 7, estimated: false })));
  });

  it("C33 an image in the first turn is no reason to compact before the model has seen it", async () => {
    const run = await ran(lab, picture.agent, [
      { type: "file", media_type: "image/png", data: Buffer.alloc(1_500_000, 7) },
      { type: "text", text: "what is this?" },
    ]);
    expect(run.status.state).toBe("completed");
    expect(typesOf(run.events).filter((type) => type.startsWith("compaction."))).toEqual([]);
    expect(picture.model.requests(run.id)[0]?.messages[0]?.content[0]).toMatchObject({ type: "file", size_bytes: 1_500_000 });
  });

  it("C33 twenty images in what is summarized reach the summarizer as words", async () => {
    const images = Array.from({ length: 20 }, (_, i) => ({ type: "file", media_type: "image/png", data: Buffer.alloc(2_000, i) }));
    const run = await ran(lab, pictures.agent, [...images, { type: "text", text: `look at them: data:image/png;base64,${"iVBORw0KGgo".repeat(3_000)}` }]);
    expect(payloads(run.events, "context.compacted").length).toBeGreaterThan(0);
    const [call] = pictures.model.summaries(run.id);
    expect(call?.messages).toHaveLength(1);
    expect(call?.messages[0]?.content.map(({ type }) => type)).toEqual(["text"]);
    expect(textOf(call?.messages[0])).not.toContain("iVBORw0KGgoiVBORw0KGgo");
    expect(textOf(call?.messages[0])).toContain("image/png");
  });

  it("C35 with a count that is far too high and a summarizer that refuses, task and last group stay, and that is recorded", async () => {
    const run = await ran(lab, overcounted.agent, TASK);
    const { requests, events } = await sound(lab, run.id, overcounted.model, { system, task: TASK });
    const told = events.filter(({ type }) => ["context.compacted", "context.pruned"].includes(type));
    const rested = run.status.wait_reason === "context_exhausted";
    expect(told.length > 0 || rested).toBe(true);
    for (const [i, { messages }] of requests.entries()) if (i > 0) expect(messages.at(-1)?.role).toBe("tool");
  });

  it("C36 each call is charged once, in its own kind, and the run's gauge does not show it", async () => {
    const run = await ran(lab, costly.agent, TASK);
    expect(await run.handle.compact()).toMatchObject({ applied: "live" });
    expect(await usageRows(run.id)).toEqual([{ outcome: "ok", input: 5_000, output: 50, estimated: false }]);
    const { state } = await sound(lab, run.id, costly.model, { system, task: TASK });
    expect(state.contextTokens).toBeLessThan(5_000);
    // Taken up again, by whomever: nothing is called or charged anew.
    await run.handle.send("And now?");
    await until("the answer", async () => costly.model.requests(run.id).length > 7 && (await run.handle.status()).wait_reason === "input");
    expect(costly.model.summaries(run.id)).toHaveLength(1);
    expect(await usageRows(run.id)).toHaveLength(1);
  });

  it("C36 a summary that its quota can never pay is not asked for", async () => {
    const run = await ran(lab, poor.agent, TASK);
    expect(await run.handle.compact()).toMatchObject({ applied: "failed", reason: "quota" });
    expect(poor.model.summaries(run.id)).toEqual([]);
    expect(await usageRows(run.id)).toEqual([]);
  });
});
