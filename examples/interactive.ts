import { agent, createCapstan } from "../src/index.ts"; // in your project: from "capstan"

const guide = agent({
  name: "guide",
  model: process.env["CAPSTAN_MODEL"] ?? "anthropic:claude-sonnet-5",
  instructions: "Plan journeys.",
  interactive: true, // waits for input after an answer instead of ending
});

const capstan = createCapstan({ agents: [guide] }); // reads DATABASE_URL
await capstan.migrate();
await capstan.startWorker();

const run = await capstan.enqueue(guide, "Plan a month in Rome, day by day.");
let isStopped = false;
for await (const { type, payload } of run.events()) {
  if (type === "model.requested" && !isStopped) {
    isStopped = true;
    await run.stop("too long", { actor: "ann" }); // the call is aborted, wherever it runs; the run stays
  }
  if (type === "turn.stopped") {
    console.log("stopped:", payload["reason"]);
    await run.send("A weekend is enough.", { dedupeKey: "message-2" }); // sent twice it is still one message
  }
  if (type === "model.responded") {
    const [part] = payload["content"] as { readonly text: string }[];
    console.log(part?.text);
    await run.cancel("that was all");
  }
}
await capstan.close();
