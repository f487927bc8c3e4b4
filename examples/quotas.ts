import { createCapstan, QueueFullError } from "../src/index.ts"; // in your project: from "capstan"

const capstan = createCapstan(); // reads DATABASE_URL
await capstan.migrate();

// What an operator allows: kept in the database, read by workers while they run.
await capstan.quotas.set({ scope: "tenant", value: "*", kind: "turn", unit: "tokens", window: "minute", amount: 200_000 });
await capstan.quotas.set({ scope: "tenant", value: "*", kind: "run", unit: "queued", amount: 2 });
for (const { scope, value, kind, unit, window, amount } of await capstan.quotas.list()) console.log(`${scope} ${value}: ${kind} ${unit} ${window} ${amount}`);

// One run at a time for each repository: the others wait in the order of their enqueue.
const concurrency = { key: "repo-42" };
await capstan.enqueue("auditor", "first", { tenant: "acme", concurrency });
const second = await capstan.enqueue("auditor", "second", { tenant: "acme", concurrency });
console.log((await second.status()).waits_for?.kind);

try {
  await capstan.enqueue("auditor", "third", { tenant: "acme" });
} catch (error) {
  if (!(error instanceof QueueFullError)) throw error;
  console.log(`${error.code}: try again in ${error.retryAfterMs} ms`);
}
console.log(await capstan.usage.by({ by: "tenant", since: new Date(Date.now() - 3_600_000) }));
await capstan.close();
