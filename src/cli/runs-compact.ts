import type { Command } from "commander";
import { compactionText } from "./compaction-text.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes, usageError } from "./exit.ts";
import { parseCount, parseRunId } from "./format.ts";
import { runHandle } from "./run-client.ts";

export function addRunsCompact(runs: Command): void {
  addCommand(runs, "compact", {
    summary: "replace the older part of a run's context by a summary",
    description:
      "Asks for a compaction and waits for what comes of it. The summary is made by a worker of the pool summarize; the events that it stands for stay, and `runs transcript --expand` shows them. A run in the middle of a turn is refused (RUN_BUSY, exit 1) unless it may be done at the next boundary.",
    examples: ["runs compact 0190…", "runs compact 0190… --when boundary", "runs compact 0190… --when boundary --wait 60 --json"],
  })
    .argument("<run id>")
    .option("--when <when>", "now, or boundary: when the turn at work has ended", "now")
    .option("--wait <seconds>", "wait for the outcome so long (default: 30; with --when boundary 0)", parseCount("--wait", { min: 0, max: 3_600 }))
    .action(
      action(async (out, given: string, { when, wait }: { when: string; wait?: number }) => {
        const runId = parseRunId(given);
        if (when !== "now" && when !== "boundary") throw usageError(`--when is now or boundary, not ${JSON.stringify(when)}`);
        return await withDatabase(out, async (database) => {
          const view = await runHandle(database, runId).compact({ when, actor: "cli", ...(wait === undefined ? {} : { timeoutMs: wait * 1_000 }) });
          if (out.isJson) await out.value(view);
          else if (view.applied === "live") await out.line(`compacted: ${view.before_tokens} → ${view.after_tokens} tokens (${view.scale})`);
          else if (view.applied === "pending")
            await out.line(`requested${view.compaction_id === undefined ? "" : ` as ${view.compaction_id}`}; it is applied at the run's next boundary`);
          else
            await out.line(
              `${view.applied === "noop" ? "nothing to do" : "failed, the context is unchanged"}: ${view.reason === undefined ? "no reason was recorded" : compactionText(view.reason, view.detail)}`,
            );
          return view.applied === "failed" ? exitCodes.failed : exitCodes.ok;
        });
      }),
    );
}
