import { agent, askHumanTool, createCapstan, tool } from "../src/index.ts"; // in your project: from "capstan"
import { z } from "zod";

const refund = tool({
  name: "refund",
  description: "Pays an order back.",
  input: z.object({ order: z.string(), amount: z.number() }),
  approval: { when: ({ amount }) => amount > 20, expiresMs: 86_400_000 }, // after a day without a decision: no
  execute: ({ order, amount }) => ({ order, refunded: amount }),
});
const clerk = agent({
  name: "clerk",
  model: process.env["CAPSTAN_MODEL"] ?? "anthropic:claude-sonnet-5",
  instructions: "Pay back what arrived broken. Ask a person for the order's number if you do not have it.",
  tools: [refund, askHumanTool()],
});

const capstan = createCapstan({ agents: [clerk] }); // reads DATABASE_URL
await capstan.migrate();
await capstan.startWorker();

const run = await capstan.enqueue(clerk, "My lamp arrived broken. It was 30 dollars.");
for await (const { type, payload } of run.events()) {
  if (type !== "call.waiting") continue;
  // The run holds no worker now, however long a person takes. Usually this is a page or a chat message.
  const { id, kind, name, detail } = await capstan.waits.get(payload["wait_id"] as string);
  console.log(`${kind}: ${name} ${JSON.stringify(detail["input"] ?? detail["question"])}`);
  if (kind === "question") await capstan.waits.answer(id, "7", { actor: "ann" });
  if (kind === "approval") await capstan.waits.approve(id, { input: { order: "7", amount: 25 }, reason: "less the voucher", actor: "ann" });
}
console.log(await run.result());
await capstan.close();
