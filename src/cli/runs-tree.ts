import type { Command } from "commander";
import { UnknownRunError } from "../client/errors.ts";
import { runTree } from "../store/run-tree.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes } from "./exit.ts";
import { parseRunId } from "./format.ts";
import { spentText, sumOf, treeLines } from "./tree-text.ts";

export function addRunsTree(runs: Command): void {
  addCommand(runs, "tree", {
    summary: "show a run with the runs that it started, and theirs",
    description: "Shows a run with the runs that it started, and theirs: states, turns, what each used, and the sum. At most 1,000 runs, the upper levels first.",
    examples: ["runs tree 0190…", "runs tree 0190… --json | jq '.root.children[].state'"],
  })
    .argument("<run id>")
    .action(
      action(async (out, given: string) => {
        const runId = parseRunId(given);
        return await withDatabase(out, async ({ pool, named }) => {
          const tree = await runTree(pool, named, runId);
          if (tree === undefined) throw new UnknownRunError(`no run ${runId}`);
          const sum = sumOf(tree.root);
          if (out.isJson) await out.value({ ...tree, sum });
          else {
            for (const line of treeLines(tree.root, out.colors)) await out.line(line);
            await out.line(`\n${tree.runs} ${tree.runs === 1 ? "run" : "runs"}: ${spentText(sum)}`);
            if (tree.is_cut) out.note(`only the first ${tree.runs} runs are shown and summed`);
          }
          return exitCodes.ok;
        });
      }),
    );
}
