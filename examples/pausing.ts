import { agent, createCapstan } from "../src/index.ts"; // in your project: from "capstan"

const clerk = agent({ name: "clerk", model: process.env["CAPSTAN_MODEL"] ?? "anthropic:claude-sonnet-5", instructions: "Answer in one sentence." });
const capstan = createCapstan({ agents: [clerk] }); // reads DATABASE_URL
await capstan.migrate();
await capstan.startWorker();

await capstan.pauses.pause({ tenant: "acme", reason: "an invoice is open", actor: "ann" });
const run = await capstan.enqueue(clerk, "Are you there?", { tenant: "acme" }); // taken, and left queued
for (const { tenant, reason, actor } of await capstan.pauses.list()) console.log(`${tenant ?? "everything"} stands still, says ${actor}: ${reason}`);
console.log(`the run is ${(await run.status()).state}`);

await capstan.pauses.resume({ tenant: "acme", actor: "ann" });
console.log(await run.result());
await capstan.close();
