/** Whether everything held: each journal rebuilt and compared, each call answered once, each report where it should be. */
import { stat } from "node:fs/promises";
import { join } from "node:path";
import type pg from "pg";
import { verifyRun } from "../../engine/verify.ts";
import { PostgresDefinitionStore } from "../../store/definitions.ts";
import { JournalReader } from "../../store/journal-reader.ts";
import { DEFAULT_STATE_GROWTH_WARN_BYTES } from "../../domain/growth.ts";
import type { RunRow } from "./run-rows.ts";

export interface CheckOptions {
  readonly pool: pg.Pool;
  readonly named: (text: string) => string;
  readonly runs: readonly RunRow[];
  readonly reportsDir: string;
  /** Runs whose growth warning was heard. */
  readonly warned: ReadonlySet<string>;
  /** A real model may end without a report; the offline one does not. */
  readonly isOffline: boolean;
}

export interface CheckResult {
  /** Requests that were rebuilt from the journal and compared with what was recorded before they were sent. */
  readonly requests: number;
  /** Compactions whose digests were recomputed. */
  readonly markers: number;
  readonly problems: readonly string[];
}

export async function checkRuns({ pool, named, runs, reportsDir, warned, isOffline }: CheckOptions): Promise<CheckResult> {
  const reader = new JournalReader(pool, named);
  const definitions = new PostgresDefinitionStore(pool, named);
  const problems: string[] = [];
  let requests = 0;
  let markers = 0;
  for (const run of runs) {
    const found = (what: string): number => problems.push(`run ${run.id}: ${what}`);
    const report = await verifyRun({ runId: run.id, rows: reader.walk(run.id), definition: (sha) => definitions.get(sha) });
    requests += report.requests;
    markers += report.markers;
    for (const problem of report.problems) found(problem);
    if (report.events !== run.events) found(`its row counts ${run.events} events, its journal has ${report.events}`);
    for (const problem of await answeredOnce(reader, run.id)) found(problem);
    if (run.state !== "completed") found(`it ended ${run.state}${run.errorCode === null ? "" : ` with ${run.errorCode}`}`);
    else if (isOffline && !(await hasReport(reportsDir, run.id))) found("its report file is missing");
    const isAbove = run.transcriptBytes > DEFAULT_STATE_GROWTH_WARN_BYTES;
    if (isAbove !== warned.has(run.id))
      found(isAbove ? "its transcript is above the limit of the growth warning, and no warning came" : "a growth warning came although its transcript is small");
  }
  return { requests, markers, problems };
}

/** Every call that a response made has exactly one end in the journal; no call has an end without having been made. */
async function answeredOnce(reader: JournalReader, runId: string): Promise<string[]> {
  const ends = new Map<string, number>();
  const made = new Set<string>();
  for await (const { event } of reader.walk(runId)) {
    if (event.type === "model.responded") {
      event.payload.content.filter((part) => part.type === "tool_call").forEach((_, index) => made.add(`${event.turn}.${index}`));
    }
    if (event.type === "tool.completed" || event.type === "tool.failed" || event.type === "tool.interrupted") {
      const call = `${event.turn}.${event.payload.index}`;
      ends.set(call, (ends.get(call) ?? 0) + 1);
    }
  }
  return [
    ...[...made].filter((call) => !ends.has(call)).map((call) => `call ${call} was never answered`),
    ...[...ends].filter(([call, count]) => count !== 1 || !made.has(call)).map(([call, count]) => `call ${call} was answered ${count} times`),
  ];
}

async function hasReport(reportsDir: string, runId: string): Promise<boolean> {
  return await stat(join(reportsDir, `${runId}.md`)).then(
    (facts) => facts.size > 0,
    () => false,
  );
}
