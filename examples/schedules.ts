import { createCapstan } from "../src/index.ts"; // in your project: from "capstan"

const capstan = createCapstan(); // reads DATABASE_URL
await capstan.migrate();

const nightly = await capstan.schedules.create("nightly-audit", {
  agent: "auditor",
  input: { folder: "src" },
  cron: "30 2 * * *",
  timezone: "Europe/Berlin",
  replace: true, // may be said at every start of your service
});
console.log(`next audit: ${nightly.next_at}`);

const runId = await capstan.schedules.runNow("nightly-audit"); // and one right away
console.log(`one run now: ${runId}`);
await capstan.close();
