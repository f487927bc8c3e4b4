import { describe, expect, expectTypeOf, it } from "vitest";
import { z } from "zod";
import { agent, type Agent, type AgentSpec } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import { refusedBy } from "./refused-by.ts";

const search = tool({ name: "search", description: "Finds.", input: z.object({ q: z.string() }), effect: "read", execute: () => 1 });
const spec = (change: object = {}): AgentSpec => ({ name: "clerk", model: "offline:auditor", instructions: "Help.", tools: [search], ...change });
const refusal = (change: object): string => refusedBy(() => agent(spec(change)));

describe("an agent", () => {
  it("stores only what is set", () => {
    expect(agent({ name: "clerk", model: "offline:auditor", instructions: "Help." }).definition).toEqual({
      name: "clerk",
      model: "offline:auditor",
      instructions: "Help.",
      tools: [],
    });
  });

  it("stores every setting under its stored name", () => {
    const { definition } = agent(
      spec({
        fallbacks: ["anthropic:claude-x"],
        input: z.object({ q: z.string() }),
        output: z.object({ n: z.number() }),
        settings: { maxOutputTokens: 1, temperature: 0, topP: 1, seed: 7, reasoningEffort: "low", stopSequences: ["x"], providerOptions: { keepCase: { aB: 1 } } },
        limits: { maxTurns: 1, deadlineMs: 2, parallelTools: 3, maxCallsPerTurn: 4, modelAttempts: 5, modelTimeoutMs: 6, inlinePayloadBytes: 7_000 },
        interactive: true,
        warnTranscriptBytes: 10,
        compaction: { enabled: true, keep_last_n: 0 },
        claimCheck: { tools: ["search"], overBytes: 256, previewBytes: 0 },
      }),
    );
    expect(definition).toEqual({
      name: "clerk",
      model: "offline:auditor",
      instructions: "Help.",
      tools: [search.definition],
      fallbacks: ["anthropic:claude-x"],
      input_schema: { type: "object", properties: { q: { type: "string" } }, required: ["q"] },
      output_schema: { type: "object", properties: { n: { type: "number" } }, required: ["n"], additionalProperties: false },
      settings: { max_output_tokens: 1, temperature: 0, top_p: 1, seed: 7, reasoning_effort: "low", stop_sequences: ["x"], provider_options: { keepCase: { aB: 1 } } },
      limits: { max_turns: 1, deadline_ms: 2, parallel_tools: 3, max_calls_per_turn: 4, model_attempts: 5, model_timeout_ms: 6, inline_payload_bytes: 7_000 },
      interactive: true,
      warn_transcript_bytes: 10,
      compaction: { enabled: true, keep_last_n: 0 },
      claim_check: { tools: ["search"], over_bytes: 256, preview_bytes: 0 },
    });
  });

  it("keeps code apart from the definition", () => {
    const onWarn = (): void => {};
    const { code } = agent(spec({ onWarn }));
    expect(code).toMatchObject({ name: "clerk", onWarn });
    expect([...code.tools.keys()]).toEqual(["search"]);
  });

  it("checks and completes an input by its schema, naming fields as their author wrote them", () => {
    const a = agent(spec({ input: z.object({ order_id: z.int(), note: z.string().default("none") }) }));
    expect(a.parseInput({ order_id: 1 })).toEqual({ ok: true, value: { order_id: 1, note: "none" } });
    expect(a.parseInput({ order_id: "1" })).toMatchObject({ ok: false, issues: [{ path: "order_id" }] });
    expect(agent(spec()).parseInput(["any", { thing: 1 }])).toEqual({ ok: true, value: ["any", { thing: 1 }] });
  });
});

