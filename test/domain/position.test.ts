import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { positionOf, segmentsOf, seqOf, within, type LineRun } from "../../src/domain/position.ts";

/** Lines of runs, the run itself first: how many events each has, and after how many of them the next begins. */
const line = fc.array(fc.record({ kept: fc.integer({ min: 1, max: 9 }), more: fc.nat(5) }), { minLength: 1, maxLength: 6 }).map((plan) => {
  let offset = 0;
  const runs: LineRun[] = plan.map(({ kept }, i) => {
    const run = { runId: `run-${i}`, offset, ...(i === 0 ? {} : { base: { runId: `run-${i - 1}`, seq: plan[i - 1]?.kept as number } }) };
    offset += kept;
    return run;
  });
  const events = plan.flatMap(({ kept, more }, i) => Array.from({ length: i === plan.length - 1 ? kept + more : kept }, (_, n) => ({ runId: `run-${i}`, seq: n + 1 })));
  return { runs: runs.toReversed(), events };
});

describe("positions", () => {
  it("number a line's events from 1 without a gap, and each back to its run and seq", () => {
    fc.assert(
      fc.property(line, ({ runs, events }) => {
        const segments = segmentsOf(runs);
        const read = segments.flatMap((segment) => {
          const all = within(segment, { after: 0, below: events.length + 1 });
          return all === undefined
            ? []
            : Array.from({ length: all.below - all.after - 1 }, (_, n) => ({
                runId: segment.runId,
                seq: all.after + 1 + n,
                position: positionOf(all.after + 1 + n, segment.offset),
              }));
        });
        expect(read).toEqual(events.map((event, i) => ({ ...event, position: i + 1 })));
        for (const segment of segments) expect(seqOf(positionOf(7, segment.offset), segment.offset)).toBe(7);
      }),
    );
  });

  it("are cut the same way in the middle", () => {
    fc.assert(
      fc.property(line, fc.nat(60), fc.nat(60), ({ runs, events }, after, below) => {
        const cut = segmentsOf(runs).flatMap((segment) => {
          const part = within(segment, { after, below: Math.min(below, events.length + 1) });
          return part === undefined ? [] : Array.from({ length: part.below - part.after - 1 }, (_, n) => positionOf(part.after + 1 + n, segment.offset));
        });
        expect(cut).toEqual(events.map((_, i) => i + 1).filter((position) => position > after && position < below));
      }),
    );
  });

  it("are refused where a run of the line is gone or does not meet the next", () => {
    expect(() => segmentsOf([{ runId: "b", offset: 3, base: { runId: "a", seq: 3 } }])).toThrow("is not there");
    expect(() =>
      segmentsOf([
        { runId: "b", offset: 4, base: { runId: "a", seq: 3 } },
        { runId: "a", offset: 0 },
      ]),
    ).toThrow("begins behind position 4, its base ends at 3");
    expect(() => segmentsOf([{ runId: "a", offset: 2 }])).toThrow("names no base");
  });
});
