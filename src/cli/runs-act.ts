import type { Command } from "commander";
import { CapstanError } from "../domain/error.ts";
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

  addCommand(runs, "cancel", {
    summary: "end runs and their descendants at once",
    description: "Ends runs and their descendants at once, whatever they do. A run that had ended already stays as it is.",
    examples: ["runs cancel 0190…", 'runs cancel 0190… 0191… --reason "wrong input"', "runs list --state open --json | jq -r '.runs[].id' | xargs capstan runs cancel"],
  })
    .argument("<run ids...>")
    .option("--reason <text>", "recorded in the journal")
    .action(
      action(async (out, given: string[], { reason }: { reason?: string }) => {
        const runIds = given.map(parseRunId);
        return await withDatabase(out, async (database) => {
          const results: CancelResult[] = [];
          for (const runId of runIds) results.push(await cancel(() => runHandle(database, runId).cancel(reason, { actor: "cli" }), runId));
          if (out.isJson) await out.value({ runs: results });
          for (const { run_id, outcome, error } of results) {
            if (error !== undefined) out.note(`${error.code}: ${error.message}`);
            else if (!out.isJson) await out.line(`${run_id}  ${outcome}`);
          }
          return results.some(({ error }) => error !== undefined) ? exitCodes.failed : exitCodes.ok;
        });
      }),
    );
}

interface CancelResult {
  readonly run_id: string;
  readonly outcome: "cancelled" | "had ended already" | "refused";
  readonly error?: { readonly code: string; readonly message: string };
}

/** One id that is wrong must not keep the others alive. */
async function cancel(end: () => Promise<boolean>, runId: string): Promise<CancelResult> {
  try {
    return { run_id: runId, outcome: (await end()) ? "cancelled" : "had ended already" };
  } catch (error) {
    if (!(error instanceof CapstanError)) throw error;
    return { run_id: runId, outcome: "refused", error: { code: error.code, message: error.message } };
  }
}
