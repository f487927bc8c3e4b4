import type { Command } from "commander";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes } from "./exit.ts";
import { parseRunId } from "./format.ts";
import { readInput, type InputForm } from "./input.ts";
import { runHandle } from "./run-client.ts";

export function addRunsAct(runs: Command): void {
  addCommand(runs, "input", {
    summary: "send input to an interactive run, or steer one at work",
    description: "Sends input to an interactive run, or steers one at work: applied at the next boundary, exactly once. The input is given as to enqueue.",
    examples: ['runs input 0190… "also look at the tests"', "runs input 0190… @more.json --dedupe-key mail-17"],
  })
    .argument("<run id>")
    .argument("<input>", "text, JSON, - or @file")
    .option("--text", "the input is text, even if it looks like JSON")
    .option("--as-json", "the input is JSON; anything else is refused")
    .option("--dedupe-key <key>", "sent again with the same key it is the same input")
    .action(
      action(async (out, given: string, content: string, flags: InputForm & { dedupeKey?: string }) => {
        const runId = parseRunId(given);
        const input = await readInput(content, flags);
        return await withDatabase(out, async (database) => {
          const inboxId = await runHandle(database, runId).send(input, { actor: "cli", ...(flags.dedupeKey === undefined ? {} : { dedupeKey: flags.dedupeKey }) });
          if (out.isJson) await out.value({ run_id: runId, inbox_id: inboxId });
          else await out.line(inboxId);
          return exitCodes.ok;
        });
      }),
    );
}
