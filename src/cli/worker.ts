import type { Command } from "commander";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes } from "./exit.ts";
import { parseCount } from "./format.ts";
import { aborted } from "./stop-signals.ts";
import type { WorkerFlags } from "./worker-process.ts";

export function addWorker(program: Command): void {
  const worker = addCommand(program, "worker", {
    summary: "run a worker until it is stopped",
    description:
      "Runs a worker until it is stopped. SIGTERM or Ctrl-C lets turns finish within CAPSTAN_GRACE_MS, then stops them at a recorded boundary and exits 0; a second signal exits at once, and nothing is lost. Without --agents it has the built-in agent auditor.",
    examples: [
      "worker --agents ./agents.ts",
      "worker --agents ./agents.ts --slots 50 --sticky-turns 4",
      "worker --agents ./agents.ts --pool summarize --slots 4",
      "worker --agents ./agents.ts --promote   # runs enqueued by name get this code's definitions",
    ],
  });
  addWorkerOptions(worker).action(
    action(async (out, flags: WorkerFlags) =>
      withDatabase(
        out,
        async ({ url, directUrl, signal }) => {
          const { startWorkerProcess } = await import("./worker-process.ts");
          const running = await startWorkerProcess(out, { url, directUrl, flags, alwaysBuiltIn: false });
          const { workerId, agents, pool, slots } = running;
          if (out.isJson) await out.value({ event: "ready", worker_id: workerId, pid: process.pid, pool, slots, agents });
          else out.note(`worker ${workerId} in pool ${pool}: ${agents.join(", ")}; ${slots} slots; Ctrl-C stops it`);
          await aborted(signal);
          await running.stop();
          if (out.isJson) await out.value({ event: "stopped", worker_id: workerId });
          return exitCodes.ok;
        },
        { handlesStop: true },
      ),
    ),
  );
}

/** What `worker` and `up` have in common. */
export function addWorkerOptions(command: Command): Command {
  return command
    .option(
      "--agents <module>",
      "module that exports agents (may be repeated); its export `models` adds models by name, its export `mcp` MCP servers",
      (path: string, before: string[]) => [...before, path],
      [] as string[],
    )
    .option("--pool <name>", "serve the runs of this pool; summarize: make the summaries of compactions, and nothing else", "turn")
    .option("--slots <n>", "runs at the same time (default: CAPSTAN_SLOTS, 20)", parseCount("--slots", { min: 1, max: 10_000 }))
    .option("--sticky-turns <n>", "turns that a run may take in a row before it goes back to the queue; 0: one job per turn", parseCount("--sticky-turns", { min: 0, max: 10_000 }))
    .option("--no-summarize", "leave summaries to workers of --pool summarize")
    .option("--promote", "make this code's definitions the ones that runs enqueued by name get")
    .option("--pretty", "log for people instead of JSON (needs pino-pretty)");
}
