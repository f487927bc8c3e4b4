/** Whatever a model answers, the run comes to a defined end or goes on, its journal stays whole and the worker lives (P10). */
import { describe, expect, it } from "vitest";
import { z } from "zod";
import { RunFailedError } from "../../src/client/errors.ts";
import { payloads, typesOf } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { Cases, calls, doing } from "./cases.ts";

const database = await createTestDatabase();
const cases = new Cases();
const echo = doing("echo", (input) => ({ seen: input, plain: Object.getPrototypeOf(input) === Object.prototype }));

const silent = cases.add("silent", ["", { text: " \n" }, { reasoning: "Hm." }]);
const recovers = cases.add("recovers", ["", calls("echo"), "", "", "At last."], { tools: [echo] });
const cutOff = cases.add(
  "cut-off",
  Array.from({ length: 3 }, () => ({ text: "and then", finish: "length" as const })),
);
const filtered = cases.add("filtered", [{ text: "I", finish: "content_filter" }]);
const unknownTool = cases.add("unknown-tool", [calls("rm_rf"), "Sorry."], { tools: [echo] });
const noTools = cases.add("no-tools", [calls("echo"), "Sorry."]);
const oddNames = ["", "__proto__", "constructor", "echo\n", "ечо", "e".repeat(5_000), "a\u0000b", "submit_output"];
const oddTools = cases.add("odd-names", [{ toolCalls: oddNames.map((name) => ({ name })) }, "Sorry."], { tools: [echo] });
const crowd = cases.add("crowd", [{ toolCalls: Array.from({ length: 200 }, (_, i) => ({ name: "echo", input: { i } })) }, "Done."], { tools: [echo] });
const sameIds = cases.add("same-ids", [{ toolCalls: [1, 2, 3].map((n) => ({ id: "dup", name: "echo", input: { n } })) }, "Done."], { tools: [echo] });
const loop = cases.add("loop", [() => calls("echo")].concat(Array.from({ length: 20 }, () => () => calls("echo"))), { tools: [echo], limits: { maxTurns: 6 } });
const verbose = cases.add("verbose", [{ text: "w".repeat(200_000) }], { limits: { inlinePayloadBytes: 65_536 } });
const smallLimit = cases.add("small-limit", ["short"], { limits: { inlinePayloadBytes: 4096 } });
const strict = cases.add("strict", [calls("typed", { n: "four" }), calls("typed", { n: 4 }), "Done."], {
  tools: [doing("typed", (input) => input, { input: z.object({ n: z.number() }) })],
});
const wrongArguments = cases.add("wrong-arguments", [{ toolCalls: [{ name: "echo", arguments: "{broken" }] }, "Sorry."], { tools: [echo] });

/** What a model may write as arguments, and what becomes of it over the wire. */
const written: Readonly<Record<string, { text: string; input?: unknown; invalid?: RegExp }>> = {
  not_json: { text: "{q: 1", invalid: /not valid JSON/ },
  nothing: { text: "", input: {} },
  a_list: { text: "[1]", invalid: /an array/ },
  a_string: { text: '"x"', invalid: /a string/ },
  overflow: { text: '{"n":1e400}', invalid: /Infinity|not valid/ },
  rounded: { text: '{"n":9007199254740993}', input: { n: 9_007_199_254_740_992 } },
  proto: { text: '{"__proto__":{"admin":true},"n":1}', input: JSON.parse('{"__proto__":{"admin":true},"n":1}') },
  duplicate: { text: '{"n":1,"n":2}', input: { n: 2 } },
  numeric_keys: { text: '{"10":1,"9":2,"b":3}', input: { 9: 2, 10: 1, b: 3 } },
  nul: { text: '{"s":"a\\u0000b"}', input: { s: "a\uFFFDb" } },
  surrogate: { text: '{"s":"\\ud800"}', input: { s: "\uFFFD" } },
  deep: { text: `${'{"a":'.repeat(2_000)}1${"}".repeat(2_000)}`, invalid: /nested deeper/ },
  spaced: { text: '{ "b" : 1 ,\n "a" : -0 }', input: { a: 0, b: 1 } },
};
const overWire = (["openai-chat", "anthropic", "openai-responses"] as const).flatMap((protocol) =>
  Object.entries(written).map(([name, want]) => ({
    name,
    protocol,
    want,
    agent: cases.addHttp(`args-${name.replaceAll("_", "-")}-${protocol}`, protocol, [{ toolCalls: [{ name: "echo", arguments: want.text }] }, { text: "I see." }], {
      tools: [echo],
    }),
  })),
);
const texts = (["openai-chat", "anthropic", "openai-responses"] as const).map((protocol) => ({
  protocol,
  agent: cases.addHttp(`text-${protocol}`, protocol, [{ text: "a\u0000b \uD83D c 😀 \u2028", toolCalls: [{ name: "echo", arguments: "{}" }] }, { text: "I see." }], {
    tools: [echo],
  }),
}));

cases.openOn(database.url);

async function failsWith(name: { agent: Parameters<typeof cases.outcome>[0] }, code: string, text: RegExp) {
  const run = await cases.outcome(name.agent);
  expect(run.status).toMatchObject({ state: "failed", error: { code } });
  expect(run.status.error?.message).toMatch(text);
  const error = await run.handle.result().catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(RunFailedError);
  expect(error).toMatchObject({ code, details: { run_id: run.id } });
  await cases.lab.intact(run.id);
  return run;
}

