import { describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { budgetIssues, budgetLevel, hardReached, mergeBudget, noBudget, shareOf, softReached, takenBy, type Budget } from "../../src/domain/budget.ts";
import { resumeAtMarker } from "../../src/domain/compaction/resume.ts";
import { definitionText } from "../../src/domain/definition.ts";
import { fold } from "../../src/domain/fold.ts";
import type { EventOf } from "../../src/domain/event.ts";
import { noUsage } from "../../src/domain/usage.ts";
import { refusedBy } from "../agents/refused-by.ts";
import { Journal } from "./runs.ts";

const taken = { turns: 3, tokens: 90, cost_usd_micros: 5, wall_ms: 1_000 };

describe("a limit", () => {
  it("is reached at its number, not before", () => {
    expect(softReached({ soft: { tokens: 91 } }, taken, noBudget)).toEqual([]);
    expect(softReached({ soft: { tokens: 90, turns: 3, wall_ms: 2_000 } }, taken, noBudget)).toEqual([
      { limit: "turns", used: 3, of: 3 },
      { limit: "tokens", used: 90, of: 90 },
    ]);
    expect(softReached({ soft: { tokens: 90 } }, taken, { ...noBudget, told: ["tokens"] })).toEqual([]);
    expect(hardReached({ hard: { tokens: 91 } }, taken)).toBeUndefined();
    expect(hardReached({ hard: { tokens: 90 } }, taken)).toEqual({ limit: "tokens", used: 90, of: 90 });
  });

  it("may be filled by a call, and not passed", () => {
    expect(hardReached({ hard: { tokens: 100 } }, taken, { tokens: 10 })).toBeUndefined();
    expect(hardReached({ hard: { tokens: 100 } }, taken, { tokens: 11 })).toEqual({ limit: "tokens", used: 90, of: 100, next: 11 });
  });

  it("counts what stands in no usage of the run's own", () => {
    const usage = { ...noUsage, inputTokens: 5, outputTokens: 6, cacheReadTokens: 4, costUsdMicros: 7 };
    expect(takenBy(usage, { ...noBudget, spent: { tokens: 100, costUsdMicros: 3 } }, { ownTurns: 2, wallMs: -5 })).toEqual({
      turns: 2,
      tokens: 111,
      cost_usd_micros: 10,
      wall_ms: 0,
    });
  });
});

describe("two budgets", () => {
  it("have the smaller hard limit, and else what the nearer one says", () => {
    const base: Budget = { soft: { turns: 2, tokens: 10 }, hard: { turns: 5, tokens: 50 }, wrap_up: true };
    expect(mergeBudget(base, { soft: { tokens: 20 }, hard: { tokens: 500, wall_ms: 1 }, wrap_up: false })).toEqual({
      soft: { turns: 2, tokens: 20 },
      hard: { turns: 5, tokens: 50, wall_ms: 1 },
      wrap_up: false,
    });
    expect(mergeBudget(base, undefined)).toEqual(base);
    expect(mergeBudget(undefined, {})).toBeUndefined();
  });

  it("hand down what is left, in equal parts but for the time", () => {
    const budget: Budget = { hard: { turns: 9, tokens: 100, cost_usd_micros: 9, wall_ms: 5_000 } };
    expect(shareOf(budget, taken, 2)).toEqual({ hard: { tokens: 5, cost_usd_micros: 2, wall_ms: 4_000 }, exhausted: undefined });
    expect(shareOf(budget, taken, 5).exhausted).toBe("cost_usd_micros");
    expect(shareOf({ soft: { tokens: 1 } }, taken, 5)).toEqual({ hard: undefined, exhausted: undefined });
  });
});

describe("an agent's budget", () => {
  const spec = { name: "a", model: "offline:auditor", instructions: "Work." };
  it("leaves a definition without one as it was, also one that says nothing", () => {
    const plain = definitionText(agent(spec).definition);
    expect(plain).not.toContain("budget");
    expect(definitionText(agent({ ...spec, budget: {} }).definition)).toBe(plain);
    expect(definitionText(agent({ ...spec, budget: { soft: {}, hard: {} } }).definition)).toBe(plain);
  });

  it("is refused by its field", () => {
    expect(budgetIssues({ soft: { turns: 3 }, hard: { turns: 3 } })).toEqual([{ path: "soft.turns", message: "must be below budget.hard.turns, which is 3, not 3" }]);
    expect(refusedBy(() => agent({ ...spec, budget: { soft: { turns: 3 }, hard: { turns: 3 } } }))).toContain("budget.soft.turns");
    expect(refusedBy(() => agent({ ...spec, budget: { hard: { tokens: 0 } } }))).toContain("budget.hard.tokens");
    expect(refusedBy(() => agent({ ...spec, budget: { hard: { seconds: 1 } as never } }))).toContain("budget.hard");
  });
});

describe("the fold", () => {
  const answer = [{ type: "text", text: "hm" }] as const;
  const journal = () => {
    const made = new Journal().created("task", { budget: { soft: { turns: 1 }, hard: { turns: 2 } } });
    made.turn = 1;
    made.requested().responded([...answer]);
    return made;
  };

  it("knows what was told, and the turn that is the last", () => {
    const made = journal();
    made.write("model.corrected", { reason: "empty", text: "again" });
    made.write("budget.reached", { level: "soft", limit: "turns", used: 1, of: 1 });
    expect(fold(made.events).budget).toMatchObject({ told: ["turns"], over: undefined, wrapTurn: undefined });
    made.write("budget.reached", { level: "hard", limit: "tokens", used: 9, of: 9, text: "answer now" });
    const state = fold(made.events);
    expect(state.budget).toMatchObject({ told: ["turns"], over: "tokens", wrapTurn: 2 });
    expect(budgetLevel(state.budget)).toBe(2);
    expect(state.view.at(-1)).toEqual({ role: "user", content: [{ type: "text", text: "answer now" }] });
    expect(state.phase.kind).toBe("boundary");
    expect(state.ownBudget).toEqual({ soft: { turns: 1 }, hard: { turns: 2 } });
  });

  it("begins anew in a fork", () => {
    const made = journal();
    made.write("model.corrected", { reason: "empty", text: "again" });
    made.write("budget.reached", { level: "soft", limit: "turns", used: 1, of: 1 });
    made.created("task", { origin: "fork", base: { run_id: "r", seq: 5, position: 5 } });
    expect(fold(made.events)).toMatchObject({ budget: noBudget, ownBudget: undefined });
  });

  it("is the same from a marker on, which carries what was told and taken", () => {
    const made = journal();
    made.write("model.corrected", { reason: "empty", text: "again" });
    made.write("budget.reached", { level: "soft", limit: "turns", used: 1, of: 1 });
    const spent = { tokens: 40, cost_usd_micros: 3 };
    const { length } = made.events;
    made.write("context.compacted", {
      task_id: "t",
      trigger: "auto",
      cut: { from_seq: 3, to_seq: length, first_kept_seq: length + 1, keep_first: true, kept_units: 0 },
      head: { version: 1, summary: "so far", facts: [], ledger: [], ledger_left_out: 0, obligations: [], tainted: false },
      before: { tokens: 9, scale: "estimate", bytes: 9 },
      after: { tokens: 3, scale: "estimate", bytes: 3 },
      summarizer: "built-in",
      calls: 1,
      rung: 0,
      facts_check: { marked: 0, found: 0, appended: 0, dropped: 0 },
      policy: {},
      source_digest: "d",
      view_digest: "d",
      algorithm: 1,
      carry: {
        turn: 1,
        native_output: false,
        corrections: { empty: 1, truncated: 0, output_invalid: 0 },
        model_failures: 0,
        applied_turns: [2],
        reported: [],
        pins: [],
        budget: { told: ["turns"], spent },
      },
      duration_ms: 1,
    });
    const marker = made.events.at(-1) as EventOf<"context.compacted">;
    made.write("budget.reached", { level: "soft", limit: "tokens", used: 40, of: 40 });
    const whole = fold(made.events);
    const resumed = resumeAtMarker({ created: made.events[0] as EventOf<"run.created">, marker, tail: made.events.slice(length), definitionSha: "sha256:1", usage: whole.usage });
    expect(whole.budget).toEqual({ told: ["turns", "tokens"], over: undefined, wrapTurn: undefined, spent: { tokens: 40, costUsdMicros: 3 } });
    expect(resumed.budget).toEqual(whole.budget);
    expect(resumed.ownBudget).toEqual(whole.ownBudget);
  });
});
