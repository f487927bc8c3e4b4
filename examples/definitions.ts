import { agent, createCapstan } from "../src/index.ts"; // in your project: from "capstan"

const clerk = agent({ name: "clerk", model: "offline:auditor", instructions: "Answer from the order book.", compaction: { enabled: true } });
const capstan = createCapstan({ agents: [clerk] }); // reads DATABASE_URL
await capstan.migrate();
await capstan.register(); // the first definition of an agent is promoted

const before = await capstan.agents.get("clerk");
const fork = await capstan.agents.fork("clerk", {
  instructions: "Answer from the order book, in one sentence.",
  compaction: { autocompact_at_pct: 70 }, // the rest of the policy stays
});
for (const { path, before: was, after } of await capstan.agents.diff(before.sha, fork.sha)) console.log(path, was ?? "(unset)", "->", after ?? "(unset)");

await capstan.agents.promote("clerk", fork.sha, { actor: "ann" }); // runs enqueued by name get it from now on
await capstan.agents.promote("clerk", before.sha, { actor: "ann" }); // and back
for (const { what, actor } of await capstan.agents.history("clerk")) console.log(`${what} by ${actor}`);
await capstan.close();
