import { describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { CONTEXT_TOOL_GUIDANCE, contextTool, readBlobTool } from "../../src/agents/engine-tools.ts";
import { tool } from "../../src/agents/tool.ts";
import { claimCheckOf } from "../../src/domain/claim-check.ts";
import { definitionText } from "../../src/domain/definition.ts";
import { refusedBy } from "./refused-by.ts";

const search = tool({ name: "search", description: "Finds.", input: z.object({ q: z.string() }), effect: "read", execute: () => 1 });
const base = { name: "clerk", model: "offline:auditor", instructions: "Help." };

describe("the engine's own tools", () => {
  it("say when to look and when to act in their description", () => {
    const { definition } = contextTool();
    expect(definition).toMatchObject({ name: "context", effect: "read" });
    expect(definition.description).toContain(CONTEXT_TOOL_GUIDANCE);
    expect(CONTEXT_TOOL_GUIDANCE).toContain("op=self");
    expect(CONTEXT_TOOL_GUIDANCE).toMatch(/used_pct >= compaction\.autocompact_at_pct, call op=compact/);
  });

  it("are in a definition only where it lists them, and as nothing but a tool", () => {
    const without = agent({ ...base, tools: [search] });
    const having = agent({ ...base, tools: [search, contextTool(), readBlobTool()] });
    expect(without.definition.tools).toEqual([search.definition]);
    expect(definitionText(without.definition)).not.toMatch(/context|read_blob|engine/);
    expect(having.definition.tools.map(({ name }) => name)).toEqual(["search", "context", "read_blob"]);
    expect(Object.keys(having.definition)).toEqual(Object.keys(without.definition));
    expect(Object.keys(having.definition.tools[1] ?? {}).toSorted()).toEqual(["description", "effect", "input_schema", "name"]);
    expect([...having.code.tools.values()].map(({ engine }) => engine)).toEqual([undefined, "context", "read_blob"]);
  });

  it.each([
    [contextTool(), { op: "self" }, true],
    [contextTool(), { op: "pin", text: "x" }, true],
    [contextTool(), { op: "ledger", tool: "send", offset: 40 }, true],
    [contextTool(), {}, false],
    [contextTool(), { op: "forget" }, false],
    [contextTool(), { op: "self", why: 1 }, false],
    [contextTool(), { op: "ledger", offset: -1 }, false],
    [readBlobTool(), { sha256: "a".repeat(64) }, true],
    [readBlobTool(), { sha256: `sha256:${"A".repeat(64)}`, offset: 5, limit: 64 }, true],
    [readBlobTool(), { sha256: "a".repeat(63) }, false],
    [readBlobTool(), { sha256: "a".repeat(64), limit: 65_537 }, false],
    [readBlobTool(), { sha256: "a".repeat(64), offset: 0.5 }, false],
  ])("check what they are called with: %j", (own, input, ok) => {
    expect(own.check(input).ok).toBe(ok);
  });

  it("cannot be executed outside a run", () => {
    expect(() => contextTool().execute({}, {} as never)).toThrow("carried out by the engine");
  });

  it("are not withheld by claim check: they show what is withheld", () => {
    expect(refusedBy(() => agent({ ...base, tools: [readBlobTool(), contextTool()], claimCheck: { tools: ["read_blob", "context"] } }))).toContain(
      "claimCheck.tools names read_blob, context",
    );
  });
});

describe("claim check's sizes", () => {
  const sizes = (claimCheck: { overBytes?: number; previewBytes?: number }) =>
    claimCheckOf(agent({ ...base, tools: [search], claimCheck: { tools: ["search"], ...claimCheck } }).definition, "search");

  it("have defaults", () => {
    expect(sizes({})).toEqual({ overBytes: 4_096, previewBytes: 512 });
    expect(sizes({ overBytes: 300 })).toEqual({ overBytes: 300, previewBytes: 150 });
    expect(sizes({ overBytes: 300, previewBytes: 0 })).toEqual({ overBytes: 300, previewBytes: 0 });
    expect(sizes({ overBytes: 300, previewBytes: 300 })).toEqual({ overBytes: 300, previewBytes: 300 });
  });

  it("are those of the listed tools", () => {
    const { definition } = agent({ ...base, tools: [search, contextTool()], claimCheck: { tools: ["search"] } });
    expect(claimCheckOf(definition, "context")).toBeUndefined();
    expect(claimCheckOf(agent({ ...base, tools: [search] }).definition, "search")).toBeUndefined();
  });

  it("refuse a preview that shows more than may stay", () => {
    expect(refusedBy(() => sizes({ overBytes: 300, previewBytes: 301 }))).toBe(
      'agent "clerk": claimCheck.previewBytes must be a whole number from 0 to 300 (the size from which results are withheld), not 301',
    );
    expect(refusedBy(() => sizes({ previewBytes: 4_097 }))).toContain("from 0 to 4096");
  });
});
