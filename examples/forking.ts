import { agent, createCapstan } from "../src/index.ts"; // in your project: from "capstan"

const clerk = agent({
  name: "clerk",
  model: process.env["CAPSTAN_MODEL"] ?? "anthropic:claude-sonnet-5",
  instructions: "Answer questions about orders.",
});

const capstan = createCapstan({ agents: [clerk] }); // reads DATABASE_URL
await capstan.migrate();
await capstan.startWorker();

const run = await capstan.enqueue(clerk, "Where is order 7?");
console.log(await run.result());

// The same question once more, answered under other instructions.
const fork = await run.fork({ overlay: { instructions: "Answer in one word." } });
console.log(await fork.result());

// The first run as it was after its first event: one message, and nobody had answered.
const then = await run.at(1);
console.log(`${then.state}: ${then.messages.length} message`);

// A conversation: each message is answered by a run that begins with all that was said.
const thread = await capstan.conversations.create({ agent: "clerk" });
for (const message of ["Where is order 8?", "And since when?"]) {
  const next = await thread.send(message);
  console.log(await next.result());
}
await capstan.close();
