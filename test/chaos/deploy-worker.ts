/** A worker process with the code of before or after a deploy (CHAOS_RELEASE); else as worker-process.ts. */
import { readConfig } from "../../src/config.ts";
import { createLog } from "../../src/telemetry/log.ts";
import { deployedAgent, deployScripts } from "./deploy-agents.ts";
import { effectNoter } from "./effects.ts";
import { catalogueOf, chaosModel } from "./model.ts";
import { startTestWorker } from "./start-worker.ts";
import type { FromWorker } from "./worker-process.ts";

export type Release = "old" | "new";

const config = readConfig(process.env);
const note = effectNoter(process.env["CHAOS_EFFECTS"] ?? "");
const tell = (message: FromWorker): void => void process.send?.(message);

const worker = await startTestWorker({
  url: config.databaseUrl ?? "",
  agents: [deployedAgent(process.env["CHAOS_RELEASE"] === "new" ? "new" : "old", note)],
  models: catalogueOf(chaosModel(deployScripts, note)),
  settings: config.worker,
  log: createLog({ level: config.logLevel }),
});
process.on("message", (message) => {
  if (message === "stop") void worker.stop().then(() => process.disconnect());
});
process.on("disconnect", () => process.exit());
tell({ ready: worker.id });
