/** A worker process whose agent has an MCP server of its own: MCP_SERVER is the server's configuration as JSON. */
import { agent } from "../../src/agents/agent.ts";
import { createCapstan } from "../../src/main.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import type { McpServerSpec } from "../../src/mcp/client/spec.ts";
import type { FromWorker } from "../chaos/worker-process.ts";
import { callsThenTell } from "./steps.ts";

const { MCP_SERVER = "", MCP_TOOL = "", MCP_UNTIL = "" } = process.env;
const model = scriptedModel(callsThenTell([MCP_TOOL, { text: "held", until: MCP_UNTIL }]), { name: "scripted:held", by: "turn" });
const capstan = createCapstan({
  agents: [agent({ name: "held", model: "scripted:held", instructions: "Use the tool.", mcp: ["notes"] })],
  models: { models: { [model.name]: model } },
  mcp: { notes: JSON.parse(MCP_SERVER) as McpServerSpec },
});
const worker = await capstan.startWorker();
process.on("message", (message) => {
  if (message === "stop") void capstan.close().then(() => process.disconnect());
});
process.on("disconnect", () => process.exit());
process.send?.({ ready: worker.id } satisfies FromWorker);
