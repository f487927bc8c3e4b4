import fc from "fast-check";
import { expect, it } from "vitest";
import { summaryLimit, summaryTarget, type SummarySizeInput } from "../../src/domain/compaction/size.ts";

const limit = (input: Partial<SummarySizeInput> = {}): number =>
  summaryLimit({ trigger: "auto", byBytes: false, policy: {}, replacedTokens: 100_000, modelOutputLimit: 64_000, ...input });

it("is the wanted share of what is replaced, at least 1,024 and at most what the model gives", () => {
  expect(limit()).toBe(10_000);
  expect(limit({ policy: { target_percentage: 25 } })).toBe(25_000);
  expect(limit({ replacedTokens: 2_000 })).toBe(1_024);
  expect(limit({ modelOutputLimit: 8_192 })).toBe(8_192);
  expect(limit({ modelOutputLimit: undefined })).toBe(4_096);
  for (const trigger of ["manual", "self", "overflow"] as const) expect(limit({ trigger, byBytes: true })).toBe(10_000);
});

it("is 1,024 by bytes, and max_tokens wherever it is set, never below 512", () => {
  expect(limit({ byBytes: true })).toBe(1_024);
  expect(limit({ byBytes: true, policy: { max_tokens: 3_000 } })).toBe(3_000);
  expect(limit({ policy: { max_tokens: 3_000 }, modelOutputLimit: undefined })).toBe(3_000);
  expect(limit({ policy: { max_tokens: 1 } })).toBe(512);
  expect(limit({ policy: { max_tokens: 9_000 }, modelOutputLimit: 4_096 })).toBe(4_096);
});

it("names a size below the limit, whatever the numbers", () => {
  fc.assert(
    fc.property(
      fc.record({
        trigger: fc.constantFrom("manual" as const, "auto" as const, "self" as const, "overflow" as const),
        byBytes: fc.boolean(),
        policy: fc.record({ max_tokens: fc.integer({ min: 1, max: 1e6 }), target_percentage: fc.integer({ min: 10, max: 50 }) }, { requiredKeys: [] }),
        replacedTokens: fc.oneof(fc.double({ min: -1, max: 1e9, noNaN: true }), fc.constantFrom(Number.NaN, Number.POSITIVE_INFINITY)),
        modelOutputLimit: fc.option(fc.integer({ min: 1, max: 200_000 }), { nil: undefined }),
      }),
      (input) => {
        const most = summaryLimit(input);
        const named = summaryTarget(most, { replacedTokens: input.replacedTokens, targetPercentage: input.policy.target_percentage });
        expect(Number.isInteger(most) && Number.isInteger(named)).toBe(true);
        expect(named).toBeGreaterThan(0);
        expect(named).toBeLessThanOrEqual(most);
        if (input.modelOutputLimit !== undefined) expect(most).toBeLessThanOrEqual(input.modelOutputLimit);
        expect(most).toBeGreaterThanOrEqual(Math.min(512, input.modelOutputLimit ?? 512));
      },
    ),
  );
});
