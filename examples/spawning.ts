import { agent, createCapstan } from "../src/index.ts"; // in your project: from "capstan"
import { z } from "zod";

const model = process.env["CAPSTAN_MODEL"] ?? "anthropic:claude-sonnet-5";
const reader = agent({ name: "reader", model, instructions: "Sum the text up in one sentence.", input: z.object({ text: z.string() }) });
const editor = agent({
  name: "editor",
  model,
  instructions: "Let a reader sum up each text, all of them in one call, then answer with the sentences.",
  spawn: { agents: ["reader"], concurrency: 2 }, // gives it the tool `agent`
});

const capstan = createCapstan({ agents: [editor, reader] }); // reads DATABASE_URL
await capstan.migrate();
await capstan.startWorker();

const run = await capstan.enqueue(editor, "Three texts: the tide tables; a recipe for bread; an old map.");
for await (const { type, payload } of run.events()) {
  if (type === "call.waiting") console.log("the readers are at work");
  if (type !== "tool.completed") continue;
  const { results } = payload["output"] as { readonly results: readonly { readonly index: number; readonly ok: boolean; readonly output?: string }[] };
  for (const { index, ok, output } of results) console.log(`${index}: ${ok ? output : "failed"}`);
}
console.log(await run.result());
await capstan.close();
