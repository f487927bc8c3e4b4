/** `at_tokens` far below the window: what is measured as progress is a share of the cap, not of the window. */
import { describe, expect, it } from "vitest";
import { estimateTokens } from "../../../src/domain/compaction/footprint.ts";
import { cutOf, groups, plan, user } from "./messages.ts";

const view = (tokens: number, each: number) => [user("task"), ...groups(Math.ceil(tokens / each), () => "x".repeat(each * 4 - 60))];

describe("a cap in tokens of a few percent of the window", () => {
  it.each([
    [1_000_000, 40_000, 269],
    [200_000, 5_000, 150],
    [1_000_000, 10_000, 100],
  ])("window %i, at_tokens %i, messages of %i: cuts, and falls well below the cap", (windowTokens, at_tokens, each) => {
    const messages = view(at_tokens, each);
    const { cut, keptTokens, freedTokens } = cutOf(messages, { enabled: true, at_tokens }, { windowTokens, trigger: "auto", firesAtTokens: at_tokens });
    expect(cut.kept_units).toBe(4);
    expect(keptTokens).toBeLessThan(at_tokens * 0.95);
    expect(freedTokens).toBeGreaterThan(estimateTokens(messages) * 0.05);
  });

  it("does nothing when a frame takes all of it but a little, and calls no small message too large", () => {
    const messages = [...view(2_000, 150), user("x".repeat(600))];
    const more = { windowTokens: 200_000, trigger: "auto", firesAtTokens: 5_000, overheadTokens: 4_500, interactive: true } as const;
    const skipped = plan(messages, { enabled: true, at_tokens: 5_000 }, more);
    expect(skipped).toMatchObject({ kind: "skip", reason: "irreducible", detail: { overhead_tokens: 4_500 } });
    expect(skipped).toHaveProperty("detail.fix", expect.stringContaining("at_tokens"));
  });

  it("names the setting that a message is too large for", () => {
    const messages = [...view(4_000, 150), user("x".repeat(80_000))];
    const settings = { enabled: true, at_tokens: 10_000 };
    expect(plan(messages, settings, { windowTokens: 1_000_000, trigger: "auto", firesAtTokens: 10_000 })).toMatchObject({
      kind: "skip",
      reason: "single_message",
      detail: { fix: expect.stringContaining("raise at_tokens") as string },
    });
  });
});
