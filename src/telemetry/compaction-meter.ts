/** Counts of this process: compactions by trigger and outcome, what they saved and cost. Metrics will read the same counters. */
import type { CompactionReport, Log } from "../engine/ports.ts";
import { compaction } from "./names.ts";

export interface CompactionTotals {
  readonly trigger: string;
  readonly outcome: string;
  count: number;
  tokensSaved: number;
  calls: number;
  costUsdMicros: number;
}

export class CompactionMeter {
  readonly #log: Log;
  readonly #totals = new Map<string, CompactionTotals>();

  constructor(log: Log) {
    this.#log = log;
  }

  /** A property, not a method: it is handed on as a function. */
  readonly record = ({ runId, agent, tenant, trigger, outcome, tokensSaved = 0, calls = 0, costUsdMicros = 0 }: CompactionReport): void => {
    const key = `${trigger} ${outcome}`;
    const totals = this.#totals.get(key) ?? { trigger, outcome, count: 0, tokensSaved: 0, calls: 0, costUsdMicros: 0 };
    totals.count++;
    totals.tokensSaved += tokensSaved;
    totals.calls += calls;
    totals.costUsdMicros += costUsdMicros;
    this.#totals.set(key, totals);
    this.#log.debug({ runId, agent, tenant, [compaction.trigger]: trigger, [compaction.outcome]: outcome, tokensSaved, calls }, "compaction counted");
  };

  totals(): CompactionTotals[] {
    return [...this.#totals.values()].map((totals) => ({ ...totals }));
  }
}
