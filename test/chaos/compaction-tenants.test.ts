/** Summaries of many tenants: one that has hundreds waiting, and nothing left of its quota, delays no other. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { SummarizerFunction } from "../../src/compaction/effect.ts";
import { DISPATCH_TASKS_SQL } from "../../src/queue/sql/summarize.ts";
import type { RunningWorker } from "../../src/worker.ts";
import { createTestDatabase } from "../support/database.ts";
import { compactionBench } from "./compaction-bench.ts";
import { SUMMARY } from "./compaction-scenarios.ts";
import { eventually } from "./journal.ts";

const database = await createTestDatabase();
const bench = compactionBench(database.url);
const { db } = bench;
const timeout = 300_000;
const POOL = "tenants";
const SLOTS = 2;
let turns: RunningWorker;
let original = "";

beforeAll(async () => {
  turns = await bench.worker(POOL);
  original = await bench.parkedAndAsked(POOL);
  await bench.untilTask(original, "the task waits", ({ state }) => state === "requested");
  await bench.until(original, "the run is let go", ({ worker_id: holder, inbox_pending: pending }) => holder === null && pending === 0);
  // It stays as it is, to be copied.
  await db.query("update capstan.compaction_tasks set due_at = 'infinity' where run_id = $1", [original]);
});
afterAll(() => turns.stop());

/** As many runs like the original, each with a compaction requested: rows and events as its own worker wrote them. */
async function copies(tenant: string, n: number): Promise<string[]> {
  const { rows } = await db.query<{ id: string }>(
    `with made as (select capstan.uuid_v7() as id from generate_series(1, $3::int)), runs as (
       insert into capstan.runs
       select (jsonb_populate_record(null::capstan.runs, to_jsonb(r) || jsonb_build_object('id', m.id, 'tenant', $2::text))).* from made m cross join capstan.runs r where r.id = $1
       returning id)
     select id from runs`,
    [original, tenant, n],
  );
  const ids = rows.map(({ id }) => id);
  await db.query(
    `insert into capstan.events
     select (jsonb_populate_record(null::capstan.events, to_jsonb(e) - 'payload' || jsonb_build_object('run_id', m.id, 'payload',
       case e.type when 'compaction.requested' then e.payload::jsonb || jsonb_build_object('task_id', gen_random_uuid()) else e.payload::jsonb end))).*
     from unnest($2::uuid[]) as m(id) cross join capstan.events e where e.run_id = $1 order by m.id, e.seq`,
    [original, ids],
  );
  return ids;
}

async function inState(tenant: string, state: string): Promise<number> {
  const { rows } = await db.query<{ n: number }>("select count(*)::int as n from capstan.compaction_tasks where tenant = $1 and state = $2", [tenant, state]);
  return rows[0]?.n ?? 0;
}

const allApplied = (tenant: string, n: number): Promise<unknown> =>
  eventually(`all of ${tenant} are compacted`, async () => (await inState(tenant, "applied")) === n, { withinMs: 200_000, describe: async () => await states(tenant) });

async function states(tenant: string): Promise<string> {
  return JSON.stringify((await db.query("select state, wait_reason, count(*)::int as n from capstan.compaction_tasks where tenant = $1 group by 1, 2", [tenant])).rows);
}

/** Holds every summary until the test lets it go. */
class Stepper {
  readonly #held = new Set<{ readonly runId: string | undefined; readonly release: () => void }>();
  #open = false;