describe("answers that are no answers", () => {
  it("nothing, for ever: told twice, then RESPONSE_EMPTY with the journal kept", async () => {
    const run = await failsWith(silent, "RESPONSE_EMPTY", /told 2 times/);
    expect(typesOf(run.events).filter((type) => type === "model.responded")).toHaveLength(3);
    expect(payloads(run.events, "model.corrected")).toMatchObject([{ reason: "empty" }, { reason: "empty" }]);
  });

  it("a good answer in between: the count of empty ones begins again", async () => {
    const run = await cases.outcome(recovers.agent);
    expect(run.status).toMatchObject({ state: "completed", output: "At last." });
    expect(payloads(run.events, "model.corrected")).toHaveLength(3);
    await cases.lab.intact(run.id);
  });

  it("cut off at the output limit, again and again: RESPONSE_TRUNCATED", async () => {
    expect(payloads((await failsWith(cutOff, "RESPONSE_TRUNCATED", /told 2 times/)).events, "model.corrected")).toHaveLength(2);
  });
  it("withheld by the provider: CONTENT_FILTERED", async () => {
    expect((await failsWith(filtered, "CONTENT_FILTERED", /content filter/)).status.turn).toBe(1);
  });
  it("larger than one event may be: a failure that names size, limit and setting", async () => {
    const run = await failsWith(verbose, "PROVIDER_BAD_RESPONSE", /over the inline limit of 65536 bytes.*inlinePayloadBytes/);
    expect(typesOf(run.events)).not.toContain("model.responded");
  });

  it("the smallest limit that can be set still lets a run answer", async () => {
    expect((await cases.outcome(smallLimit.agent)).status).toMatchObject({ state: "completed", output: "short" });
  });
});

describe("calls that cannot be made", () => {
  it("an unknown tool: the model is told which there are", async () => {
    const run = await cases.outcome(unknownTool.agent);
    expect(payloads(run.events, "tool.failed")[0].error).toMatchObject({ code: "TOOL_UNKNOWN", message: expect.stringContaining("the tools are: echo") });
    expect(run.status.state).toBe("completed");
  });

  it("a tool of an agent that has none", async () => {
    const run = await cases.outcome(noTools.agent);
    expect(payloads(run.events, "tool.failed")[0].error.message).toContain("none");
  });

  it("names that are no names", async () => {
    const run = await cases.outcome(oddTools.agent);
    expect(run.status.state).toBe("completed");
    expect(payloads(run.events, "tool.failed").map((failure) => failure.error.code)).toEqual(oddNames.map(() => "TOOL_UNKNOWN"));
    await cases.lab.intact(run.id);
  });

  it("arguments that do not parse: not executed, and told", async () => {
    const run = await cases.outcome(wrongArguments.agent);
    expect(payloads(run.events, "tool.failed")[0].error.code).toBe("TOOL_ARGUMENTS_INVALID");
  });

  it("arguments that do not fit the schema: told with the place, then right", async () => {
    const run = await cases.outcome(strict.agent);
    expect(payloads(run.events, "tool.failed")).toMatchObject([{ error: { code: "TOOL_ARGUMENTS_INVALID", message: expect.stringMatching(/^n: /) } }]);
    expect(payloads(run.events, "tool.completed")).toMatchObject([{ output: { n: 4 } }]);
  });

  it("200 at once: 128 are executed, each of the others is answered", async () => {
    const run = await cases.outcome(crowd.agent);
    expect(run.status.state).toBe("completed");
    expect(payloads(run.events, "tool.completed")).toHaveLength(128);
    expect(new Set(payloads(run.events, "tool.failed").map((failure) => failure.error.code))).toEqual(new Set(["TOOL_CALLS_LIMIT"]));
    expect(crowd.model.calls[1]?.messages.at(-1)?.content).toHaveLength(200);
    await cases.lab.intact(run.id);
  });

  it("the same id three times in one answer: each call keeps its own result", async () => {
    const run = await cases.outcome(sameIds.agent);
    expect(
      payloads(run.events, "tool.completed")
        .map(({ index, output }) => [index, output.seen.n])
        .toSorted(([a], [b]) => a - b),
    ).toEqual([
      [0, 1],
      [1, 2],
      [2, 3],
    ]);
    await cases.lab.intact(run.id);
  });

  it("the same call for ever: TURN_LIMIT, with all that was done kept", async () => {
    const run = await failsWith(loop, "TURN_LIMIT", /6 turns.*maxTurns/);
    expect(payloads(run.events, "tool.completed")).toHaveLength(6);
    expect(run.status.turn).toBe(6);
  });
});

describe("arguments over the wire", () => {
  it.each(overWire)("$name over $protocol", async ({ agent, want }) => {
    const run = await cases.outcome(agent);
    expect(run.status).toMatchObject({ state: "completed", output: "I see." });
    const call = payloads(run.events, "model.responded")[0].content.find((part: { type: string }) => part.type === "tool_call");
    if (want.invalid === undefined) {
      expect(call.input).toEqual(want.input);
      // The tool never sees a `__proto__`: zod leaves it out.
      expect(payloads(run.events, "tool.completed")[0].output).toEqual({ seen: JSON.parse(JSON.stringify(want.input).replace('"__proto__":{"admin":true},', "")), plain: true });
    } else {
      expect(call.invalid).toMatch(want.invalid);
      expect(call.arguments).toBe(want.text);
      expect(payloads(run.events, "tool.failed")[0].error.code).toBe("TOOL_ARGUMENTS_INVALID");
    }
    expect((await cases.lab.intact(run.id)).requests).toBe(2);
    expect(cases.server.refused).toEqual([]);
  });

  it.each(texts)("NUL and half a surrogate pair in an answer's text over $protocol", async ({ agent }) => {
    const run = await cases.outcome(agent);
    expect(run.status.state).toBe("completed");
    const text = payloads(run.events, "model.responded")[0].content.find((part: { type: string }) => part.type === "text").text as string;
    expect(text).toBe("a\uFFFDb \uFFFD c 😀 \u2028");
    await cases.lab.intact(run.id);
  });
});
