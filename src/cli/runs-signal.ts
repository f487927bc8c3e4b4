import type { Command } from "commander";
import { WaitClient } from "../client/waits.ts";
import { actorName } from "./actor.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes, usageError } from "./exit.ts";
import { parseRunId } from "./format.ts";
import { readInput, type InputForm } from "./input.ts";
import { runHandle } from "./run-client.ts";

export function addRunsSignal(runs: Command): void {
  addCommand(runs, "signal", {
    summary: "send a run the signal that it waits for",
    description: "Sends a run a signal. A call of it that waits for that name takes it; one that nobody waits for is kept until somebody does. Prints the signal's id.",
    examples: ["runs signal 0190… paid", `runs signal 0190… paid '{"amount": 5}' --dedupe-key invoice-17`],
  })
    .argument("<run id>")
    .argument("<name>", "the signal's name")
    .argument("[payload]", "text, JSON, - or @file (default: null)")
    .option("--text", "the payload is text, even if it looks like JSON")
    .option("--as-json", "the payload is JSON; anything else is refused")
    .option("--dedupe-key <key>", "sent again with the same key it is the same signal")
    .action(
      action(async (out, given: string, name: string, content: string | undefined, { dedupeKey, ...form }: InputForm & { dedupeKey?: string }) => {
        const runId = parseRunId(given);
        const payload = await readInput(content, form);
        return await withDatabase(out, async (database) => {
          const id = await runHandle(database, runId).signal(name, payload, { actor: actorName(), ...(dedupeKey === undefined ? {} : { dedupeKey }) });
          if (out.isJson) await out.value({ run_id: runId, signal_id: id });
          else await out.line(id);
          return exitCodes.ok;
        });
      }),
    );

  addCommand(runs, "complete", {
    summary: "give the result of a call that is completed from outside",
    description: "Gives the result of a call whose tool handed it over (later()), by the token that the tool was given. May come before the tool has returned.",
    examples: [`runs complete 0190….0f3c… '{"shipped": true}'`, 'runs complete 0190….0f3c… --fail "out of stock"'],
  })
    .argument("<token>", "what the tool's context had as completionToken")
    .argument("[result]", "text, JSON, - or @file (default: null)")
    .option("--text", "the result is text, even if it looks like JSON")
    .option("--as-json", "the result is JSON; anything else is refused")
    .option("--fail <message>", "the call failed: the model reads the message")
    .action(
      action(async (out, token: string, content: string | undefined, { fail, ...form }: InputForm & { fail?: string }) => {
        if (fail !== undefined && content !== undefined) throw usageError("a call has a result or --fail, not both");
        const result = await readInput(content, form);
        return await withDatabase(out, async ({ pool, named }) => {
          const waits = new WaitClient(pool, named);
          if (fail === undefined) await waits.complete(token, result, { actor: actorName() });
          else await waits.fail(token, fail, { actor: actorName() });
          const outcome = fail === undefined ? "completed" : "failed";
          if (out.isJson) await out.value({ token, outcome });
          else await out.line(outcome);
          return exitCodes.ok;
        });
      }),
    );
}
