/** A worker in a process of its own that sends webhooks: says "ready", stops at "stop". DATABASE_URL and CAPSTAN_FAILPOINT by the environment. */
import { agent } from "../../src/agents/agent.ts";
import { createCapstan } from "../../src/main.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";

const capstan = createCapstan({
  agents: [agent({ name: "echo", model: "scripted:echo", instructions: "Echo." })],
  models: { models: { "scripted:echo": scriptedModel(["done"], { name: "scripted:echo", by: "turn" }) } },
  outgoing: { allow: ["127.0.0.1"] },
});
const worker = await capstan.startWorker();
process.on("message", () => void capstan.close().then(() => process.disconnect()));
process.send?.({ ready: worker.id });
