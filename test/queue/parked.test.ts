/** Runs that are parked by the thousand are not read by what looks for work again and again. */
import { expect, it } from "vitest";
import { copyParked } from "../../bench/src/park-many.ts";
import { openParked, parkedKinds } from "../../bench/src/parked-agents.ts";
import { sweepCosts } from "../../bench/src/sweep-plans.ts";
import { until } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();
const EACH = 1_500;

it("sweeps and relays look at as many pages with thousands of parked runs as with none", async () => {
  const app = openParked(database.url, { turns: 1, slots: 4 });
  const worker = await app.startWorker();
  const templates: string[] = [];
  for (const { agent, reason } of parkedKinds) {
    const run = await app.enqueue(agent, "Begin.");
    await until(reason, async () => (await run.status()).wait_reason === reason);
    templates.push(run.id);
  }
  await until("the child", async () => (await app.db.query("select from capstan.runs where wait_reason = 'approval'")).rowCount === 1);
  await worker.stop();
  const few = await sweepCosts(database.url);
  const client = await app.db.connect();
  for (const id of templates) await copyParked(client, id, EACH);
  await client.query("vacuum (analyze)");
  client.release();
  const { rows } = await app.db.query("select wait_reason, count(*)::int as n from capstan.runs group by 1 order by 1");
  expect(rows).toEqual(["approval", "children", "input", "timer"].map((reason) => ({ wait_reason: reason, n: EACH + 1 })));
  for (const [i, { name, pages }] of (await sweepCosts(database.url)).entries()) expect(pages - (few[i]?.pages ?? 0), name).toBeLessThan(20);
  // They are what the engine makes: each wakes as the one that it was copied from would.
  const { rows: sleeping } = await app.db.query<{ id: string }>("select id from capstan.runs where wait_reason = 'timer' and id <> $1 limit 1", [templates[1]]);
  const id = sleeping[0]?.id ?? "";
  const again = await app.startWorker();
  expect(await app.run(id).cancel()).toBe(true);
  const talker = (await app.db.query<{ id: string }>("select id from capstan.runs where agent = 'talks' and id <> $1 limit 1", [templates[0]])).rows[0]?.id ?? "";
  await app.run(talker).send("Are you there?");
  await until("an answer", async () => (await app.run(talker).status()).turn === 2);
  await again.stop();
  await app.close();
}, 120_000);
