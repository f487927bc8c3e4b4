import { describe, expect, it } from "vitest";
import { mayCompact } from "../../../src/domain/compaction/breaker.ts";

const ask = (turn: number, appliedTurns: readonly number[], more: { readonly unappliedTurn?: number; readonly byBytes?: boolean } = {}) =>
  mayCompact({ turn, byBytes: more.byBytes ?? false, history: { appliedTurns, unappliedTurn: more.unappliedTurn } });

describe("compaction by percentage", () => {
  it("begins when none has been", () => {
    expect(ask(0, [])).toEqual({ ok: true });
  });

  it("is not in two turns running", () => {
    expect([10, 11, 12].map((turn) => ask(turn, [10]).ok)).toEqual([false, false, true]);
  });

  it("is not right after a skip or a failure, whatever was applied before", () => {
    expect([10, 11, 12].map((turn) => ask(turn, [3], { unappliedTurn: 10 }).ok)).toEqual([false, false, true]);
  });
});

describe("compaction by bytes", () => {
  it("is once a turn: a summary over the limit is tried again at the next", () => {
    expect([10, 11].map((turn) => ask(turn, [10], { byBytes: true }).ok)).toEqual([false, true]);
    expect([10, 11].map((turn) => ask(turn, [], { unappliedTurn: 10, byBytes: true }).ok)).toEqual([false, true]);
  });
});

describe("the breaker", () => {
  it("C15 ends auto after three within six turns, for both triggers, and says what would help", () => {
    expect(ask(50, [10, 12, 14])).toMatchObject({ ok: false, reason: "breaker_open", detail: { applied_turns: [10, 12, 14] } });
    expect(ask(50, [1, 2, 10, 12, 14], { byBytes: true })).toMatchObject({ ok: false, reason: "breaker_open" });
  });

  it("lets a run be whose results are large: every third turn is no loop", () => {
    expect(ask(50, [10, 13, 16])).toEqual({ ok: true });
  });

  it("C15 lets at most five of a thousand turns compact that fire each time without effect", () => {
    const appliedTurns: number[] = [];
    for (let turn = 1; turn <= 1_000; turn++) if (ask(turn, appliedTurns).ok) appliedTurns.push(turn);
    expect(appliedTurns).toEqual([1, 3, 5]);
  });
});
