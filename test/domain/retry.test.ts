import fc from "fast-check";
import { expect, it } from "vitest";
import { backoffMs } from "../../src/domain/retry.ts";

const options = fc.record({ firstMs: fc.integer({ min: 1, max: 60_000 }), maxMs: fc.integer({ min: 1, max: 600_000 }) });
const random = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true });

it("stays between half and the whole of the doubled pause, and under the cap", () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 10_000 }), random, options, (attempt, r, { firstMs, maxMs }) => {
      const whole = Math.min(maxMs, firstMs * 2 ** (attempt - 1));
      const pause = backoffMs(attempt, r, { firstMs, maxMs });
      expect(Number.isSafeInteger(pause)).toBe(true);
      expect(pause).toBeGreaterThanOrEqual(Math.floor(whole / 2));
      expect(pause).toBeLessThanOrEqual(whole);
    }),
  );
});

it("never shrinks with the attempt", () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 100 }), random, options, (attempt, r, o) => {
      expect(backoffMs(attempt + 1, r, o)).toBeGreaterThanOrEqual(backoffMs(attempt, r, o));
    }),
  );
});

it("doubles until the cap", () => {
  expect([1, 2, 3, 4, 5, 6].map((attempt) => backoffMs(attempt, 0, { firstMs: 500, maxMs: 8_000 }))).toEqual([250, 500, 1_000, 2_000, 4_000, 4_000]);
});

it("spreads runs that failed together", () => {
  const pauses = [0, 0.25, 0.5, 0.75].map((r) => backoffMs(3, r, { firstMs: 500, maxMs: 60_000 }));
  expect(pauses).toEqual([1_000, 1_250, 1_500, 1_750]);
});
