import { describe, expect, it } from "vitest";
import type { AgentDefinition } from "../../src/domain/definition.ts";
import {
  CRITICAL_JOURNAL_BYTES,
  CRITICAL_TRANSCRIPT_BYTES,
  DEFAULT_STATE_GROWTH_WARN_BYTES,
  growthLevel,
  isCritical,
  warnThreshold,
  type GrowthNumbers,
} from "../../src/domain/growth.ts";

const plain: AgentDefinition = { name: "a", model: "offline:x", instructions: "", tools: [] };
const at = (transcriptBytes: number, more: Partial<GrowthNumbers> = {}): GrowthNumbers => ({
  transcriptBytes,
  journalBytes: 0,
  contextTokens: undefined,
  windowTokens: undefined,
  ...more,
});
const MiB = 1024 * 1024;

it("T13 the default threshold is exported and exactly 262,144 bytes", () => {
  expect(DEFAULT_STATE_GROWTH_WARN_BYTES).toBe(262_144);
  expect(warnThreshold(plain)).toBe(262_144);
});

it("T1 is silent at 262,143 and 262,144 bytes and warns at 262,145", () => {
  expect([262_143, 262_144, 262_145].map((bytes) => growthLevel(plain, at(bytes)))).toEqual([0, 0, 1]);
});

it("T3 warnTranscriptBytes: false is silent for ever, a number moves the threshold", () => {
  expect(warnThreshold({ ...plain, warn_transcript_bytes: false })).toBeUndefined();
  expect(growthLevel({ ...plain, warn_transcript_bytes: false }, at(10 * MiB))).toBe(0);
  expect([1_000, 1_001].map((bytes) => growthLevel({ ...plain, warn_transcript_bytes: 1_000 }, at(bytes)))).toEqual([0, 1]);
  expect(growthLevel({ ...plain, warn_transcript_bytes: MiB }, at(262_145))).toBe(0);
});

it.each([
  ["enabled: true", { enabled: true }],
  ["after_bytes alone", { after_bytes: 500_000 }],
  ["both", { enabled: true, after_bytes: 500_000 }],
  ["a summarizer with after_bytes", { summarizer: "mine", after_bytes: 500_000 }],
])("T4 is silent with compaction configured by %s, whatever the size and even if a threshold is set", (_, compaction) => {
  expect(warnThreshold({ ...plain, compaction })).toBeUndefined();
  expect(growthLevel({ ...plain, compaction, warn_transcript_bytes: 1 }, at(10 * MiB))).toBe(0);
});

it.each([
  ["an explicit enabled: false", { enabled: false }],
  ["enabled: false beside after_bytes", { enabled: false, after_bytes: 500_000 }],
  ["a policy that leaves auto off", { keep_last_n: 6, model: "offline:small", at_tokens: 1_000, autocompact_at_pct: 70 }],
  ["a named summarizer without a trigger", { summarizer: "mine" }],
  ["an empty policy", {}],
])("T4 still warns with %s", (_, compaction) => {
  expect(growthLevel({ ...plain, compaction }, at(262_145))).toBe(1);
});

it("T5 still warns with claim check on", () => {
  expect(growthLevel({ ...plain, claim_check: { tools: ["t"] } }, at(262_145))).toBe(1);
});

describe("G7 the critical level", () => {
  it.each([
    ["a transcript over 16 MiB", at(CRITICAL_TRANSCRIPT_BYTES), at(CRITICAL_TRANSCRIPT_BYTES + 1)],
    ["a journal over 64 MiB", at(0, { journalBytes: CRITICAL_JOURNAL_BYTES }), at(0, { journalBytes: CRITICAL_JOURNAL_BYTES + 1 })],
    ["80 % of the window", at(0, { contextTokens: 159_999, windowTokens: 200_000 }), at(0, { contextTokens: 160_000, windowTokens: 200_000 })],
  ])("begins at %s", (_, below, reached) => {
    expect(isCritical(below)).toBe(false);
    expect(isCritical(reached)).toBe(true);
    expect(growthLevel(plain, reached)).toBe(2);
  });

  it("is 16 MiB of transcript and 64 MiB of journal", () => {
    expect([CRITICAL_TRANSCRIPT_BYTES, CRITICAL_JOURNAL_BYTES]).toEqual([16 * MiB, 64 * MiB]);
  });

  it("holds with compaction configured and with the warning silenced", () => {
    expect(growthLevel({ ...plain, compaction: { enabled: true } }, at(17 * MiB))).toBe(2);
    expect(growthLevel({ ...plain, warn_transcript_bytes: false }, at(17 * MiB))).toBe(2);
  });

  it("says nothing of a window that is unknown", () => {
    expect(isCritical(at(0, { contextTokens: 1e9 }))).toBe(false);
    expect(isCritical(at(0, { windowTokens: 1 }))).toBe(false);
  });
});
