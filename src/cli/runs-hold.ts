import type { Command } from "commander";
import { RetentionClient } from "../client/retention.ts";
import { actorName } from "./actor.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes } from "./exit.ts";
import { parseRunId } from "./format.ts";

export function addRunsHold(runs: Command): void {
  addCommand(runs, "hold", {
    summary: "keep a run from being deleted",
    description: "Keeps a run, and the runs that it begins with, from being deleted by gc and erase until it is released.",
    examples: ['runs hold 0190… --reason "inquiry 17"'],
  })
    .argument("<run id>")
    .option("--reason <text>", "kept in the audit log")
    .action(
      action(async (out, given: string, { reason }: { reason?: string }) => {
        const runId = parseRunId(given);
        return await withDatabase(out, async ({ pool, named }) => {
          const changed = await new RetentionClient(pool, named).hold(runId, { actor: actorName(), ...(reason === undefined ? {} : { reason }) });
          if (out.isJson) await out.value({ run_id: runId, hold: true, changed });
          else await out.line(`${runId}  ${changed ? "held" : "was held already"}`);
          return exitCodes.ok;
        });
      }),
    );

  addCommand(runs, "release", {
    summary: "let a run that was held be deleted",
    examples: ["runs release 0190…"],
  })
    .argument("<run id>")
    .action(
      action(async (out, given: string) => {
        const runId = parseRunId(given);
        return await withDatabase(out, async ({ pool, named }) => {
          const changed = await new RetentionClient(pool, named).release(runId, { actor: actorName() });
          if (out.isJson) await out.value({ run_id: runId, hold: false, changed });
          else await out.line(`${runId}  ${changed ? "released" : "was not held"}`);
          return exitCodes.ok;
        });
      }),
    );
}
