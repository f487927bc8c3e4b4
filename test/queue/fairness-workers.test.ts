/** Worker processes that several tenants share: a flood beside a single run, and caps of 100 tenants under one of all. */
import { expect, it } from "vitest";
import { faultBench } from "../chaos/fault-bench.ts";
import { eventually } from "../chaos/journal.ts";
import { quickEnv } from "../chaos/child-worker.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();
const bench = faultBench(database.url);
const { db } = bench;

const env = (slots: number) => ({ ...quickEnv, CAPSTAN_SLOTS: String(slots) });

it("10,000 queued runs of one tenant delay each turn of another's single run by no more than a few turns", { timeout: 240_000 }, async () => {
  const pool = "flood";
  const slots = 4;
  await db.query("select count(capstan.enqueue_run(agent => 'one-tool', input => '\"begin\"', tenant => 'flood', pool => $1, priority => -100)) from generate_series(1, 10000)", [
    pool,
  ]);
  await Promise.all([bench.child(pool, { env: env(slots) }), bench.child(pool, { env: env(slots) })]);
  await eventually("both are at work on the flood", async () => (await db.query("select from capstan.events where type = 'model.requested' limit 40")).rows.length === 40);
  const single = await bench.enqueue("one-tool", { pool, tenant: "single" });
  await bench.until(single, "the single run ends", ({ state }) => state === "completed");
  // How many turns of the flood were begun between the two, in the order of the journals' own times.
  const { rows } = await db.query<{ type: string; between: number }>(
    `with mine as (select e.type, e.at, lag(e.at) over (order by e.seq) as before from capstan.events e where e.run_id = $1 and e.type in ('run.created', 'model.requested', 'tool.completed', 'run.completed'))
     select m.type, (select count(*)::int from capstan.events e where e.type = 'model.requested' and e.run_id <> $1 and e.at > m.before and e.at < m.at) as between
     from mine m where m.before is not null and m.type = 'model.requested' order by m.at`,
    [single],
  );
  const { rows: waiting } = await db.query<{ n: number }>("select count(*)::int as n from capstan.wishes where tenant = 'flood'");
  console.log(`of the flood, ${rows.map(({ between }) => between).join(" and ")} turns were begun before the single run's turns; ${waiting[0]?.n} of its runs wait still`);
  expect(rows).toHaveLength(2);
  expect(waiting[0]?.n).toBeGreaterThan(5_000);
  // Two workers: what each has admitted, a few more for what is under way when the wish is made.
  for (const { between } of rows) expect(between).toBeLessThanOrEqual(2 * 3 * slots);
});

it("of 100 tenants with a cap of 1 under a cap of 20 never 21 calls are made, nor two of a tenant, whatever is killed and cancelled", { timeout: 600_000 }, async () => {
  const pool = "caps";
  await db.query(
    `insert into capstan.quota_limits (scope, value, kind, unit, "window", amount) values ('overall', '*', 'turn', 'concurrent', 'none', 20), ('tenant', '*', 'turn', 'concurrent', 'none', 1)`,
  );
  // At every commit that takes a slot or moves a run with a key: what there is of each then.
  await db.query(`
    create table public.seen (what text not null, of text not null, n int not null, primary key (what, of, n));
    create function public.look_at_slots() returns trigger language plpgsql security definer as $$ begin
      insert into public.seen select 'calls', new.bucket, greatest(count(*), max(s.slot)) from capstan.quota_slots s where s.bucket = new.bucket having count(*) > 0 on conflict do nothing;
      return null; end $$;
    create constraint trigger look_at_slots after insert on capstan.quota_slots deferrable initially deferred for each row execute function public.look_at_slots();
    create function public.look_at_keys() returns trigger language plpgsql security definer as $$ begin
      insert into public.seen select 'runs', new.tenant, count(*) from capstan.runs r where r.tenant = new.tenant and r.concurrency_key = new.concurrency_key
        and r.finished_at is null and r.state <> 'queued' having count(*) > 0 on conflict do nothing;
      return null; end $$;
    create constraint trigger look_at_keys after update on capstan.runs deferrable initially deferred for each row when (new.concurrency_key is not null and new.state is distinct from old.state)
      execute function public.look_at_keys();`);
  const runs: string[] = [];
  for (let n = 0; n < 100; n++) {
    const tenant = `t${n}`;
    runs.push(...(await Promise.all([0, 1, 2].map(() => bench.enqueue("paced", { pool, tenant, concurrency: { key: "one", scope: "all" } })))));
  }
  const workers = await Promise.all([1, 2, 3].map(() => bench.child(pool, { env: env(16) })));
  const ended = async () => (await db.query<{ n: number }>("select count(*)::int as n from capstan.runs where pool = $1 and finished_at is not null", [pool])).rows[0]?.n ?? 0;
  // Runs that are at work, that stand in line and that have ended already, while workers die.
  let cancelled = 0;
  for (const [k, worker] of workers.entries()) {
    await eventually(`${20 + 60 * k} runs have ended`, async () => (await ended()) >= 20 + 60 * k, { withinMs: 240_000 });
    for (let n = 0; n < 10; n++) {
      const { rows } = await db.query<{ done: boolean }>("select capstan.cancel_run($1) as done", [runs[(n * 37 + k * 101) % runs.length]]);
      if (rows[0]?.done === true) cancelled++;
    }
    if (k < 2) {
      worker.kill("SIGKILL");
      workers.push(await bench.child(pool, { env: env(16) }));
    }
  }
  await eventually("all have ended", async () => (await ended()) === runs.length, {
    withinMs: 300_000,
    describe: async () =>
      JSON.stringify((await db.query("select state, wait_reason, count(*) from capstan.runs where pool = $1 group by 1, 2", [pool])).rows) +
      JSON.stringify((await db.query("select ready, at, count(*) from capstan.wishes where pool = $1 group by 1, 2 limit 20", [pool])).rows),
  });
  const { rows: states } = await db.query<{ state: string; n: number }>("select state, count(*)::int as n from capstan.runs where pool = $1 group by 1 order by 1", [pool]);
  expect(states).toEqual([
    { state: "cancelled", n: cancelled },
    { state: "completed", n: runs.length - cancelled },
  ]);
  const { rows: most } = await db.query<{ what: string; n: number }>(
    "select case when of like '%/overall/*' then 'overall' else what end as what, max(n) as n from public.seen group by 1 order by 1",
  );
  console.log(`at most, over all commits: ${most.map(({ what, n }) => `${what} ${n}`).join(", ")}; ${cancelled} cancelled`);
  const seen = new Map(most.map(({ what, n }) => [what, n]));
  expect(seen.get("overall")).toBeLessThanOrEqual(20);
  // So that the caps were what held them back.
  expect(seen.get("overall")).toBeGreaterThanOrEqual(15);
  expect(seen.get("calls")).toBe(1);
  expect(seen.get("runs")).toBe(1);
  for (const runId of runs) expect(await bench.breaches(runId)).toEqual([]);
});
