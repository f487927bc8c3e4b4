/** The goals for the cost of a turn (docs/performance.md). 1 KB is 1,000 bytes. */
import { engines, engineNames, type EngineName } from "./engines/index.ts";
import { quantile, show } from "./statistics.ts";
import type { Results } from "./turn-results.ts";
import type { ThroughputResult } from "./cell.ts";

export interface Goal {
  readonly name: string;
  readonly asked: string;
  readonly measured: string;
  /** undefined: its cells were not run. */
  readonly passed: boolean | undefined;
}

interface ModeGoals {
  readonly engine: EngineName;
  readonly number: 1 | 2;
  /** Turns a second over those of the best durable peer, by concurrent runs. */
  readonly ratio: Readonly<Record<number, number>>;
  readonly slowTurnsPerSecond: number;
  readonly atMost: readonly { readonly concurrency: number; readonly writingCommits: number; readonly fsyncs: number }[];
  readonly walBytes: number;
}

const modes: readonly ModeGoals[] = [
  {
    engine: "ours-one-job",
    number: 1,
    ratio: { 1: 0.8, 10: 1.3, 50: 2 },
    slowTurnsPerSecond: 1_000,
    atMost: [
      { concurrency: 1, writingCommits: 9, fsyncs: 6 },
      { concurrency: 50, writingCommits: 2, fsyncs: 1 },
    ],
    walBytes: 6_000,
  },
  {
    engine: "ours-sticky",
    number: 2,
    ratio: { 1: 1.3, 10: 2.5, 50: 3 },
    slowTurnsPerSecond: 1_500,
    atMost: [
      { concurrency: 10, writingCommits: 2.1, fsyncs: 1 },
      { concurrency: 50, writingCommits: 2.1, fsyncs: 1 },
    ],
    walBytes: 4_200,
  },
];
const TURN_TO_TURN_MS = 1.5;
const FIRST_EVENT_MS = { p50: 10, p99: 25, samples: 500 };

export function checkGoals(results: Results): Goal[] {
  return [...modes.flatMap((mode) => modeGoals(results, mode)), ...latencyGoals(results)];
}

function modeGoals(results: Results, mode: ModeGoals): Goal[] {
  const { engine, number } = mode;
  const title = `${number}, ${engines[engine].title}`;
  const at = (concurrency: number, pick: (r: ThroughputResult) => number): number => results.median(`c=${concurrency}`, engine, pick);
  const goals: Goal[] = [];
  for (const [concurrency, ratio] of Object.entries(mode.ratio)) {
    const best = bestDurable(results, Number(concurrency));
    const ours = at(Number(concurrency), (r) => r.turnsPerSecond);
    const measured = best === undefined || Number.isNaN(ours) ? Number.NaN : ours / best.rate;
    goals.push(goal(`${title}: turns/s over the best durable peer at ${concurrency}`, `≥ ${ratio}x`, measured, measured >= ratio, best === undefined ? "" : `x (${best.name})`));
  }
  const slow = results.median("slow model", engine, (r) => r.turnsPerSecond);
  goals.push(goal(`${title}: slow model, turns/s`, `≥ ${show(mode.slowTurnsPerSecond)}`, slow, slow >= mode.slowTurnsPerSecond));
  for (const { concurrency, writingCommits, fsyncs } of mode.atMost) {
    const commits = at(concurrency, (r) => r.writingCommits);
    const flushes = at(concurrency, (r) => r.fsyncs);
    goals.push(goal(`${title}: writing commits a turn at ${concurrency}`, `≤ ${writingCommits}`, commits, commits <= writingCommits));
    goals.push(goal(`${title}: fsyncs a turn at ${concurrency}`, `≤ ${fsyncs}`, flushes, flushes <= fsyncs));
  }
  for (const concurrency of Object.keys(mode.ratio).map(Number)) {
    const wal = at(concurrency, (r) => r.walBytes);
    goals.push(goal(`${title}: WAL bytes a turn at ${concurrency}`, `≤ ${show(mode.walBytes)}`, wal, wal <= mode.walBytes));
  }
  return goals;
}

function latencyGoals(results: Results): Goal[] {
  const sticky = quantile(results.latency("ours-sticky")?.turnToTurnMs ?? [], 0.5);
  const goals = [goal(`2, ${engines["ours-sticky"].title}: turn to turn p50 ms`, `< ${TURN_TO_TURN_MS}`, sticky, sticky < TURN_TO_TURN_MS)];
  for (const engine of ["ours-one-job", "ours-sticky"] as const) {
    const first = results.latency(engine)?.firstEventMs ?? [];
    const few = first.length >= FIRST_EVENT_MS.samples ? "" : ` (${first.length} samples; ${FIRST_EVENT_MS.samples} with --full)`;
    for (const [name, q] of [
      ["p50", 0.5],
      ["p99", 0.99],
    ] as const) {
      const ms = quantile(first, q);
      goals.push(goal(`4, ${engines[engine].title}: enqueue to first event, idle, ${name} ms`, `≤ ${FIRST_EVENT_MS[name]}`, ms, ms <= FIRST_EVENT_MS[name], few));
    }
  }
  return goals;
}

function goal(name: string, asked: string, value: number, passed: boolean, suffix = ""): Goal {
  return Number.isNaN(value) ? { name, asked, measured: "–", passed: undefined } : { name, asked, measured: `${show(value)}${suffix}`, passed };
}

function bestDurable(results: Results, concurrency: number): { name: string; rate: number } | undefined {
  const rates = engineNames
    .filter((name) => engines[name].kind === "durable")
    .map((name) => ({ name: engines[name].title, rate: results.median(`c=${concurrency}`, name, (r) => r.turnsPerSecond) }))
    .filter(({ rate }) => !Number.isNaN(rate));
  return rates.toSorted((a, b) => b.rate - a.rate)[0];
}
