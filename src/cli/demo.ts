import { stat } from "node:fs/promises";
import { join } from "node:path";
import type { Command } from "commander";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { CliError, exitCodes, Stopped } from "./exit.ts";
import { parseCount } from "./format.ts";
import type { Output } from "./output.ts";
import { listenForStop } from "./stop-signals.ts";

export interface DemoFlags {
  readonly dir: string;
  readonly runs: number;
}

const DEFAULT_RUNS = 6;

export function registerDemo(program: Command): void {
  addCommand(program, "demo", {
    summary: "see it work: audits of a folder, with a worker killed on the way",
    description:
      "Runs several agents over a folder, kills one of two worker processes with SIGKILL while it holds runs, and shows that the other goes on with them and that nothing was lost. Without an API key the model is offline:auditor, a program of rules and no language model; with ANTHROPIC_API_KEY, OPENAI_API_KEY or CAPSTAN_MODEL it is a real one. Exits 0 only when everything held.",
    examples: ["demo", "demo --dir ../another-project --runs 4", "demo --json > demo.json"],
  })
    .option("--dir <folder>", "folder to audit; only read, never written", ".")
    .option("--runs <n>", "number of runs, 2 to 20", parseCount("--runs", { min: 2, max: 20 }), DEFAULT_RUNS)
    .action(action(runDemo));
}

/** Gives 0 when everything held, else 1; what did not hold is part of the output. Throws Stopped after Ctrl-C, once nothing of it runs any more. */
export async function runDemo(out: Output, { dir, runs }: DemoFlags): Promise<number> {
  const isFolder = await stat(dir).then(
    (facts) => facts.isDirectory(),
    () => false,
  );
  if (!isFolder) throw new CliError("DEMO_FOLDER_MISSING", `${dir} is no folder; give --dir a folder with files to read`, { exitCode: exitCodes.usage });
  return await withDatabase(
    out,
    async (database) => {
      // Ours, not the database's: the processes end before the server does.
      const stop = listenForStop();
      try {
        const { show } = await import("./demo/show.ts");
        const { summaryLines } = await import("./demo/summary.ts");
        const summary = await show({ database, dir, runs, stderr: process.stderr, signal: AbortSignal.any([stop.signal, out.closed]) });
        if (summary === undefined) throw new Stopped(stop.exitCode);
        if (out.isJson) await out.value(summary);
        else for (const line of summaryLines(summary, out.colors, join(database.config.dir, "reports"))) await out.line(line);
        return summary.ok ? exitCodes.ok : exitCodes.failed;
      } finally {
        stop.dispose();
      }
    },
    { embedded: "create", handlesStop: true },
  );
}
