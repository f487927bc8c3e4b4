import { agent, createCapstan } from "../src/index.ts"; // in your project: from "capstan"

const clerk = agent({
  name: "clerk",
  model: process.env["CAPSTAN_MODEL"] ?? "anthropic:claude-sonnet-5",
  instructions: "Help with orders.",
  interactive: true,
});
const here = createCapstan({ agents: [clerk] }); // reads DATABASE_URL
const there = createCapstan({ agents: [clerk], connectionString: process.env["OTHER_DATABASE_URL"] ?? "" });
await Promise.all([here.migrate(), there.migrate()]);
await Promise.all([here.startWorker(), there.startWorker()]);

const run = await here.enqueue(clerk, "My order is number 7.");
for await (const { type } of run.events()) if (type === "run.parked") break; // it has answered, and awaits input

await run.pause(); // nobody begins a turn between the export and its end here
const moved = await there.importRun(here.exportRun(run.id)); // line by line: no more than one is in memory
await run.cancel("moved");
console.log(`${moved.events} events moved; it is ${(await there.run(moved.runId).status()).state} there`);

const last = (await there.run(moved.runId).status()).last_seq;
await there.run(moved.runId).send("Which number was it?"); // the same id, the same conversation
for await (const { type, payload } of there.run(moved.runId).events({ after: last })) {
  if (type !== "model.responded") continue;
  const [part] = payload["content"] as { readonly text: string }[];
  console.log(part?.text);
  break;
}
await Promise.all([here.close(), there.close()]);
