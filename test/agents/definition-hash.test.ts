import { createHash } from "node:crypto";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { z } from "zod";
import { agent, type AgentSpec } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import { compactionPolicy, type CompactionPolicy } from "../../src/domain/compaction/policy.ts";
import { agentDefinition, definitionText, normalizeDefinition, type AgentDefinition } from "../../src/domain/definition.ts";
import type { JsonObject, JsonValue } from "../../src/domain/json.ts";
import { renderFrame } from "../../src/domain/transcript/render.ts";
import { definitionSha } from "../../src/store/definitions.ts";
import { reordered } from "../domain/arbitrary-json.ts";

const search = tool({
  name: "search",
  description: "Finds things.",
  input: z.object({ q: z.string().describe("what to find") }),
  effect: "read",
  retry: { attempts: 3 },
  execute: () => 1,
});
const spec: AgentSpec = {
  name: "clerk",
  model: "anthropic:claude-sonnet-5",
  instructions: "Help people.\nBe brief.",
  tools: [search],
  settings: { temperature: 0.2 },
  limits: { maxTurns: 20 },
};
const sha = (change: object = {}): string => definitionSha(agent({ ...spec, ...change }).definition);

describe("the hash of a definition", () => {
  // Golden: whoever changes this strands the definitions that are stored under the old hash.
  const golden = "sha256:1c2f979c6328105111860a59078616af633bf9e718ce065b27a6402f8843e7e1";

  it("is a constant for an agent without compaction: what was hashed before a feature existed keeps its name", () => {
    expect(sha()).toBe(golden);
  });

  it("is sha256 over the canonical text", () => {
    const { definition } = agent(spec);
    expect(definitionText(definition)).toBe(
      '{"instructions":"Help people.\\nBe brief.","limits":{"max_turns":20},"model":"anthropic:claude-sonnet-5","name":"clerk","settings":{"temperature":0.2},' +
        '"tools":[{"description":"Finds things.","effect":"read","input_schema":{"properties":{"q":{"description":"what to find","type":"string"}},"required":["q"],"type":"object"},' +
        '"name":"search","retry":{"attempts":3}}]}',
    );
    expect(definitionSha(definition)).toBe(`sha256:${createHash("sha256").update(definitionText(definition)).digest("hex")}`);
  });

  it("does not depend on the order of fields, which jsonb does not keep", () => {
    const { definition } = agent({ ...spec, output: z.object({ b: z.string(), a: z.number() }) });
    const back = agentDefinition.parse(reordered(definition as unknown as JsonValue));
    expect(JSON.stringify(back)).not.toBe(JSON.stringify(definition));
    expect(definitionSha(back)).toBe(definitionSha(definition));
    expect(sha(Object.fromEntries(Object.entries(spec).toReversed()))).toBe(golden);
  });

  it("takes CRLF for LF", () => {
    expect(sha({ instructions: "Help people.\r\nBe brief." })).toBe(golden);
    expect(sha({ instructions: "Help people.\n\nBe brief." })).not.toBe(golden);
    const windows = { ...search.definition, description: "a\r\nb" };
    const unix = { ...search.definition, description: "a\nb" };
    const withTool = (t: typeof windows): string => definitionSha({ ...agent(spec).definition, tools: [t] });
    expect(withTool(windows)).toBe(withTool(unix));
  });

  it.each<[string, object]>([
    ["compaction: {}", { compaction: {} }],
    ["compaction with every field undefined", { compaction: Object.fromEntries(Object.keys(compactionPolicy.shape).map((key) => [key, undefined])) }],
    ["compaction: undefined", { compaction: undefined }],
    ["fallbacks: []", { fallbacks: [] }],
    ["limits without a value", { limits: { maxTurns: 20, deadlineMs: undefined } }],
    ["settings with an empty list", { settings: { temperature: 0.2, stopSequences: [] } }],
    ["code that is not stored", { onWarn: () => {} }],
  ])("is the same with %s as without", (_, change) => {
    expect(sha(change)).toBe(golden);
  });

  it("is the same for no tools, an empty list of tools and empty groups", () => {
    const bare = { name: "a", model: "offline:auditor", instructions: "" };
    const one = definitionSha(agent(bare).definition);
    expect(definitionSha(agent({ ...bare, tools: [], limits: {}, settings: {} }).definition)).toBe(one);
  });

  it.each<[string, object]>([
    ["interactive: false, which is a word", { interactive: false }],
    ["warnTranscriptBytes: false", { warnTranscriptBytes: false }],
    ["another model", { model: "anthropic:claude-opus-5" }],
    ["an input schema that is empty", { input: z.any() }],
    ["an empty instruction", { instructions: "" }],
    ["compaction switched off in words", { compaction: { enabled: false } }],
    [
      "a tool of another effect",
      { tools: [tool({ name: "search", description: "Finds things.", input: z.object({ q: z.string().describe("what to find") }), execute: () => 1 })] },
    ],
  ])("is another with %s", (_, change) => {
    expect(sha(change)).not.toBe(golden);
  });
});

