import { describe, expect, it } from "vitest";
import type { AgentDefinition } from "../../src/domain/definition.ts";
import { effectiveDefinition } from "../../src/domain/effective-definition.ts";
import { grantsOf, isGranted } from "../../src/domain/grants.ts";

const stored: AgentDefinition = { name: "child", model: "openai:small", instructions: "Work.", tools: [], compaction: { keep_last_n: 2 } };

describe("a definition as it holds for one run", () => {
  it("is the stored one where nothing was set for the run", () => {
    expect(effectiveDefinition(stored, { ownBudget: undefined, ownCompaction: undefined, handedDown: undefined })).toBe(stored);
  });

  it("has the run's own compaction over the definition's, field by field", () => {
    expect(effectiveDefinition(stored, { ownBudget: undefined, ownCompaction: { at_tokens: 5_000 }, handedDown: undefined }).compaction).toEqual({
      keep_last_n: 2,
      at_tokens: 5_000,
    });
  });

  it("has the smaller of two hard limits, and else what the run says", () => {
    const budgeted = { ...stored, budget: { soft: { turns: 3, tokens: 50 }, hard: { tokens: 100, turns: 9 }, wrap_up: true } };
    const own = { soft: { turns: 2 }, hard: { tokens: 5_000, turns: 4, wall_ms: 1_000 }, wrap_up: false };
    expect(effectiveDefinition(budgeted, { ownCompaction: undefined, ownBudget: own, handedDown: undefined }).budget).toEqual({
      soft: { turns: 2, tokens: 50 },
      hard: { turns: 4, tokens: 100, wall_ms: 1_000 },
      wrap_up: false,
    });
  });

  it("may use the model that an inherited policy names for summaries, and no other model", () => {
    const grants = grantsOf(effectiveDefinition(stored, { ownBudget: undefined, ownCompaction: { model: "mini" }, handedDown: undefined }));
    expect(isGranted(grants, "model:openai:mini")).toBe(true);
    expect(isGranted(grants, "model:openai:large")).toBe(false);
  });

  it("may use no more than it was handed down, an inherited model included", () => {
    const grants = grantsOf(effectiveDefinition(stored, { ownBudget: undefined, ownCompaction: { model: "mini" }, handedDown: ["model:openai:small"] }));
    expect(isGranted(grants, "model:openai:small")).toBe(true);
    expect(isGranted(grants, "model:openai:mini")).toBe(false);
    expect(grantsOf(effectiveDefinition(stored, { ownBudget: undefined, ownCompaction: undefined, handedDown: ["tool:*"] }))).toEqual([]);
  });
});
