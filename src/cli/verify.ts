import type { Command } from "commander";
import { UnknownRunError } from "../client/errors.ts";
import { CapstanError } from "../domain/error.ts";
import type { CanonicalCall } from "../domain/call.ts";
import type { WireEvidence } from "../engine/model-port.ts";
import { verifyRun, type VerifyReport } from "../engine/verify.ts";
import { PostgresDefinitionStore } from "../store/definitions.ts";
import { JournalReader } from "../store/journal-reader.ts";
import { allRunIds, countRuns } from "../store/run-list.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase, type Database } from "./database.ts";
import { exitCodes, usageError } from "./exit.ts";
import { parseRunId } from "./format.ts";
import { printable } from "./output.ts";
import { startProgress } from "./progress.ts";

export function addVerify(program: Command): void {
  addCommand(program, "verify", {
    summary: "rebuild every model request from the journal and compare",
    description:
      "Rebuilds every model request of runs from their journal rows and compares it with the hash that was recorded before the call; checks that no seq is missing, no step is recorded twice and every tool call has its one answer. Exit 4 when something differs. With --json one run per line.",
    examples: ["verify 0190…", "verify --all", "verify --all --json | jq 'select(.ok | not)'"],
  })
    .argument("[run ids...]")
    .option("--all", "every run of the database")
    .action(
      action(async (out, given: string[], { all }: { all?: boolean }) => {
        if ((all === true) === given.length > 0) throw usageError("give run ids, or --all");
        const ids = given.map(parseRunId);
        return await withDatabase(out, async (database) => {
          const { pool, named, signal } = database;
          const check = await checkerFor(database);
          const total = all === true ? await countRuns(pool, named) : ids.length;
          const progress = await startProgress("verify", total);
          const sums = { runs: 0, requests: 0, markers: 0, wire_compared: 0, differing: 0 };
          try {
            for await (const id of all === true ? allRunIds(pool, named) : ids) {
              if (signal.aborted) break;
              const report = await check(id);
              sums.runs++;
              sums.requests += report.requests;
              sums.markers += report.markers;
              sums.wire_compared += report.wireCompared;
              if (!report.ok) sums.differing++;
              progress.update(sums.runs);
              if (out.isJson)
                await out.value({
                  run_id: report.runId,
                  ok: report.ok,
                  events: report.events,
                  requests: report.requests,
                  markers: report.markers,
                  wire_compared: report.wireCompared,
                  problems: report.problems,
                });
              else if (!report.ok)
                for (const line of [out.colors.red(`${report.runId} differs`), ...report.problems.map((problem) => `  ${printable(problem)}`)]) await out.line(line);
            }
          } finally {
            progress.stop();
          }
          const wire = sums.wire_compared === 0 ? "" : `, ${sums.wire_compared} of them down to the bytes on the wire`;
          const text = `${sums.runs} runs, ${sums.requests} requests rebuilt${sums.markers === 0 ? "" : `, ${sums.markers} compactions recomputed`}${wire}: ${sums.differing === 0 ? "all as recorded" : `${sums.differing} differ`}`;
          if (out.isJson) out.note(text);
          else await out.line(text);
          return sums.differing === 0 ? exitCodes.ok : exitCodes.verifyDiffers;
        });
      }),
    );
}

/** A journal that cannot be read at all (a damaged row, an event of a newer version) is a difference, not the end of the check. */
async function checkerFor({ pool, named }: Database): Promise<(runId: string) => Promise<VerifyReport>> {
  const reader = new JournalReader(pool, named);
  const definitions = new PostgresDefinitionStore(pool, named);
  const wire = await wireOf();
  return async (runId) => {
    const row = await reader.row(runId);
    if (row === undefined) throw new UnknownRunError(`no run ${runId}`);
    try {
      return await verifyRun({ runId, rows: reader.walk(runId, { below: row.nextSeq }), definition: (sha) => definitions.get(sha), wire: (call) => wire(call, row.tenant) });
    } catch (error) {
      if (!(error instanceof CapstanError)) throw error;
      return { runId, ok: false, events: row.nextSeq - 1 - row.seqOffset, requests: 0, wireCompared: 0, markers: 0, problems: [`${error.code}: ${error.message}`] };
    }
  };
}

/** What this environment's clients would send. A model that is not configured here cannot be compared down to the wire; its hash still is. */
async function wireOf(): Promise<(call: CanonicalCall, tenant: string) => Promise<WireEvidence | undefined>> {
  const { createModelCatalogue } = await import("../providers/catalogue.ts");
  const catalogue = createModelCatalogue({ env: process.env });
  return async (call, tenant) => {
    try {
      return await catalogue.resolve(call.model, tenant).wireSha256?.(call);
    } catch (error) {
      if (error instanceof CapstanError) return undefined;
      throw error;
    }
  };
}
