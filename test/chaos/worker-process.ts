/**
 * A worker in a process of its own, to be killed, suspended or blocked. Settings come by the environment (CAPSTAN_*,
 * DATABASE_URL); CHAOS_EFFECTS names the file of effects, CHAOS_POOL the worker pool, CHAOS_SUMMARY the milliseconds that
 * a summary takes, or `block`. Says "ready" to its parent, stops at "stop", and tells of every growth warning.
 */
import { readConfig } from "../../src/config.ts";
import { createLog } from "../../src/telemetry/log.ts";
import { compactionModels, compactionScenarios, compactionSummarizers } from "./compaction-scenarios.ts";
import { effectNoter } from "./effects.ts";
import { faultAgents, faultScripts } from "./fault-agents.ts";
import { catalogueOf, chaosModel } from "./model.ts";
import { scenarios, scripts } from "./scenarios.ts";
import { startTestWorker } from "./start-worker.ts";

export type FromWorker = { readonly ready: string } | { readonly stopped: true } | { readonly warned: string };

const config = readConfig(process.env);
const note = effectNoter(process.env["CHAOS_EFFECTS"] ?? "");
const known = [...[...Object.values(scenarios(note)), ...Object.values(compactionScenarios(note))].map((scenario) => scenario.agent), ...faultAgents(note)];
const wanted = process.env["CHAOS_AGENTS"]?.split(",");
const summary = process.env["CHAOS_SUMMARY"] === "block" ? "block" : Number(process.env["CHAOS_SUMMARY"] ?? 100);
const tell = (message: FromWorker): void => void process.send?.(message);

const worker = await startTestWorker({
  url: config.databaseUrl ?? "",
  agents: wanted === undefined ? known : known.filter(({ name }) => wanted.includes(name)),
  models: catalogueOf(chaosModel({ ...scripts, ...faultScripts }, note), compactionModels(note, summary)),
  summarizers: compactionSummarizers(note, summary),
  pool: process.env["CHAOS_POOL"] ?? "turn",
  settings: config.worker,
  log: createLog({ level: config.logLevel }),
  onWarn: (text) => tell({ warned: text }),
});
process.on("message", (message) => {
  if (message !== "stop") return;
  void worker.stop().then(() => {
    tell({ stopped: true });
    process.disconnect();
  });
});
// A parent that has gone cannot end us any more.
process.on("disconnect", () => process.exit());
tell({ ready: worker.id });
