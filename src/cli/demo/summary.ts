/** What the demo says at its end: a table for people, one JSON document for programs. */
import { join } from "node:path";
import type { Colors } from "../output.ts";
import { bytes } from "../format.ts";
import { invocation } from "../invocation.ts";
import { tableLines } from "../table.ts";
import type { CrashReport } from "./crash.ts";

export interface DemoRun {
  readonly run_id: string;
  readonly tenant: string;
  readonly folder: string;
  readonly state: string;
  readonly turns: number;
  readonly events: number;
  readonly journal_bytes: number;
  readonly transcript_bytes: number;
  readonly compactions: number;
  readonly growth_warning: boolean;
  readonly taken_over: boolean;
  readonly takeover_ms?: number;
  readonly report: string;
}

export interface DemoSummary {
  readonly ok: boolean;
  readonly problems: readonly string[];
  readonly dir: string;
  readonly model: string;
  readonly duration_ms: number;
  readonly runs: readonly DemoRun[];
  readonly totals: { readonly turns: number; readonly events: number; readonly journal_bytes: number; readonly requests_verified: number; readonly compactions_verified: number };
  readonly killed?: { readonly worker: string; readonly worker_id: string; readonly pid: number; readonly runs_held: number };
  /** From the kill to the first event that another worker appended: of the first run and of the last. */
  readonly takeover?: { readonly first_ms: number; readonly last_ms: number };
}

export function killedOf({ worker, workerId, pid, runsHeld }: CrashReport): NonNullable<DemoSummary["killed"]> {
  return { worker, worker_id: workerId, pid, runs_held: runsHeld };
}

export function summaryLines(summary: DemoSummary, colors: Colors, reportsDir: string): string[] {
  const { runs, totals, killed, takeover, problems } = summary;
  const table = tableLines<DemoRun>(
    [
      { title: "run", value: (run) => run.run_id },
      { title: "tenant", value: (run) => run.tenant },
      { title: "folder", value: (run) => run.folder },
      { title: "state", value: (run) => run.state },
      { title: "turns", align: "right", value: (run) => String(run.turns) },
      { title: "events", align: "right", value: (run) => String(run.events) },
      { title: "journal", align: "right", value: (run) => bytes(run.journal_bytes) },
      { title: "transcript", align: "right", value: (run) => bytes(run.transcript_bytes) },
      { title: "compacted", value: (run) => (run.compactions === 0 ? "-" : `${run.compactions}x`) },
      { title: "growth warning", value: (run) => (run.growth_warning ? "shown" : "-") },
      { title: "taken over", value: (run) => (run.takeover_ms === undefined ? "-" : `after ${seconds(run.takeover_ms)}`) },
    ],
    runs,
    colors.bold,
  );
  // The run to look closer at: one that outlived its worker, if there is one.
  const shown = runs.find((run) => run.taken_over) ?? runs[0];
  return [
    "",
    ...table,
    "",
    `${runs.length} runs, ${totals.turns} turns, ${totals.events} events, ${bytes(totals.journal_bytes)} of journal, in ${seconds(summary.duration_ms)} with ${summary.model}`,
    ...(killed === undefined
      ? ["no worker was killed"]
      : [
          `worker ${killed.worker} (process ${killed.pid}) was killed with SIGKILL while it held ${killed.runs_held} run${killed.runs_held === 1 ? "" : "s"}${takeover === undefined ? "" : `; takeover ${seconds(takeover.last_ms)}`}`,
        ]),
    `${totals.requests_verified} requests rebuilt from the journals and compared with what was sent${problems.length === 0 ? colors.green(": all the same; no event lost, no call answered twice") : ""}`,
    ...runs.filter((run) => run.growth_warning).map((run) => `growth warning: run ${run.run_id} has no compaction, and every turn sends its ${bytes(run.transcript_bytes)} again`),
    ...runs
      .filter((run) => run.compactions > 0)
      .map(
        (run) =>
          `compacted: run ${run.run_id} had ${run.compactions} summaries put in while its turns went on; all ${bytes(run.journal_bytes)} of its journal are kept, and its turns send ${bytes(run.transcript_bytes)}`,
      ),
    `reports: ${join(reportsDir, "<run>.md")}`,
    ...(problems.length === 0 ? [] : ["", colors.red(`what did not hold (${problems.length}):`), ...problems.map((problem) => `  - ${problem}`)]),
    "",
    colors.bold("what to try next"),
    `  ${invocation} up`.padEnd(46) + "the stack in the foreground, on the same data",
    `  ${invocation} runs list`,
    ...(shown === undefined ? [] : [`  ${invocation} runs show ${shown.run_id}`, `  ${invocation} runs transcript ${shown.run_id}`, `  ${invocation} verify ${shown.run_id}`]),
  ];
}

export function seconds(ms: number): string {
  return `${(ms / 1_000).toFixed(1)} s`;
}
