import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { definitionText, type AgentDefinition } from "../../src/domain/definition.ts";
import { diffDefinitions } from "../../src/domain/definition-diff.ts";
import { storedObject } from "./arbitrary-json.ts";

const toolNamed = (name: string, description = name): AgentDefinition["tools"][number] => ({ name, description, input_schema: { type: "object", required: [] }, effect: "read" });
const clerk: AgentDefinition = { name: "clerk", model: "offline:a", instructions: "Be exact.", tools: [toolNamed("search"), toolNamed("write")] };

describe("the differences of two definitions", () => {
  it("are named by field, with what was and what is", () => {
    const after: AgentDefinition = {
      ...clerk,
      instructions: "Be kind.",
      fallbacks: ["offline:b"],
      tools: [toolNamed("search", "searches"), toolNamed("read")],
      compaction: { enabled: true, keep_last_n: 2 },
    };
    expect(diffDefinitions(clerk, after)).toEqual([
      { path: "compaction", after: { enabled: true, keep_last_n: 2 } },
      { path: "fallbacks", after: ["offline:b"] },
      { path: "instructions", before: "Be exact.", after: "Be kind." },
      { path: "tools.read", after: expect.objectContaining({ description: "read" }) },
      { path: "tools.search.description", before: "search", after: "searches" },
      { path: "tools.write", before: expect.objectContaining({ description: "write" }) },
    ]);
    expect(diffDefinitions({ ...clerk, compaction: { keep_last_n: 4 } }, after)).toContainEqual({ path: "compaction.keep_last_n", before: 4, after: 2 });
  });

  it("are none where the hash is the same", () => {
    expect(diffDefinitions(clerk, { ...clerk, compaction: {}, fallbacks: [], instructions: "Be exact." })).toEqual([]);
    expect(diffDefinitions({ ...clerk, instructions: "a\r\nb" }, { ...clerk, instructions: "a\nb" })).toEqual([]);
  });

  it("include another order of the tools, which a model sees", () => {
    expect(diffDefinitions(clerk, { ...clerk, tools: clerk.tools.toReversed() })).toEqual([{ path: "tools (order)", before: ["search", "write"], after: ["write", "search"] }]);
    expect(diffDefinitions(clerk, { ...clerk, tools: [toolNamed("first"), ...clerk.tools] })).toEqual([{ path: "tools.first", after: expect.anything() }]);
  });

  it("are whole inside JSON Schemas, where an empty list says something", () => {
    const schema = (required: string[]): AgentDefinition => ({ ...clerk, input_schema: { type: "object", required } });
    expect(diffDefinitions(schema([]), schema(["a"]))).toEqual([{ path: "input_schema.required", before: [], after: ["a"] }]);
    expect(diffDefinitions({ ...clerk, input_schema: { type: "object" } }, schema([]))).toEqual([{ path: "input_schema.required", after: [] }]);
  });

  it("are found exactly when the hashes differ", () => {
    const definition = fc.record(
      {
        name: fc.constant("clerk"),
        model: fc.constantFrom("offline:a", "offline:b"),
        instructions: fc.constantFrom("a", "b", "a\r\nb", "a\nb"),
        tools: fc.uniqueArray(fc.constantFrom("x", "y", "__proto__"), { maxLength: 3 }).map((names) => names.map((name) => toolNamed(name))),
        input_schema: storedObject,
        limits: fc.record({ max_turns: fc.constantFrom(1, 2) }, { requiredKeys: [] }),
        fallbacks: fc.array(fc.constantFrom("offline:a", "offline:b"), { maxLength: 2 }),
      },
      { requiredKeys: ["name", "model", "instructions", "tools"] },
    ) as fc.Arbitrary<AgentDefinition>;
    fc.assert(
      fc.property(definition, definition, (a, b) => {
        expect(diffDefinitions(a, b).length === 0).toBe(definitionText(a) === definitionText(b));
        expect(diffDefinitions(a, structuredClone(a))).toEqual([]);
      }),
      { numRuns: 500 },
    );
  });
});
