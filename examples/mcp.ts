import { agent, createCapstan } from "../src/index.ts"; // in your project: from "capstan"

const librarian = agent({
  name: "librarian",
  model: process.env["CAPSTAN_MODEL"] ?? "anthropic:claude-sonnet-5",
  instructions: "Answer from the notes. Look before you write.",
  mcp: [{ server: "notes", tools: ["find_*", "add_note"] }],
});

const capstan = createCapstan({
  agents: [librarian],
  mcp: { notes: { command: process.execPath, args: ["examples/notes-server.ts"], timeoutMs: 30_000 } },
}); // reads DATABASE_URL
await capstan.migrate();
await capstan.startWorker();

const run = await capstan.enqueue(librarian, "When is high tide?");
console.log(await run.result());
await capstan.close();
