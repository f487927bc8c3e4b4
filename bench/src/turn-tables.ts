import { engines, type EngineName } from "./engines/index.ts";
import type { Goal } from "./goals.ts";
import { table } from "./markdown.ts";
import { quantile, show, showRange } from "./statistics.ts";
import { modelDelayMs } from "./workload.ts";
import type { Results } from "./turn-results.ts";

export function throughputTable(results: Results, names: readonly EngineName[], concurrency: number): string {
  const key = `c=${concurrency}`;
  const head = [
    `${concurrency} concurrent run${concurrency === 1 ? "" : "s"}`,
    "turns/s",
    "writing commits a turn",
    "all commits a turn",
    "fsyncs a turn",
    "statements a turn",
    "WAL B a turn",
    "client CPU ms a turn",
    "server CPU ms a turn",
  ];
  return table(
    head,
    names.map((name) => {
      const of = (pick: Parameters<Results["values"]>[2]): string => show(results.median(key, name, pick));
      return [
        engines[name].title,
        showRange(results.values(key, name, (r) => r.turnsPerSecond)),
        of((r) => r.writingCommits),
        of((r) => r.commits),
        of((r) => r.fsyncs),
        of((r) => r.statements),
        of((r) => r.walBytes),
        of((r) => r.cpuMs),
        of((r) => r.serverCpuMs),
      ];
    }),
  );
}

export interface SlowSetting {
  readonly runs: number;
  readonly turns: number;
  readonly modelMs: number;
}

export function slowTable(results: Results, names: readonly EngineName[], setting: SlowSetting): string {
  const ceiling = slowCeiling(setting);
  return table(
    [
      `model ${setting.modelMs} ms, ${setting.runs.toLocaleString("en-US")} runs at once`,
      "turns/s",
      `of ${show(ceiling)} (an engine of zero cost)`,
      "writing commits a turn",
      "WAL B a turn",
      "client CPU ms a turn",
      "client RSS MB",
    ],
    names.map((name) => {
      const rate = results.median("slow model", name, (r) => r.turnsPerSecond);
      return [
        engines[name].title,
        showRange(results.values("slow model", name, (r) => r.turnsPerSecond)),
        `${show((rate / ceiling) * 100)} %`,
        show(results.median("slow model", name, (r) => r.writingCommits)),
        show(results.median("slow model", name, (r) => r.walBytes)),
        show(results.median("slow model", name, (r) => r.cpuMs)),
        show(results.median("slow model", name, (r) => r.rssMb)),
      ];
    }),
  );
}

/** Turns a second if only the model took time: far under runs/mean, since the last runs trail. Warm-up runs come first in the numbering. */
function slowCeiling({ runs, turns, modelMs }: SlowSetting): number {
  const warmUp = 10;
  let first = Number.POSITIVE_INFINITY;
  let last = 0;
  for (let run = warmUp; run < warmUp + runs; run++) {
    let at = 0;
    for (let turn = 0; turn < turns; turn++) {
      at += modelDelayMs(run, turn, modelMs);
      if (turn === 0) first = Math.min(first, at);
    }
    last = Math.max(last, at);
  }
  return ((runs * turns - 1) / (last - first)) * 1_000;
}

export function latencyTable(results: Results, names: readonly EngineName[]): string {
  const cell = (values: readonly number[] | undefined): string => (values === undefined ? "–" : `${show(quantile(values, 0.5))} / ${show(quantile(values, 0.99))}`);
  return table(
    ["idle, p50 / p99 ms", "samples", "enqueue to first event committed", "enqueue to first turn committed", "turn to turn"],
    names.map((name) => {
      const latency = results.latency(name);
      return [engines[name].title, String(latency?.firstTurnMs.length ?? 0), cell(latency?.firstEventMs), cell(latency?.firstTurnMs), cell(latency?.turnToTurnMs)];
    }),
  );
}

export function goalTable(goals: readonly Goal[]): string {
  return table(
    ["goal", "asked", "measured", ""],
    goals.map(({ name, asked, measured, passed }) => [name, asked, measured, passed === undefined ? "not measured" : passed ? "pass" : "**fail**"]),
  );
}