describe("misconfiguration fails at definition", () => {
  it.each([
    [{ limits: { maxTurns: 0 } }, "limits.maxTurns must be a whole number from 1 to 1000000, not 0"],
    [{ limits: { maxTurns: 1.5 } }, "limits.maxTurns must be a whole number from 1 to 1000000, not 1.5"],
    [{ limits: { deadlineMs: -1 } }, "limits.deadlineMs must be a whole number of at least 1, not -1"],
    [{ limits: { parallelTools: 65 } }, "limits.parallelTools must be a whole number from 1 to 64, not 65"],
    [{ limits: { maxCallsPerTurn: 1_001 } }, "limits.maxCallsPerTurn must be a whole number from 1 to 1000, not 1001"],
    [{ limits: { modelAttempts: 0 } }, "limits.modelAttempts must be a whole number from 1 to 100, not 0"],
    [{ limits: { modelTimeoutMs: 86_400_001 } }, "limits.modelTimeoutMs must be a whole number from 1 to 86400000, not 86400001"],
    [{ limits: { inlinePayloadBytes: 4_095 } }, "limits.inlinePayloadBytes must be a whole number from 4096 to 16777216, not 4095"],
    [{ settings: { temperature: 2.1 } }, "settings.temperature must be a number from 0 to 2, not 2.1"],
    [{ settings: { topP: -0.1 } }, "settings.topP must be a number from 0 to 1, not -0.1"],
    [{ settings: { maxOutputTokens: 0 } }, "settings.maxOutputTokens must be a whole number of at least 1, not 0"],
    [{ warnTranscriptBytes: 0 }, "warnTranscriptBytes must be false or a whole number of at least 1, not 0"],
    [{ warnTranscriptBytes: true }, "warnTranscriptBytes must be false or a whole number of at least 1, not true"],
    [{ warnTranscriptBytes: 0.5 }, "warnTranscriptBytes must be false or a whole number of at least 1, not 0.5"],
    [{ compaction: { autocompact_at_pct: 49 } }, "compaction.autocompact_at_pct must be a whole number from 50 to 95, not 49"],
    [{ compaction: { keep_last_n: -1 } }, "compaction.keep_last_n must be a whole number of at least 0, not -1"],
    [{ compaction: { keepLastN: 4 } }, "compaction.keepLastN is not a known field"],
    [{ compaction: { prefetch_at_pct: 85 } }, "compaction.prefetch_at_pct must be below autocompact_at_pct, from 1 to 79, not 85"],
    [
      { compaction: { after_bytes: 4_096 } },
      "compaction.after_bytes must be a whole number above 4096 (max_tokens 1024 x 4), not 4096: the summary alone could be as large; a good value is 16384 or more",
    ],
    [{ claimCheck: { tools: ["search"], overBytes: 255 } }, "claimCheck.overBytes must be a whole number of at least 256, not 255"],
    [{ claimCheck: { tools: ["search"], previewBytes: -1 } }, "claimCheck.previewBytes must be a whole number of at least 0, not -1"],
  ])("%j", (change, message) => {
    expect(refusal(change)).toBe(`agent "clerk": ${message}`);
  });

  it("names every field that is wrong", () => {
    expect(refusal({ limits: { maxTurns: 0, parallelTools: 0 }, settings: { seed: 0.5 } })).toMatch(/settings\.seed .*limits\.maxTurns .*limits\.parallelTools /);
  });

  it.each(["", "has space", "-x", ".x", "x".repeat(65), undefined])("refuses the name %j", (name) => {
    expect(refusal({ name })).toMatch(/: name /);
  });

  it.each(["claude", "", ":x", "anthropic:", "Anthropic:x"])("refuses the model %j, which names no provider", (model) => {
    expect(refusal({ model })).toMatch(/: model /);
    expect(refusal({ fallbacks: ["offline:auditor", model] })).toMatch(/: fallbacks\.1 /);
  });

  it("refuses two tools of one name, naming it", () => {
    expect(refusal({ tools: [search, search] })).toBe('agent "clerk": tools has two tools named search');
  });

  it("refuses tools that tool() did not make", () => {
    expect(refusal({ tools: [{ name: "search", execute: () => 1 }] })).toContain("tools must be a list of what tool() gives");
    expect(refusal({ tools: search })).toContain("tools must be a list");
  });

  it("refuses a tool under the name of the built-in one that takes the output", () => {
    const submit = tool({ name: "submit_output", description: "", input: z.object({}), execute: () => 1 });
    expect(refusal({ tools: [submit], output: z.object({}) })).toContain("submit_output");
    expect(agent(spec({ tools: [submit] })).definition.tools).toHaveLength(1);
  });

  it("refuses claim check of tools that the agent does not have, and of none", () => {
    expect(refusal({ claimCheck: { tools: ["search", "fetch", "grep"] } })).toBe('agent "clerk": claimCheck.tools names fetch, grep, which the agent does not have');
    expect(refusal({ claimCheck: { tools: [] } })).toContain("claimCheck.tools ");
    expect(refusal({ claimCheck: { tools: "search" } })).toContain("claimCheck.tools ");
  });

  it.each([
    ["a date", z.date()],
    ["a map", z.map(z.string(), z.string())],
    ["a set", z.set(z.string())],
    ["a bigint", z.bigint()],
    ["undefined", z.undefined()],
    ["a transform", z.object({ n: z.string().transform(Number) })],
    ["a codec to a date", z.codec(z.iso.datetime(), z.date(), { decode: (s) => new Date(s), encode: (d) => d.toISOString() })],
  ])("refuses an input or output of %s", (_, schema) => {
    expect(refusal({ input: schema })).toMatch(/^agent "clerk": input has no JSON Schema/);
    expect(refusal({ output: schema })).toMatch(/^agent "clerk": output has no JSON Schema/);
  });

  it.each(["limits", "settings", "claimCheck"])("refuses unknown fields of %s under the name that was written", (part) => {
    expect(refusal({ [part]: { tools: ["search"], maxTurn: 3 } })).toContain(`${part}.maxTurn is not a known field`);
  });

  it("refuses unknown fields of its own: a misspelt one would do nothing", () => {
    expect(refusal({ maxTurns: 3, compactoin: {} })).toBe('agent "clerk": maxTurns is not a known field; compactoin is not a known field');
  });

  it("refuses instructions and onWarn of the wrong kind", () => {
    expect(refusal({ instructions: undefined })).toMatch(/: instructions /);
    expect(refusal({ onWarn: "log" })).toMatch(/: onWarn must be a function/);
    expect(refusal({ settings: "hot" })).toMatch(/: settings /);
    expect(refusal({ compaction: null })).toMatch(/: compaction /);
  });
});