describe("every field of the compaction policy", () => {
  const values: { readonly [F in keyof CompactionPolicy]-?: readonly [CompactionPolicy[F], CompactionPolicy[F]] } = {
    enabled: [true, false],
    autocompact_at_pct: [50, 95],
    at_tokens: [1, 2],
    after_bytes: [20_000, 20_001],
    keep_first: [true, false],
    keep_last_n: [0, 1],
    target_percentage: [10, 50],
    model: ["offline:a", "offline:b"],
    summarizer: ["mine", "theirs"],
    instruction: ["short", "long"],
    max_tokens: [1, 2],
    prefetch_at_pct: [1, 2],
  };

  it.each(Object.keys(compactionPolicy.shape) as (keyof CompactionPolicy)[])("%s gives a new hash when it is set and when it is changed, and reaches the definition", (field) => {
    const [one, other] = values[field];
    const hashes = [sha(), sha({ compaction: { [field]: one } }), sha({ compaction: { [field]: other } })];
    expect(new Set(hashes).size).toBe(3);
    expect(agent({ ...spec, compaction: { [field]: one } }).definition.compaction).toEqual({ [field]: one });
  });

  it("gives one hash per policy", () => {
    const hashes = new Set(Object.entries(values).map(([field, [one]]) => sha({ compaction: { [field]: one } })));
    expect(hashes.size).toBe(Object.keys(compactionPolicy.shape).length);
  });
});

describe("a normalized definition", () => {
  const change = fc.record(
    {
      instructions: fc.constantFrom("", "a\r\nb", "a\nb", "\r\n"),
      fallbacks: fc.constantFrom<string[]>([], ["offline:b"]),
      compaction: fc.constantFrom<CompactionPolicy>({}, { enabled: undefined }, { keep_last_n: 0 }),
      settings: fc.constantFrom<AgentDefinition["settings"]>({}, { stop_sequences: [] }, { stop_sequences: ["\r\n"] }, { provider_options: {} }),
      limits: fc.constantFrom<AgentDefinition["limits"]>({}, { max_turns: 1 }),
      output_schema: fc.constantFrom<JsonObject>({}, { type: "object", required: [], properties: {} }),
      interactive: fc.boolean(),
    },
    { requiredKeys: [] },
  );
  const definitions = change.map((c): AgentDefinition => ({ ...agent(spec).definition, ...c }));

  it("keeps its hash, is valid, and is normal itself", () => {
    fc.assert(
      fc.property(definitions, (definition) => {
        const normal = normalizeDefinition(definition);
        expect(definitionSha(normal)).toBe(definitionSha(definition));
        expect(agentDefinition.parse(normal)).toEqual(normal);
        expect(normalizeDefinition(normal)).toEqual(normal);
      }),
    );
  });

  it("renders the same calls as every other definition of its hash", () => {
    fc.assert(
      fc.property(definitions, definitions, (a, b) => {
        if (definitionSha(a) === definitionSha(b)) expect(renderFrame(a, "m", true)).toEqual(renderFrame(b, "m", true));
        expect(renderFrame(normalizeDefinition(a), "m", false)).toEqual(renderFrame(a, "m", false));
      }),
      { numRuns: 300 },
    );
  });

  it("leaves JSON Schemas and provider options as they are", () => {
    const schema = { type: "object", required: [], properties: {}, description: "a\r\nb" };
    const normal = normalizeDefinition({ ...agent(spec).definition, output_schema: schema, settings: { provider_options: { a: {}, b: [] } } });
    expect(normal.output_schema).toEqual(schema);
    expect(normal.settings?.provider_options).toEqual({ a: {}, b: [] });
  });

  it("is what agent() gives", () => {
    expect(agent({ ...spec, instructions: "a\r\nb", compaction: {}, fallbacks: [] }).definition).toEqual({ ...agent(spec).definition, instructions: "a\nb" });
  });
});
