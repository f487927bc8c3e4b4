import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { AgentDefinition } from "../../src/domain/definition.ts";
import { fold } from "../../src/domain/fold.ts";
import { canonicalJson, type JsonValue } from "../../src/domain/json.ts";
import { inputParts } from "../../src/domain/transcript/derive.ts";
import { answerText, toolOutputText } from "../../src/domain/transcript/message.ts";
import { breakpointsOf, renderCall, renderFrame, SUBMIT_OUTPUT_TOOL } from "../../src/domain/transcript/render.ts";
import { storedJson } from "./arbitrary-json.ts";
import { run } from "./runs.ts";

const schema = { type: "object", properties: { n: { type: "number" } } };
const definition: AgentDefinition = {
  name: "a",
  model: "offline:x",
  instructions: "Do it.",
  tools: [{ name: "search", description: "Finds.", input_schema: schema, effect: "read" }],
};

describe("rendering", () => {
  it("gives the same bytes each time, from live events and from events folded again", () => {
    fc.assert(
      fc.property(run, (events) => {
        const bytes = (): string => JSON.stringify(renderCall(renderFrame(definition, "offline:x", false), fold(events).view));
        expect(bytes()).toBe(bytes());
      }),
    );
  });

  it("begins each request with the messages of the one before", () => {
    fc.assert(
      fc.property(run, fc.nat(), (events, at) => {
        const earlier = fold(events.slice(0, 1 + (at % events.length))).view.map((m) => canonicalJson(m as unknown as JsonValue));
        const later = fold(events).view.map((m) => canonicalJson(m as unknown as JsonValue));
        expect(later.slice(0, earlier.length)).toEqual(earlier);
      }),
    );
  });

  it("asks to cache after the first message and the last two", () => {
    expect([0, 1, 2, 3, 4, 10].map(breakpointsOf)).toEqual([[], [0], [0, 1], [0, 1, 2], [0, 2, 3], [0, 8, 9]]);
  });

  it("shows a model what the definition says and nothing that it leaves open", () => {
    const frame = renderFrame(definition, "offline:x", false);
    expect(frame).toEqual({ renderVersion: 1, model: "offline:x", system: "Do it.", tools: [{ name: "search", description: "Finds.", inputSchema: schema }], settings: {} });
    const settings = { max_output_tokens: 9, temperature: 0, top_p: 1, seed: 0, reasoning_effort: "low", stop_sequences: ["x"], provider_options: { a: {} } } as const;
    expect(renderFrame({ ...definition, settings: { ...settings, stop_sequences: ["x"] } }, "m", false).settings).toEqual({
      maxOutputTokens: 9,
      temperature: 0,
      topP: 1,
      seed: 0,
      reasoningEffort: "low",
      stopSequences: ["x"],
      providerOptions: { a: {} },
    });
  });

  it("asks for structured output natively where the model has it, else by a last tool", () => {
    const structured = { ...definition, output_schema: schema };
    expect(renderFrame(structured, "m", true)).toMatchObject({ output: { name: "output", schema }, tools: [{ name: "search" }] });
    const frame = renderFrame(structured, "m", false);
    expect(frame.output).toBeUndefined();
    expect(frame.tools.map((t) => t.name)).toEqual(["search", SUBMIT_OUTPUT_TOOL]);
    expect(frame.tools[1]?.inputSchema).toEqual(schema);
  });

  it("renders alike what the definition's hash does not tell apart", () => {
    const windows = { ...definition, instructions: "Do\r\nit.", settings: { stop_sequences: [] }, fallbacks: [] };
    expect(renderFrame(windows, "m", false)).toEqual(renderFrame({ ...definition, instructions: "Do\nit." }, "m", false));
  });
});

describe("input as a message", () => {
  it("takes text as text and message parts as they are", () => {
    expect(inputParts("hello")).toEqual([{ type: "text", text: "hello" }]);
    const parts = [
      { type: "text", text: "see" },
      { type: "file", media_type: "image/png", sha256: "ab", size_bytes: 3, filename: "a.png" },
    ];
    expect(inputParts(parts)).toEqual(parts);
  });

  it.each([
    ["an object", { b: 1, a: [] }, '{"a":[],"b":1}'],
    ["an empty list", [], "[]"],
    ["null", null, "null"],
    ["an object with a length of its own", { length: { toString: null } }, '{"length":{"toString":null}}'],
    ["a number", 5, "5"],
    ["a list that only resembles parts", [{ type: "text", text: "x", lang: "de" }], '[{"lang":"de","text":"x","type":"text"}]'],
    ["a list of parts and something else", [{ type: "text", text: "x" }, 1], '[{"text":"x","type":"text"},1]'],
  ])("shows %s in canonical form, with nothing lost", (_, input, text) => {
    expect(inputParts(input)).toEqual([{ type: "text", text }]);
  });

  it("loses nothing of any input", () => {
    fc.assert(
      fc.property(storedJson, (input) => {
        const parts = inputParts(input);
        const shown = parts.length === 1 && parts[0]?.type === "text" ? parts[0].text : undefined;
        expect([shown, canonicalJson(parts as unknown as JsonValue)]).toContain(typeof input === "string" ? input : canonicalJson(input));
      }),
    );
  });
});

it("joins the text of an answer and leaves reasoning and calls out", () => {
  expect(
    answerText([
      { type: "text", text: "a" },
      { type: "reasoning", text: "hm" },
      { type: "tool_call", call_id: "1", name: "t", input: {} },
      { type: "text", text: "b" },
    ]),
  ).toBe("ab");
});

it("shows a tool's text as text and other output in canonical form", () => {
  expect([toolOutputText("a"), toolOutputText({ b: 1, a: 2 })]).toEqual(["a", '{"a":2,"b":1}']);
});
