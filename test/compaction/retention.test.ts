/** The benchmark's retention part in its small form: what no summarizer may lose, whatever it writes. */
import { describe, expect, it } from "vitest";
import { EXTRACTIVE, GENERATIONS, stories, summarizers } from "../../bench/src/compaction/cast.ts";
import { compactOnce, summarizing } from "../../bench/src/compaction/compact-once.ts";
import { MemoryRun } from "../../bench/src/compaction/memory-run.ts";
import type { NeedleClass } from "../../bench/src/compaction/needles.ts";
import { gate } from "../../bench/src/compaction/retention-report.ts";
import { measureRetention, newRetention, type Retention } from "../../bench/src/compaction/retention.ts";
import { resolvePolicy } from "../../src/domain/compaction/policy.ts";
import { viewDigest } from "../../src/engine/run-memory.ts";
import { hostileSummarizers } from "../../src/testing/hostile-summarizers.ts";

const told = stories({ recorded: 1, chained: 6, generated: 1 });

function shareOf({ classes }: Retention, name: NeedleClass): number {
  const tallies = (classes.get(name) ?? []).filter((tally) => tally !== undefined);
  return tallies.reduce((sum, { kept }) => sum + kept, 0) / tallies.reduce((sum, { of }) => sum + of, 0);
}

describe("six chained compactions of a recorded conversation and a generated one", () => {
  it.each(summarizers().map((by) => [by.name, by] as const))("%s: keep pins, obligations and side effects, and a view that four protocols take", async (name, by) => {
    const result = newRetention(name);
    for (const story of told) await measureRetention(story, by, GENERATIONS, result);
    expect(result.compactions + result.notSmaller).toBe(told.length * GENERATIONS);
    expect(gate([result]).failures).toEqual([]);
    expect(result.tokens.after).toBeLessThan(result.tokens.before);
    if (result.facts.dropped > 0) return;
    // Appended word for word where the summary left them out, with room enough for all, whatever the summary holds.
    for (const used of ["number, used", "id, used", "path, used", "used after a compaction"] as const) expect(shareOf(result, used), used).toBe(1);
    if (name !== EXTRACTIVE) return;
    expect(shareOf(result, "superseded value")).toBeGreaterThan(0.75);
    // A former value without the newer one: none.
    expect(result.misled.kept).toBe(0);
  });

  it("has room for all facts but in the small window", async () => {
    for (const by of summarizers()) {
      const result = newRetention(by.name);
      for (const story of told) await measureRetention(story, by, GENERATIONS, result);
      expect(result.facts.dropped === 0, by.name).toBe(by.windowTokens >= 200_000);
    }
  });
});

describe("a summarizer that gives nothing usable", () => {
  it.each(hostileSummarizers().flatMap(({ name, expected, hangs, model }) => (expected === "summarized" || hangs === true ? [] : [[name, expected, model] as const])))(
    "%s changes nothing (%s)",
    async (name, expected, model) => {
      const run = new MemoryRun(told[0] ?? { task: "", interactive: true });
      for (const step of (told[0]?.steps ?? []).slice(0, 20)) run.take(step);
      const before = viewDigest(run.state.view).digest;
      const events = run.events.length;
      expect(await compactOnce(run, summarizing(name, resolvePolicy({ enabled: true }), 200_000, { model }), [])).toEqual({ kind: "not_applied", reason: expected });
      expect(viewDigest(run.state.view).digest).toBe(before);
      expect(run.events).toHaveLength(events);
    },
  );
});
