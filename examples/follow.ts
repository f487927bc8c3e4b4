import { createClient } from "../src/client/index.ts"; // in your project: from "capstan/client"

const [runId = "", after = "0"] = process.argv.slice(2);
const client = createClient({ connectionString: process.env["DATABASE_URL"] ?? "" });

for await (const item of client.run(runId).follow({ after: Number(after) })) {
  if (item.type === "delta") {
    if (item.delta.kind === "text") process.stdout.write(item.delta.text);
  } else {
    console.log(`\n[${item.event.seq}] ${item.event.type}`); // keep the seq: it is the cursor to go on from
  }
}
await client.close();
