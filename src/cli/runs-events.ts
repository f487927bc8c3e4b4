import type { Command } from "commander";
import { Buffer } from "node:buffer";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { eventText } from "./event-text.ts";
import { exitCodes } from "./exit.ts";
import { followRun, inTone } from "./follow.ts";
import { bytes, parseCount, parseRunId } from "./format.ts";
import { runHandle } from "./run-client.ts";

const AFTER = parseCount("--after", { min: 0, max: 2_147_483_647 });

export function addRunsEvents(runs: Command): void {
  addCommand(runs, "follow", {
    summary: "show a run live until its end",
    description:
      "Shows a run live until its end: turns, tools, gauge, waits, and on a terminal answers while they come. Exit 5 when the run fails. With --json one event per line; live text has the type `delta`.",
    examples: ["runs follow 0190…", "runs follow 0190… --after 120", "runs follow 0190… --json | jq .type", "runs follow 0190… --deltas | tee answer.txt"],
  })
    .argument("<run id>")
    .option("--after <seq>", "only events after this one", AFTER, 0)
    .option("--deltas", "show answers while they come, also when this is no terminal")
    .action(
      action(async (out, given: string, { after, deltas }: { after: number; deltas?: true }) => {
        const runId = parseRunId(given);
        return await withDatabase(out, (database) => followRun(out, database, runId, { after, deltas }));
      }),
    );

  addCommand(runs, "events", {
    summary: "list a run's events as they are stored",
    description: "Lists a run's events as they are stored, in order. With --json one event per line, payload included.",
    examples: ["runs events 0190…", "runs events 0190… --after 40 --json | jq 'select(.type == \"tool.failed\")'"],
  })
    .argument("<run id>")
    .option("--after <seq>", "only events after this one", AFTER, 0)
    .action(
      action(async (out, given: string, { after }: { after: number }) => {
        const runId = parseRunId(given);
        return await withDatabase(out, async (database) => {
          const { signal } = database;
          for await (const event of runHandle(database, runId).events({ after, follow: false, signal })) {
            if (out.isJson) {
              await out.value(event);
              continue;
            }
            const { tone, text } = eventText(event);
            const size = bytes(Buffer.byteLength(JSON.stringify(event.payload)));
            await out.line(`${String(event.seq).padStart(5)}  ${event.at.slice(0, 23)}  ${event.type.padEnd(16)}  ${size.padStart(9)}  ${inTone(out.colors, tone, text)}`);
          }
          return exitCodes.ok;
        });
      }),
    );
}
