/** Trees that end from below while they are cancelled, paused and signalled from above: everything ends, and Postgres finds no deadlock. */
import pg from "pg";
import { expect, it, onTestFinished } from "vitest";
import { createTestDatabase } from "../support/database.ts";
import { eventually } from "./journal.ts";
import { deadlocks, ended, isFull, lifeBench } from "./life-bench.ts";

const database = await createTestDatabase();
const bench = lifeBench(database.url);
const { db } = bench;

/** Once somebody waits for a lock that `holder` has. */
async function untilBlockedBy(holder: pg.Client): Promise<void> {
  const { rows } = await holder.query<{ pid: number }>("select pg_backend_pid() as pid");
  await eventually("somebody waits for the lock", async () => {
    const blocked = await db.query("select from pg_stat_activity where $1::int = any(pg_blocking_pids(pid))", [rows[0]?.pid]);
    return blocked.rows.length > 0;
  });
}

it("a child and its parent cancelled at the same time wait for each other in no circle", { timeout: 60_000 }, async () => {
  const pool = "both-cancelled";
  const worker = await bench.worker(pool);
  const root = await bench.enqueue("tree-of-40", { pool });
  await eventually("the tree has grown", async () => (await bench.tree(root)).length === 40);
  const branch = (await bench.tree(root)).find(({ depth }) => depth === 1)?.id as string;
  // Held up in the middle: one has taken the branch and wants on, the other comes from above.
  const leaf = (await db.query<{ id: string }>("select id from capstan.runs where parent_run_id = $1 order by id limit 1", [branch])).rows[0]?.id as string;
  const holder = new pg.Client({ connectionString: database.url });
  await holder.connect();
  onTestFinished(() => holder.end());
  await holder.query("begin");
  await holder.query("select from capstan.runs where id = $1 for no key update", [leaf]);
  const below = db.query("select capstan.cancel_run($1, 'from below')", [branch]);
  await untilBlockedBy(holder);
  const above = db.query("select capstan.cancel_run($1, 'from above')", [root]);
  await eventually("both wait", async () => {
    const { rows } = await db.query("select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%cancel_run%'");
    return rows.length >= 2;
  });
  await holder.query("commit");
  expect((await Promise.allSettled([below, above])).map((done) => (done.status === "fulfilled" ? done.status : String(done.reason)))).toEqual(["fulfilled", "fulfilled"]);
  expect((await bench.tree(root)).filter(({ state }) => state !== "cancelled")).toEqual([]);
  await worker.stop({ graceMs: 0 });
});

it("many trees end, are cancelled, paused, resumed and signalled at once on three workers", { timeout: 180_000 }, async () => {
  const pool = "hunt";
  const before = await deadlocks(db);
  const workers = await Promise.all([bench.child(pool), bench.child(pool), bench.child(pool)]);
  const refusals: string[] = [];
  // What comes too late is refused by name; anything else is a fault.
  const ask = async (text: string, values: unknown[]): Promise<void> => {
    try {
      await db.query(text, values);
    } catch (error) {
      const { code, message } = error as { code?: string; message: string };
      if (code !== "KC003") refusals.push(`${code} ${message}`);
    }
  };
  const roots = await Promise.all(Array.from({ length: isFull ? 40 : 10 }, () => bench.enqueue("small-tree", { pool })));
  const open = async (): Promise<string[]> =>
    (await db.query<{ id: string }>("select id from capstan.runs where finished_at is null and pool = $1 order by random()", [pool])).rows.map(({ id }) => id);
  await eventually("children end", async () => (await db.query("select from capstan.runs where depth = 2 and finished_at is not null limit 1")).rows.length > 0);
  for (let round = 0; round < (isFull ? 30 : 8); round++) {
    const ids = await open();
    await Promise.all([
      ...ids.slice(0, 6).map((id) => ask("select capstan.pause_run($1)", [id])),
      ...ids.slice(2, 10).map((id) => ask("select capstan.signal($1, 'go')", [id])),
      ...(round % 2 === 1 ? ids.slice(0, 3).map((id) => ask("select capstan.cancel_run($1, 'hunted')", [id])) : []),
      ask("select capstan.pause_all()", []),
    ]);
    await Promise.all([ask("select capstan.resume_all()", []), ...ids.slice(0, 6).map((id) => ask("select capstan.resume_run($1)", [id]))]);
  }
  await ask("select capstan.resume_all()", []);
  for (const id of await open()) await ask("select capstan.resume_run($1)", [id]);
  for (const root of roots) await ask("select capstan.signal($1, 'go')", [root]);
  // Half of what is left is cancelled from below and from above at once.
  const trees = await Promise.all(roots.slice(0, roots.length / 2).map((root) => bench.tree(root)));
  await Promise.all(trees.flatMap((tree) => tree.filter(({ depth }) => depth < 2).map(({ id }) => ask("select capstan.cancel_run($1, 'hunted')", [id]))));
  for (const root of roots) await bench.until(root, "the root ends", ended);
  const all = (await Promise.all(roots.map((root) => bench.tree(root)))).flat();
  for (const { id } of all) await bench.until(id, "every run of the trees ends", ended);
  await Promise.all(workers.map((worker) => worker.stop()));
  expect(refusals).toEqual([]);
  expect(workers.flatMap((worker) => worker.log().split("\n")).filter((line) => line.includes("deadlock"))).toEqual([]);
  await bench.intact(roots, { cut: true });
  expect((await deadlocks(db)) - before).toBe(0);
});
