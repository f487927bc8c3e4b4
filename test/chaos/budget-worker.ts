/** A worker process with the agents of budget-agents.ts; else as worker-process.ts. */
import { readConfig } from "../../src/config.ts";
import { createLog } from "../../src/telemetry/log.ts";
import { budgetAgents, budgetScripts } from "./budget-agents.ts";
import { effectNoter } from "./effects.ts";
import { catalogueOf, chaosModel } from "./model.ts";
import { startTestWorker } from "./start-worker.ts";
import type { FromWorker } from "./worker-process.ts";

const config = readConfig(process.env);
const note = effectNoter(process.env["CHAOS_EFFECTS"] ?? "");
const tell = (message: FromWorker): void => void process.send?.(message);

const worker = await startTestWorker({
  url: config.databaseUrl ?? "",
  agents: budgetAgents(note),
  models: catalogueOf(chaosModel(budgetScripts, note)),
  pool: process.env["CHAOS_POOL"] ?? "turn",
  settings: config.worker,
  log: createLog({ level: config.logLevel }),
});
process.on("message", (message) => {
  if (message === "stop") void worker.stop({ graceMs: 1_000 }).then(() => process.disconnect());
});
process.on("disconnect", () => process.exit());
tell({ ready: worker.id });
