/** A support desk: customers write, an agent looks things up, people decide what costs money, and tickets stay open for days. */
import { agent, createCapstan, tool, type RunHandle } from "../src/index.ts"; // in your project: from "capstan"
import { z } from "zod";

const orders = new Map([["7", { item: "lamp", price: 45, state: "arrived broken" }]]); // your database

const lookUp = tool({
  name: "look_up_order",
  description: "Gives what is known of an order.",
  input: z.object({ order: z.string() }),
  effect: "read", // repeated freely after a crash
  execute: ({ order }) => orders.get(order) ?? { problem: `there is no order ${order}` },
});
const refund = tool({
  name: "refund",
  description: "Pays an order back.",
  input: z.object({ order: z.string(), amount: z.number().positive() }),
  effect: "idempotent", // the payment service deduplicates by the key
  approval: { when: ({ amount }) => amount > 20 }, // waits for a person, without a worker
  execute: ({ order, amount }, { idempotencyKey }) => ({ order, refunded: amount, payment: idempotencyKey.slice(-8) }),
});
const desk = agent({
  name: "support-desk",
  model: process.env["CAPSTAN_MODEL"] ?? "anthropic:claude-sonnet-5",
  instructions: "Help customers with their orders. Look an order up before you speak of it.",
  tools: [lookUp, refund],
  interactive: true, // an answer does not end the ticket
  compaction: { enabled: true }, // nor does a long one outgrow the model's window
});

const capstan = createCapstan({ agents: [desk] }); // reads DATABASE_URL
await capstan.migrate();
await capstan.startWorker();

/** A ticket is a run. The customer's id makes it findable, the ticket's number keeps a double click from opening two. */
const ticket = await capstan.enqueue(desk, "My lamp, order 7, arrived broken. I want my money back.", { tenant: "shop", subject: "customer-12", idempotencyKey: "ticket 501" });

await Promise.all([customer(ticket), approver()]);
await capstan.close();

/** What the customer's page does: shows answers, sends what is typed. */
async function customer(run: RunHandle<unknown>): Promise<void> {
  let asked = false;
  for await (const { type, payload } of run.events()) {
    if (type !== "model.responded") continue;
    const texts = (payload["content"] as readonly { readonly type: string; readonly text?: string }[]).flatMap(({ text }) => text ?? []);
    const isAnswer = (payload["finish"] as { readonly reason: string }).reason === "stop";
    if (!isAnswer) continue;
    console.log(`desk: ${texts.join(" ")}`);
    if (!asked) await run.send("Thank you. How long will it take?", { dedupeKey: "message 2", actor: "customer-12" });
    else await run.cancel("the customer closed the ticket");
    asked = true;
  }
}

/** What the team's page does: lists what waits in the tenant, and decides. Usually another process, days later. */
async function approver(): Promise<void> {
  for (;;) {
    const [waiting] = await capstan.waits.list({ tenant: "shop", kinds: ["approval"] });
    if (waiting !== undefined) {
      console.log(`to decide: ${waiting.name} ${JSON.stringify(waiting.detail["input"])}`);
      return await capstan.waits.approve(waiting.id, { input: { order: "7", amount: 40 }, reason: "less the shipping", actor: "ann" });
    }
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}
