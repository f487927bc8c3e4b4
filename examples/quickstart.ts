import { agent, createCapstan, tool } from "../src/index.ts"; // in your project: from "capstan"
import { z } from "zod";

const lookUp = tool({
  name: "look_up_order",
  description: "Gives the state of an order.",
  input: z.object({ order: z.string() }),
  effect: "read",
  execute: ({ order }) => ({ order, state: "shipped" }),
});
const clerk = agent({
  name: "clerk",
  model: process.env["CAPSTAN_MODEL"] ?? "anthropic:claude-sonnet-5",
  instructions: "Answer questions about orders.",
  tools: [lookUp],
  input: z.object({ question: z.string() }),
});

const capstan = createCapstan({ agents: [clerk] }); // reads DATABASE_URL
await capstan.migrate();
await capstan.startWorker();

const run = await capstan.enqueue(clerk, { question: "Where is order 7?" });
console.log(await run.result());
await capstan.close();
