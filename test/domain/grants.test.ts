import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { AgentDefinition } from "../../src/domain/definition.ts";
import { agentDefinition } from "../../src/domain/definition.ts";
import { grantsOf, isGranted, isNarrower, modelReadings } from "../../src/domain/grants.ts";

const definition: AgentDefinition = {
  name: "a",
  model: "anthropic:claude-x",
  fallbacks: ["openai:gpt-y"],
  instructions: "",
  tools: [{ name: "search", description: "", input_schema: {}, effect: "read" }],
};

describe("a pattern", () => {
  it.each([
    ["model:anthropic:*", "model:anthropic:claude-x", true],
    ["model:anthropic:*", "model:openai:gpt-y", false],
    ["model:*", "tool:search", false],
    ["tool:*", "tool:search", true],
    ["tool:search", "tool:search_all", false],
    ["mcp:github/*", "mcp:github/create_issue", true],
    ["mcp:github/*", "mcp:gitlab/create_issue", false],
    ["mcp:*/read_*", "mcp:files/read_file", true],
    ["mcp:*/read_*", "mcp:files/write_file", false],
    ["tool:a*a", "tool:a", false],
    ["tool:a*a", "tool:aa", true],
    ["tool:*ab*b", "tool:ab", false],
    ["tool:a.c", "tool:abc", false],
    ["tool:(a+)+$", "tool:aaaaaaaaaaaaaaaaaaaaaaaaaaaa!", false],
  ])("%s on %s: %s", (pattern, resource, granted) => {
    expect(isGranted([pattern], resource)).toBe(granted);
  });
});

describe("grants of a definition", () => {
  it("are what it names when it has none of its own", () => {
    const grants = grantsOf(definition);
    for (const resource of ["model:anthropic:claude-x", "model:openai:gpt-y", "tool:search", "summarizer:built_in"]) expect(isGranted(grants, resource)).toBe(true);
    for (const resource of ["model:anthropic:claude-z", "model:openai:gpt-z", "tool:delete", "mcp:github/x"]) expect(isGranted(grants, resource)).toBe(false);
  });

  it("hold a policy's cheaper model, of the run's provider or of another that is written with its prefix", () => {
    expect(isGranted(grantsOf({ ...definition, compaction: { model: "claude-small" } }), "model:anthropic:claude-small")).toBe(true);
    expect(isGranted(grantsOf({ ...definition, compaction: { model: "openai:mini" } }), "model:openai:mini")).toBe(true);
    // A run's own policy may name another provider: the definition does not, so it is not granted.
    expect(isGranted(grantsOf(definition), `model:${modelReadings("openai:mini", definition.model)[0]}`)).toBe(false);
  });

  it.each([
    ["llama3:8b", "ollama:qwen3:4b", ["llama3:8b", "ollama:llama3:8b"]],
    ["small", "ollama:qwen3:4b", ["ollama:small"]],
    ["ollama:llama3:8b", "anthropic:claude-x", ["ollama:llama3:8b"]],
    ["openai-chat:mini", "ollama:qwen3:4b", ["openai-chat:mini"]],
    ["vllm:small", "vllm:large", ["vllm:small"]],
    ["vllm:small", "anthropic:claude-x", ["vllm:small", "anthropic:vllm:small"]],
    ["ft:mini:org::id", "openai:gpt-y", ["ft:mini:org::id", "openai:ft:mini:org::id"]],
  ])("read a policy's model %s of a run on %s as %j", (name, runModel, readings) => {
    expect(modelReadings(name, runModel)).toEqual(readings);
    // The owner of the agent has named it, whichever it is.
    for (const reading of readings) expect(isGranted(grantsOf({ ...definition, model: runModel, compaction: { model: name } }), `model:${reading}`)).toBe(true);
  });

  it("are only those it states when it states any", () => {
    const grants = grantsOf({ ...definition, grants: ["model:anthropic:*"] });
    expect(isGranted(grants, "model:anthropic:claude-z")).toBe(true);
    expect(isGranted(grants, "tool:search")).toBe(false);
  });

  it.each([[[]], [["*"]], [["models:*"]], [["tool:"]], [["tool:a b"]]])("refuses the list %j", (grants) => {
    expect(agentDefinition.safeParse({ ...definition, grants }).success).toBe(false);
  });
});

describe("narrowing", () => {
  it.each([
    [["tool:read_*"], ["tool:*"], true],
    [["tool:*"], ["tool:read_*"], false],
    [["tool:a*b*c"], ["tool:a*c"], true],
    [["tool:a*c"], ["tool:a*b*c"], false],
    [["tool:x", "model:a:b"], ["tool:*", "model:a:*"], true],
    [["tool:x", "model:b:b"], ["tool:*", "model:a:*"], false],
    [[], ["tool:x"], true],
    [["tool:x"], [], false],
    [["tool:**"], ["tool:*"], true],
  ])("%j within %j: %s", (child, parent, narrower) => {
    expect(isNarrower(child, parent)).toBe(narrower);
  });

  it("never lets a child use what its parent may not", () => {
    const text = fc.string({ unit: fc.constantFrom("a", "b", "*"), maxLength: 6 }).map((tail) => `tool:${tail}`);
    const resource = fc.string({ unit: fc.constantFrom("a", "b"), maxLength: 8 }).map((tail) => `tool:${tail}`);
    fc.assert(
      fc.property(fc.array(text, { maxLength: 3 }), fc.array(text, { maxLength: 3 }), fc.array(resource), (child, parent, resources) => {
        fc.pre(isNarrower(child, parent));
        expect(resources.filter((used) => isGranted(child, used) && !isGranted(parent, used))).toEqual([]);
      }),
      { numRuns: 500 },
    );
  });
});
