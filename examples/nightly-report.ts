/** A report each night at two in Berlin, on whichever worker is there, once, also when a clock hour comes twice. */
import { agent, createCapstan, createLog, tool } from "../src/index.ts"; // in your project: from "capstan"
import { z } from "zod";

const log = createLog({ level: "warn" });
const capstan = createCapstan({ agents: [reporter()], observability: { log } }); // reads DATABASE_URL
await capstan.migrate();
await capstan.db.query("create table if not exists reports (key text primary key, day date not null, text text not null)"); // the application's own
await capstan.startWorker();

// May be said at every start of the service: the next tick stays unless line or zone have changed.
const nightly = await capstan.schedules.create("nightly-report", {
  agent: "reporter",
  input: "Write the report of yesterday.",
  cron: "0 2 * * *",
  timezone: "Europe/Berlin",
  replace: true,
});
console.log(`each night, next at ${nightly.next_at}`);

// Tonight is far away: one now, by the name of the schedule.
const run = capstan.run<string>(await capstan.schedules.runNow("nightly-report", { actor: "ann" }));
console.log(await run.result());
const { rows } = await capstan.db.query<{ text: string }>("select text from reports");
console.log(`reports: ${rows.map(({ text }) => text).join("; ")}`);
await capstan.close();

function reporter() {
  const sales = tool({
    name: "sales_of",
    description: "Gives a day's sales by product. Days are written YYYY-MM-DD.",
    input: z.object({ day: z.iso.date() }),
    effect: "read",
    execute: ({ day }) => ({ day, lamp: 3, chair: 1 }), // your warehouse
  });
  const save = tool({
    name: "save_report",
    description: "Keeps the report of a day.",
    input: z.object({ day: z.iso.date(), text: z.string() }),
    effect: "idempotent",
    // The key is the same for every try of this call: a worker that dies behind the insert does no harm.
    execute: async ({ day, text }, { idempotencyKey }) => {
      await capstan.db.query("insert into reports (key, day, text) values ($1, $2, $3) on conflict (key) do nothing", [idempotencyKey, day, text]);
      return "kept";
    },
  });
  return agent({
    name: "reporter",
    model: process.env["CAPSTAN_MODEL"] ?? "anthropic:claude-sonnet-5",
    instructions: "Write a short report of a day's sales, keep it, and answer with it.",
    tools: [sales, save],
    limits: { maxTurns: 10, deadlineMs: 3_600_000 }, // a report that is not there by three is no use
  });
}
