/**
 * What a run may take: turns, tokens, cost, wall time. A soft limit is told once; a hard one ends the run before the next
 * model call. Counted from the journal alone: the run's own calls, summaries of its view, and what the children of answered
 * calls took with all that they started. A child gets its share of what is left at its start (engine/spawn.ts), so that the
 * whole tree stays within the hard limits of its root.
 */
import { z } from "zod";
import { wholeNumber } from "./ranges.ts";
import type { UsageTotals } from "./usage.ts";

export const budgetKinds = ["turns", "tokens", "cost_usd_micros", "wall_ms"] as const;
export type BudgetKind = (typeof budgetKinds)[number];

const budgetLimits = z.strictObject({
  /** The run's own turns. */
  turns: wholeNumber(1, 1_000_000).optional(),
  /** Input and output, cached input included. */
  tokens: wholeNumber(1).optional(),
  cost_usd_micros: wholeNumber(1).optional(),
  /** From the run's start (its `run_at`, where it has one), waiting included. */
  wall_ms: wholeNumber(1).optional(),
});

export const budgetSchema = z.strictObject({
  soft: budgetLimits.optional(),
  hard: budgetLimits.optional(),
  /** At a hard limit the model is told so and gets one more turn, without tools, to answer with what it has. */
  wrap_up: z.boolean().optional(),
});
export type Budget = z.infer<typeof budgetSchema>;
type Limits = NonNullable<Budget["soft"]>;

export interface BudgetProblem {
  readonly path: string;
  readonly message: string;
}

/** What is wrong between the limits of one budget. Ranges are the schema's. */
export function budgetIssues({ soft = {}, hard = {} }: Budget = {}): BudgetProblem[] {
  return budgetKinds.flatMap((kind) => {
    const [told, most] = [soft[kind], hard[kind]];
    if (told === undefined || most === undefined || told < most) return [];
    return [{ path: `soft.${kind}`, message: `must be below budget.hard.${kind}, which is ${most}, not ${told}` }];
  });
}

/** A run's own budget over its definition's: of two hard limits the smaller one holds, everything else is the run's to say. */
export function mergeBudget(base: Budget | undefined, own: Budget | undefined): Budget | undefined {
  const soft = limitsOf((kind) => own?.soft?.[kind] ?? base?.soft?.[kind]);
  const hard = limitsOf((kind) => least(base?.hard?.[kind], own?.hard?.[kind]));
  const wrapUp = own?.wrap_up ?? base?.wrap_up;
  const merged: Budget = { ...(soft === undefined ? {} : { soft }), ...(hard === undefined ? {} : { hard }), ...(wrapUp === undefined ? {} : { wrap_up: wrapUp }) };
  return Object.keys(merged).length === 0 ? undefined : merged;
}

function limitsOf(limit: (kind: BudgetKind) => number | undefined): Limits | undefined {
  const set = budgetKinds.flatMap((kind): [BudgetKind, number][] => {
    const value = limit(kind);
    return value === undefined ? [] : [[kind, value]];
  });
  return set.length === 0 ? undefined : Object.fromEntries(set);
}

const least = (a: number | undefined, b: number | undefined): number | undefined => (a === undefined ? b : b === undefined ? a : Math.min(a, b));

/** What a run's events say of its budget. */
export interface BudgetState {
  /** Soft limits that were told. */
  readonly told: readonly BudgetKind[];
  /** The hard limit that was reached. */
  readonly over: BudgetKind | undefined;
  /** The turn in which the model may still answer. */
  readonly wrapTurn: number | undefined;
  /** What stands in no usage of the run's own: children's, and summaries of its view. */
  readonly spent: Spent;
}

export interface Spent {
  readonly tokens: number;
  readonly costUsdMicros: number;
}

export const noBudget: BudgetState = { told: [], over: undefined, wrapTurn: undefined, spent: { tokens: 0, costUsdMicros: 0 } };

/** 0 within it, 1 when a soft limit was told, 2 when a hard one was reached. */
export function budgetLevel({ told, over }: BudgetState): number {
  return over !== undefined ? 2 : told.length > 0 ? 1 : 0;
}

export function addSpent(spent: Spent, more: Spent): Spent {
  return { tokens: spent.tokens + more.tokens, costUsdMicros: spent.costUsdMicros + more.costUsdMicros };
}

export type Taken = { readonly [K in BudgetKind]: number };

/** What a run has taken so far. `ownTurns`: those that it has begun. */
export function takenBy(usage: UsageTotals, { spent }: BudgetState, { ownTurns, wallMs }: { readonly ownTurns: number; readonly wallMs: number }): Taken {
  return {
    turns: ownTurns,
    tokens: Math.round(usage.inputTokens + usage.outputTokens + spent.tokens),
    cost_usd_micros: Math.round(usage.costUsdMicros + spent.costUsdMicros),
    wall_ms: Math.max(0, Math.round(wallMs)),
  };
}

export interface Reached {
  readonly limit: BudgetKind;
  readonly used: number;
  readonly of: number;
  /** What the next call may take, where it is that which would pass the limit. */
  readonly next?: number;
}

/** Soft limits that are reached and were not told. */
export function softReached(budget: Budget, taken: Taken, { told }: BudgetState): Reached[] {
  return budgetKinds.flatMap((limit) => {
    const of = budget.soft?.[limit];
    return of === undefined || taken[limit] < of || told.includes(limit) ? [] : [{ limit, used: taken[limit], of }];
  });
}

/** The first hard limit that is reached, or that a call of this size would pass. */
export function hardReached(budget: Budget, taken: Taken, next: Partial<Taken> = {}): Reached | undefined {
  for (const limit of budgetKinds) {
    const of = budget.hard?.[limit];
    if (of === undefined) continue;
    const more = next[limit] ?? 0;
    if (taken[limit] >= of) return { limit, used: taken[limit], of };
    if (taken[limit] + more > of) return { limit, used: taken[limit], of, next: more };
  }
  return undefined;
}

/**
 * What each of so many `children` gets of what is left: equal parts of tokens and cost, all of the time that is left; undefined when
 * there is nothing to hand down. A limit of which no whole unit is left for each is named in `exhausted`.
 */
export function shareOf(budget: Budget, taken: Taken, children: number): { readonly hard: Limits | undefined; readonly exhausted: BudgetKind | undefined } {
  const left = (kind: BudgetKind): number | undefined => {
    const of = budget.hard?.[kind];
    return of === undefined ? undefined : of - taken[kind];
  };
  const part = (kind: BudgetKind, among: number): number | undefined => {
    const rest = left(kind);
    return rest === undefined ? undefined : Math.floor(rest / among);
  };
  const hard = limitsOf((kind) => (kind === "turns" ? undefined : part(kind, kind === "wall_ms" ? 1 : children)));
  const exhausted = budgetKinds.find((kind) => hard?.[kind] !== undefined && hard[kind] < 1);
  return { hard, exhausted };
}

const units: { readonly [K in BudgetKind]: string } = { turns: "turns", tokens: "tokens", cost_usd_micros: "micro-dollars", wall_ms: "milliseconds" };

/** For the run's error, and for people. */
export function reachedText({ limit, used, of, next }: Reached): string {
  const would = next === undefined ? "" : `, and the next call may take ${next} more`;
  return `the run has used ${used} of its ${of} ${units[limit]} (budget.hard.${limit})${would}`;
}

/** What the model reads in its last turn. */
export const WRAP_UP_TEXT =
  "The budget of this task is used up. This is your last turn, and no tools can be called any more. Answer now with what you have, and say what is missing.";
