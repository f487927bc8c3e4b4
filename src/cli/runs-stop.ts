import type { Command } from "commander";
import { actorName } from "./actor.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes } from "./exit.ts";
import { parseRunId } from "./format.ts";
import { runHandle } from "./run-client.ts";

export function addRunsStop(runs: Command): void {
  addCommand(runs, "stop", {
    summary: "stop an interactive run's turn and keep the run",
    description:
      "Stops the turn at hand of an interactive run: its model call and tools are aborted on whichever worker they run, and the run waits for input. runs pause lets a turn finish, runs cancel ends the run.",
    examples: ["runs stop 0190…", 'runs stop 0190… --reason "wrong folder"'],
  })
    .argument("<run id>")
    .option("--reason <text>", "recorded in the journal")
    .action(
      action(async (out, given: string, { reason }: { reason?: string }) => {
        const runId = parseRunId(given);
        return await withDatabase(out, async (database) => {
          await runHandle(database, runId).stop(reason, { actor: actorName() });
          if (out.isJson) await out.value({ run_id: runId, outcome: "told to stop" });
          else await out.line(`${runId}  told to stop`);
          return exitCodes.ok;
        });
      }),
    );

  addMark(runs, "pause", {
    summary: "let no worker begin another turn of a run",
    description: "Lets no worker begin another turn of a run until it is resumed, also over restarts. The turn at hand is finished.",
    isPaused: true,
  });
  addMark(runs, "resume", { summary: "let a paused run go on", isPaused: false });
}

function addMark(runs: Command, verb: "pause" | "resume", { isPaused, ...texts }: { readonly summary: string; readonly description?: string; readonly isPaused: boolean }): void {
  addCommand(runs, verb, { ...texts, examples: [`runs ${verb} 0190…`] })
    .argument("<run id>")
    .action(
      action(async (out, given: string) => {
        const runId = parseRunId(given);
        return await withDatabase(out, async (database) => {
          const changed = await runHandle(database, runId)[verb]({ actor: actorName() });
          if (out.isJson) await out.value({ run_id: runId, paused: isPaused, changed });
          else await out.line(`${runId}  ${changed ? `${verb}d` : `was ${isPaused ? "paused already" : "not paused"}`}`);
          return exitCodes.ok;
        });
      }),
    );
}
