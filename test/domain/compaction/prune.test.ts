import { describe, expect, it } from "vitest";
import { applyExcerpts } from "../../../src/domain/compaction/excerpt.ts";
import { estimateTokens } from "../../../src/domain/compaction/footprint.ts";
import { planPrune } from "../../../src/domain/compaction/prune.ts";
import { resolvePolicy } from "../../../src/domain/compaction/policy.ts";
import { validateView } from "../../../src/domain/compaction/validate.ts";
import type { Message } from "../../../src/domain/transcript/message.ts";
import { calls, groups, placesOf, results, user } from "./messages.ts";

const big = (): string => "x".repeat(8_000);
const prune = (view: readonly Message[], wantedTokens: number, more: Partial<Parameters<typeof planPrune>[0]> = {}) =>
  planPrune({ view, places: placesOf(view), policy: resolvePolicy({}), isRefetchable: () => true, wantedTokens, ...more });

describe("pruning", () => {
  const view = [user("task"), ...groups(10, big)];

  it("shortens the oldest results first, and no more than needed", () => {
    const planned = prune(view, 3_000);
    expect(planned?.excerpts).toEqual([
      { seq: 3, keep_bytes: 256, kind: "pruned" },
      { seq: 5, keep_bytes: 256, kind: "pruned" },
    ]);
    expect(planned?.freedTokens).toBeGreaterThanOrEqual(3_000);
  });

  it("frees what it says", () => {
    const planned = prune(view, 5_000);
    const changed = applyExcerpts(view, placesOf(view), planned?.excerpts ?? []);
    const after = view.map((message, i) => changed.get(i) ?? message);
    expect(estimateTokens(view) - estimateTokens(after)).toBe(planned?.freedTokens);
    expect(planned?.freedBytes).toBeGreaterThan(20_000);
    expect(validateView(after)).toEqual([]);
  });

  it("spares the last units, tools that must not be called again and short results", () => {
    expect(
      prune(view, 1e6)
        ?.excerpts.filter(({ kind }) => kind === "pruned")
        .map(({ seq }) => seq),
    ).toEqual([3, 5, 7, 9, 11, 13]);
    expect(prune(view, 1e6, { isRefetchable: () => false })?.excerpts.every(({ kind }) => kind === "excerpt")).toBe(true);
    expect(prune([user("task"), ...groups(10)], 1e6)).toBeUndefined();
  });

  it("shortens nothing twice", () => {
    const shortened = new Map([[3, { seq: 3, keep_bytes: 9, kind: "pruned" } as const]]);
    expect(prune(view, 1_000, { shortened })?.excerpts).toMatchObject([{ seq: 5 }]);
  });

  it("C54 one huge newest result that cannot be fetched again becomes an excerpt of what fits", () => {
    const huge = [user("task"), calls("a"), results({ a: "x".repeat(482_000 * 4) })];
    const planned = prune(huge, 240_000, { isRefetchable: () => false });
    expect(planned?.excerpts).toMatchObject([{ seq: 3, kind: "excerpt" }]);
    expect(planned?.freedTokens).toBeGreaterThanOrEqual(240_000);
    expect(planned?.freedTokens).toBeLessThan(250_000);
  });

  it("C35 the last resort keeps the task and the last group, however wrong the estimate is", () => {
    const planned = prune(view, 1e9);
    const changed = applyExcerpts(view, placesOf(view), planned?.excerpts ?? []);
    expect(changed.has(0)).toBe(false);
    const after = view.map((message, i) => changed.get(i) ?? message);
    expect(after).toHaveLength(view.length);
    expect(validateView(after)).toEqual([]);
  });
});
