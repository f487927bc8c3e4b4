/** Counts effects (model calls, tools) of this process and says each at debug level; metrics will read the same counter. */
import type { Effect, EffectReport, Log } from "../engine/ports.ts";

export interface EffectTotals {
  readonly kind: Effect["kind"];
  readonly name: string;
  readonly outcome: string;
  count: number;
  durationMs: number;
  inputTokens: number;
  outputTokens: number;
  costUsdMicros: number;
}

export class EffectMeter {
  readonly #log: Log;
  readonly #totals = new Map<string, EffectTotals>();

  constructor(log: Log) {
    this.#log = log;
  }

  /** A property, not a method: it is handed on as a function. */
  readonly record = (effect: Effect, report: EffectReport): void => {
    const { kind, name, runId, turn, attempt } = effect;
    const key = `${kind} ${name} ${report.outcome}`;
    const totals = this.#totals.get(key) ?? { kind, name, outcome: report.outcome, count: 0, durationMs: 0, inputTokens: 0, outputTokens: 0, costUsdMicros: 0 };
    totals.count++;
    totals.durationMs += report.durationMs;
    totals.inputTokens += report.inputTokens ?? 0;
    totals.outputTokens += report.outputTokens ?? 0;
    totals.costUsdMicros += report.costUsdMicros ?? 0;
    this.#totals.set(key, totals);
    this.#log.debug({ runId, turn, attempt, effect: kind, name, ...report, durationMs: Math.round(report.durationMs) }, "effect done");
  };

  totals(): EffectTotals[] {
    return [...this.#totals.values()].map((totals) => ({ ...totals }));
  }
}
