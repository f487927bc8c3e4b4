/** A worker in a process of its own, with an agent that takes its time: forty turns, each of some words that are spoken. */
import { z } from "zod";
import { agent, type Agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import { readConfig } from "../../src/config.ts";
import { createLog } from "../../src/telemetry/log.ts";
import { effectNoter } from "../chaos/effects.ts";
import { catalogueOf, CHAOS_MODEL, chaosModel } from "../chaos/model.ts";
import { startTestWorker } from "../chaos/start-worker.ts";

const config = readConfig(process.env);
const turns = (count: number) => [
  ...Array.from({ length: count }, (_, n) => ({ text: Array.from({ length: 6 }, (_word, i) => `w${n}_${i}`).join(" "), wordMs: 40, calls: [{ name: "look" }] })),
  { text: "done" },
];
const look = tool({ name: "look", description: "looks", input: z.object({}), effect: "read", execute: () => Promise.resolve("nothing new") });
const of = (name: string): Agent => agent({ name, model: CHAOS_MODEL, instructions: name, tools: [look] }) as Agent;

const worker = await startTestWorker({
  url: config.databaseUrl ?? "",
  agents: [of("sprint"), of("marathon")],
  models: catalogueOf(chaosModel({ sprint: turns(10), marathon: turns(40) }, effectNoter(process.env["CHAOS_EFFECTS"] ?? ""))),
  pool: process.env["CHAOS_POOL"] ?? "turn",
  settings: config.worker,
  log: createLog({ level: config.logLevel }),
});
process.on("message", (message) => {
  if (message === "stop") void worker.stop().then(() => process.disconnect());
});
process.on("disconnect", () => process.exit());
process.send?.({ ready: worker.id });