describe("types", () => {
  it("infers input and output of an agent from its schemas", () => {
    const typed = agent({
      name: "typed",
      model: "offline:auditor",
      instructions: "",
      input: z.object({ city: z.string(), days: z.number().default(3) }),
      output: z.object({ degrees: z.number(), note: z.string().optional() }),
    });
    // What callers write: the default may be left out.
    expectTypeOf<NonNullable<typeof typed.types>["input"]>().toEqualTypeOf<{ city: string; days?: number | undefined }>();
    expectTypeOf<NonNullable<typeof typed.types>["output"]>().toEqualTypeOf<{ degrees: number; note?: string | undefined }>();
    expectTypeOf(typed).toEqualTypeOf<Agent<{ city: string; days?: number | undefined }, { degrees: number; note?: string | undefined }>>();
  });

  it("gives text when there is no output schema, and takes any input when there is no input schema", () => {
    const open = agent({ name: "open", model: "offline:auditor", instructions: "" });
    expectTypeOf<NonNullable<typeof open.types>["input"]>().toEqualTypeOf<unknown>();
    expectTypeOf<NonNullable<typeof open.types>["output"]>().toEqualTypeOf<string>();
  });

  it("infers what execute gets from the tool's input, after parsing", () => {
    const typed = tool({
      name: "t",
      description: "",
      input: z.object({ n: z.string().transform(Number), unit: z.enum(["km", "mi"]).default("km") }),
      execute(input, context) {
        expectTypeOf(input).toEqualTypeOf<{ n: number; unit: "km" | "mi" }>();
        expectTypeOf(context.signal).toEqualTypeOf<AbortSignal>();
      },
    });
    expect(typed.check({ n: "4" })).toEqual({ ok: true, value: { n: 4, unit: "km" } });
  });

  it("refuses at compile time what does not exist", () => {
    // @ts-expect-error: misspelt
    expect(() => agent({ name: "a", model: "offline:auditor", instructions: "", compactoin: {} })).toThrow("compactoin");
    // @ts-expect-error: no such effect
    expect(() => tool({ name: "t", description: "", input: z.object({}), effect: "twice", execute: () => 1 })).toThrow("effect");
  });
});
