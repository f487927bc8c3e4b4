import type { CellResult, LatencyResult, ThroughputResult } from "./cell.ts";
import type { ChildOutcome } from "./child.ts";
import type { EngineName } from "./engines/index.ts";
import { median, quantile, show } from "./statistics.ts";

/** All cells of one invocation, by row ("c=10", "slow model", "latency") and engine. */
export class Results {
  readonly failures: string[] = [];
  readonly #throughput = new Map<string, ThroughputResult[]>();
  readonly #latency = new Map<EngineName, LatencyResult>();

  /** Gives one line for the progress output. */
  add(key: string, engine: EngineName, outcome: ChildOutcome<CellResult>): string {
    if (!outcome.ok) {
      this.failures.push(`${key} ${engine}: ${outcome.error}`);
      return `FAILED ${outcome.error.split("\n")[0]}`;
    }
    const result = outcome.value;
    if (result.throughput !== undefined) {
      const id = `${key} ${engine}`;
      this.#throughput.set(id, [...(this.#throughput.get(id) ?? []), result.throughput]);
      const t = result.throughput;
      return `${show(t.turnsPerSecond)} turns/s, ${show(t.writingCommits)} writing commits, ${show(t.fsyncs)} fsyncs, ${show(t.walBytes)} B of WAL a turn`;
    }
    if (result.latency !== undefined) {
      this.#latency.set(engine, result.latency);
      return `first event p50 ${show(quantile(result.latency.firstEventMs, 0.5))} ms, turn to turn p50 ${show(quantile(result.latency.turnToTurnMs, 0.5))} ms`;
    }
    return "nothing";
  }

  values(key: string, engine: EngineName, pick: (result: ThroughputResult) => number | undefined): number[] {
    return (this.#throughput.get(`${key} ${engine}`) ?? []).flatMap((result) => pick(result) ?? []);
  }

  /** NaN when there is no such cell. */
  median(key: string, engine: EngineName, pick: (result: ThroughputResult) => number | undefined): number {
    return median(this.values(key, engine, pick));
  }

  latency(engine: EngineName): LatencyResult | undefined {
    return this.#latency.get(engine);
  }
}
