import { describe, expect, it } from "vitest";
import type { AgentDefinition } from "../../src/domain/definition.ts";
import { effectiveDefinition } from "../../src/domain/effective-definition.ts";
import { grantsOf, isGranted } from "../../src/domain/grants.ts";

const stored: AgentDefinition = { name: "child", model: "openai:small", instructions: "Work.", tools: [], compaction: { keep_last_n: 2 } };

describe("a definition as it holds for one run", () => {
  it("is the stored one where nothing was set for the run", () => {
    expect(effectiveDefinition(stored, { ownCompaction: undefined, handedDown: undefined })).toBe(stored);
  });

  it("has the run's own compaction over the definition's, field by field", () => {
    expect(effectiveDefinition(stored, { ownCompaction: { at_tokens: 5_000 }, handedDown: undefined }).compaction).toEqual({ keep_last_n: 2, at_tokens: 5_000 });
  });

  it("may use the model that an inherited policy names for summaries, and no other model", () => {
    const grants = grantsOf(effectiveDefinition(stored, { ownCompaction: { model: "mini" }, handedDown: undefined }));
    expect(isGranted(grants, "model:openai:mini")).toBe(true);
    expect(isGranted(grants, "model:openai:large")).toBe(false);
  });

  it("may use no more than it was handed down, an inherited model included", () => {
    const grants = grantsOf(effectiveDefinition(stored, { ownCompaction: { model: "mini" }, handedDown: ["model:openai:small"] }));
    expect(isGranted(grants, "model:openai:small")).toBe(true);
    expect(isGranted(grants, "model:openai:mini")).toBe(false);
    expect(grantsOf(effectiveDefinition(stored, { ownCompaction: undefined, handedDown: ["tool:*"] }))).toEqual([]);
  });
});
