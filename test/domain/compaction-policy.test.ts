import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { compactionPolicy, isCompactionConfigured, isCompactionUnset, mergeCompaction, type CompactionPolicy } from "../../src/domain/compaction/policy.ts";

const fields: { readonly [F in keyof CompactionPolicy]-?: fc.Arbitrary<NonNullable<CompactionPolicy[F]>> } = {
  enabled: fc.boolean(),
  autocompact_at_pct: fc.integer({ min: 50, max: 95 }),
  at_tokens: fc.integer({ min: 1 }),
  after_bytes: fc.integer({ min: 1 }),
  keep_first: fc.boolean(),
  keep_last_n: fc.nat(),
  target_percentage: fc.integer({ min: 10, max: 50 }),
  model: fc.constantFrom("offline:a", "b"),
  summarizer: fc.constantFrom("mine", "other"),
  instruction: fc.constantFrom("short", "long"),
  max_tokens: fc.integer({ min: 1 }),
  prefetch_at_pct: fc.integer({ min: 1, max: 94 }),
};
const names = Object.keys(compactionPolicy.shape) as (keyof CompactionPolicy)[];
/** Some fields set, some absent, some present as undefined. */
const policy = fc.record(Object.fromEntries(names.map((name) => [name, fc.option(fields[name] as fc.Arbitrary<unknown>, { nil: undefined })])), {
  requiredKeys: [],
}) as fc.Arbitrary<CompactionPolicy>;

describe("merging policies", () => {
  it("takes each field from the one over it where that one sets it, else from below", () => {
    fc.assert(
      fc.property(fc.option(policy, { nil: undefined }), fc.option(policy, { nil: undefined }), (base, over) => {
        const merged = mergeCompaction(base, over);
        for (const name of names) expect(merged?.[name]).toBe(over?.[name] ?? base?.[name]);
        // Nothing is written as undefined: it would hash as a field.
        for (const value of Object.values(merged ?? {})) expect(value).toBeDefined();
      }),
      { numRuns: 300 },
    );
  });

  it("lets false and 0 win over what is below", () => {
    expect(mergeCompaction({ enabled: true, keep_last_n: 4, keep_first: true }, { enabled: false, keep_last_n: 0, keep_first: false })).toEqual({
      enabled: false,
      keep_last_n: 0,
      keep_first: false,
    });
  });

  it("collapses to none when nothing is set", () => {
    expect(mergeCompaction(undefined, undefined)).toBeUndefined();
    expect(mergeCompaction({}, { enabled: undefined })).toBeUndefined();
    expect([{}, { enabled: undefined, model: undefined }].map(isCompactionUnset)).toEqual([true, true]);
    expect([{ enabled: false }, { keep_last_n: 0 }].map(isCompactionUnset)).toEqual([false, false]);
  });

  it("is the same from left as from right, so that grandchildren inherit alike", () => {
    fc.assert(
      fc.property(policy, policy, policy, (a, b, c) => {
        expect(mergeCompaction(mergeCompaction(a, b), c)).toEqual(mergeCompaction(a, mergeCompaction(b, c)));
      }),
    );
  });

  it("changes neither of its two policies", () => {
    const base = Object.freeze({ enabled: true });
    expect(mergeCompaction(base, Object.freeze({ keep_last_n: 1 }))).toEqual({ enabled: true, keep_last_n: 1 });
  });
});

describe("a policy's ranges", () => {
  it("takes every policy within them", () => {
    fc.assert(
      fc.property(policy, (p) => {
        expect(compactionPolicy.safeParse(p).success).toBe(true);
      }),
    );
  });

  it.each([
    ["autocompact_at_pct", [49, 96, 70.5, "80"], "must be a whole number from 50 to 95"],
    ["at_tokens", [0, -1, 1.5, null], "must be a whole number of at least 1"],
    ["after_bytes", [0, -1, Number.NaN], "must be a whole number of at least 1"],
    ["keep_last_n", [-1, 0.5, true], "must be a whole number of at least 0"],
    ["target_percentage", [9, 51, 10.1], "must be a whole number from 10 to 50"],
    ["max_tokens", [0, -5], "must be a whole number of at least 1"],
    ["prefetch_at_pct", [0, 95], "must be a whole number from 1 to 94"],
  ])("refuses %s outside of its range, naming field, range and value", (field, values, message) => {
    for (const value of values) {
      const parsed = compactionPolicy.safeParse({ [field]: value });
      expect(parsed.error?.issues).toHaveLength(1);
      expect(parsed.error?.issues[0]).toMatchObject({ path: [field] });
      expect(parsed.error?.issues[0]?.message).toMatch(message);
      expect(parsed.error?.issues[0]?.message).toContain(typeof value === "string" ? JSON.stringify(value) : String(value));
    }
  });

  it.each(["model", "summarizer", "instruction"])("refuses an empty %s", (field) => {
    expect(compactionPolicy.safeParse({ [field]: "" }).error?.issues[0]?.path).toEqual([field]);
  });

  it.each(["enabled", "keep_first"])("refuses a %s that is no boolean", (field) => {
    expect(compactionPolicy.safeParse({ [field]: "true" }).error?.issues[0]?.path).toEqual([field]);
  });

  it("refuses fields that do not exist", () => {
    expect(compactionPolicy.safeParse({ keepLastN: 4 }).error?.issues[0]).toMatchObject({ code: "unrecognized_keys", keys: ["keepLastN"] });
  });
});

it("counts as configured when compaction happens by itself", () => {
  expect([undefined, {}, { enabled: false }, { enabled: false, after_bytes: 1 }, { at_tokens: 1 }, { prefetch_at_pct: 50 }].map(isCompactionConfigured)).toEqual([
    false,
    false,
    false,
    false,
    false,
    false,
  ]);
  expect([{ enabled: true }, { after_bytes: 1 }, { enabled: true, after_bytes: 1 }].map(isCompactionConfigured)).toEqual([true, true, true]);
});
