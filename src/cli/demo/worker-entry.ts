/** The program of a demo worker: an ordinary worker with the demo's auditors, told what to do by its parent. */
import { readConfig } from "../../config.ts";
import { createCapstan } from "../../main.ts";
import { createLog } from "../../telemetry/log.ts";
import { demoOptions } from "./agents.ts";
import type { WorkerArguments, WorkerMessage } from "./messages.ts";

/** The parent waits for this before it kills. Turns in flight are stopped at a recorded boundary and lose nothing. */
const GRACE_MS = 2_000;

const { pool, root, reportsDir, logFile } = JSON.parse(process.argv[2] ?? "{}") as WorkerArguments;
const log = createLog({ level: readConfig(process.env).logLevel, stream: logFile });

function tell(message: WorkerMessage): void {
  // The channel is gone only when the parent is, and then nobody needs to know.
  if (process.connected) process.send?.(message);
}

// Ctrl-C reaches the whole terminal group; what it means for the demo is for the parent to say.
process.on("SIGINT", () => {});

const capstan = createCapstan({
  ...demoOptions({ root, reportsDir }),
  observability: {
    log,
    onWarn(text, { run_id: runId }) {
      if (typeof runId === "string") tell({ type: "growth_warning", runId, text });
    },
  },
});

const stop = async (): Promise<void> => {
  await worker?.stop({ graceMs: GRACE_MS });
  await capstan.close();
  process.exit(0);
};
let worker: Awaited<ReturnType<typeof capstan.startWorker>> | undefined;
let stopping: Promise<void> | undefined;
const stopOnce = (): void => {
  stopping ??= stop().catch((error: unknown) => {
    log.error({ err: error }, "the demo worker could not stop in order");
    process.exit(1);
  });
};
process.on("SIGTERM", stopOnce);
// The parent is gone, whatever ended it: no process of the demo outlives it.
process.on("disconnect", stopOnce);

try {
  worker = await capstan.startWorker({ pool });
  tell({ type: "ready", workerId: worker.id });
} catch (error) {
  log.error({ err: error }, "the demo worker could not start");
  tell({ type: "failed", message: error instanceof Error ? error.message : String(error) });
  process.exitCode = 1;
  await capstan.close();
  process.disconnect();
}