  readonly summarizer: SummarizerFunction = async ({ messages, signal }) => {
    const runId = /of run ([0-9a-f-]{36})/.exec(JSON.stringify(messages))?.[1];
    if (this.#open) return { summary: SUMMARY };
    await new Promise<void>((release) => {
      const call = { runId, release };
      this.#held.add(call);
      // Of a task that was taken away: nobody waits for it any more.
      signal?.addEventListener("abort", () => this.#held.delete(call), { once: true });
    });
    return { summary: SUMMARY };
  };

  get held(): number {
    return this.#held.size;
  }

  has(runId: string): boolean {
    return [...this.#held].some((call) => call.runId === runId);
  }

  step(): void {
    const [next] = this.#held;
    if (next === undefined) return;
    this.#held.delete(next);
    next.release();
  }

  open(): void {
    this.#open = true;
    while (this.held > 0) this.step();
  }
}

const summaries = (summarizer: SummarizerFunction, more: Parameters<typeof bench.worker>[1] = {}) =>
  // Leases as long as a user's: nobody dies here, and a busy machine must not make it look so.
  bench.worker("summarize", { summarizers: { note: summarizer }, settings: { poolMax: 4, sweepMs: 300, lostJobMs: 3_000, slots: SLOTS }, ...more });

describe("a tenant with two hundred compactions waiting", () => {
  it("holds no more than its share of few slots, however long its summaries take", { timeout }, async () => {
    const many = await copies("many", 200);
    const stepper = new Stepper();
    const worker = await summaries(stepper.summarizer);
    await eventually("all slots are taken", () => stepper.held === SLOTS, { withinMs: 60_000 });
    const single = await bench.enqueue("manual", { pool: POOL, tenant: "single" });
    await bench.rests(single);
    // Rounds of relay and sweep go by: nothing may be put into the queue behind which the single one would stand.
    const since = performance.now();
    while (performance.now() - since < 5_000) {
      const { rowCount } = await db.query("select from graphile_worker.jobs where task_identifier like 'capstan/summarize/%'");
      expect(rowCount).toBeLessThanOrEqual(SLOTS + 1);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    await db.query("select capstan.compact_run($1)", [single]);
    await bench.untilTask(single, "the single task waits", ({ state }) => state === "requested");
    let steps = 0;
    for (; !stepper.has(single); steps++) {
      stepper.step();
      await eventually("the next begins", () => stepper.held === SLOTS, { withinMs: 60_000 });
    }
    // One stood ready for the next slot, and the other has its turn first.
    expect(steps).toBeLessThanOrEqual(SLOTS + 1);
    stepper.open();
    await bench.rests(single);
    await allApplied("many", 200);
    expect(await bench.breaches(single)).toEqual([]);
    for (const runId of many.slice(0, 5)) expect(await bench.of(runId, "context.compacted")).toHaveLength(1);
    await worker.stop();
  });
});

describe("a tenant whose quota of summaries is spent", () => {
  it("waits, visibly, while another's is made at once; nothing is lost when there is quota again", { timeout }, async () => {
    await copies("spent", 40);
    const worker = await summaries(async () => await Promise.resolve({ summary: SUMMARY }), {
      quotas: [{ scope: "tenant", value: "spent", kind: "summary", unit: "calls", window: "day", amount: 2 }],
    });
    await eventually("its quota is used", async () => (await inState("spent", "applied")) === 2, { withinMs: 60_000, describe: async () => await states("spent") });
    const single = await bench.enqueue("manual", { pool: POOL, tenant: "other" });
    await bench.rests(single);
    await db.query("select capstan.compact_run($1)", [single]);
    await bench.untilTask(single, "the other's compaction is done", ({ state }) => state === "applied");
    await eventually("the rest say why they wait", async () => {
      const { rows } = await db.query("select from capstan.compaction_tasks where tenant = 'spent' and state = 'requested' and wait_reason = 'quota'");
      return rows.length === 38;
    });
    expect(await inState("spent", "applied")).toBe(2);
    await db.query(`insert into capstan.quota_limits (scope, value, kind, unit, "window", amount) values ('tenant', 'spent', 'summary', 'calls', 'day', 1000)`);
    await allApplied("spent", 40);
    expect(await bench.breaches(single)).toEqual([]);
    await worker.stop();
  });

  it("tells a run at its hard line after a quarter of an hour, although nobody takes its tasks up (spec: bounded)", { timeout }, async () => {
    const [hard, soft] = (await copies("never", 2)) as [string, string];
    await db.query("update capstan.compaction_tasks set requested_at = requested_at - interval '16 min', due_at = due_at - interval '16 min' where tenant = 'never'");
    await db.query(`update capstan.compaction_tasks set request = request || '{"hard": true}' where run_id = $1`, [hard]);
    const worker = await summaries(async () => await Promise.resolve({ summary: SUMMARY }), {
      quotas: [{ scope: "tenant", value: "never", kind: "summary", unit: "calls", window: "day", amount: 0 }],
    });
    await bench.untilTask(hard, "the run is told", ({ state }) => state === "failed");
    expect((await bench.of(hard, "compaction.failed")).map(({ payload }) => payload.reason)).toEqual(["quota"]);
    await bench.untilTask(soft, "the other goes on waiting", ({ state }) => state === "requested");
    await worker.stop();
  });
});

describe("the relay's statement", () => {
  it("reads the next few tasks of each tenant, whether ten wait or ten thousand", { timeout }, async () => {
    const client = await db.connect();
    try {
      await client.query(
        `insert into capstan.compaction_tasks (id, run_id, tenant, agent, state, trigger, requested_at, updated_at, due_at, view_epoch, from_seq, to_seq, first_kept_seq, request)
         select gen_random_uuid(), gen_random_uuid(), case when n <= 10000 then 'crowd' else 'tenant ' || n end, 'nobody', case when n <= 40000 and n > 10020 then 'applied' else 'requested' end,
           'auto', now() - n * interval '1 s', now(), now() - n * interval '1 s', 0, 1, 20, 21, '{}' from generate_series(1, 40000) n`,
      );
      await client.query("set plan_cache_mode = force_generic_plan");
      await client.query(`prepare dispatch_tasks (text[], text[], int) as ${DISPATCH_TASKS_SQL.replaceAll("$3", "$3::int")}`);
      for (const known of [false, true]) {
        if (known) await client.query("analyze capstan.compaction_tasks");
        await client.query("begin");
        const { rows } = await client.query<{ "QUERY PLAN": [{ Plan: PlanNode }] }>("explain (analyze, format json) execute dispatch_tasks (array['nobody'], '{}', 3)");
        await client.query("rollback");
        const read = rowsRead((rows[0] as { "QUERY PLAN": [{ Plan: PlanNode }] })["QUERY PLAN"][0].Plan);
        // Twenty tenants beside the crowd, each with a step to find it and its own next few.
        expect(read, known ? "analyzed" : "not analyzed").toBeLessThan(500);
      }
    } finally {
      await client.query("deallocate all");
      await client.query("delete from capstan.compaction_tasks where agent = 'nobody'");
      client.release();
    }
  });
});

interface PlanNode {
  readonly "Relation Name"?: string;
  readonly "Actual Rows": number;
  readonly "Actual Loops": number;
  readonly "Rows Removed by Filter"?: number;
  readonly Plans?: readonly PlanNode[];
}

/** Rows of tasks that a plan looked at. */
function rowsRead(node: PlanNode): number {
  const own = node["Relation Name"] === "compaction_tasks" ? (node["Actual Rows"] + (node["Rows Removed by Filter"] ?? 0)) * node["Actual Loops"] : 0;
  return own + (node.Plans ?? []).reduce((sum, child) => sum + rowsRead(child), 0);
}
