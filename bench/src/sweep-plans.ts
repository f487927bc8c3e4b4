/** What the sweeps' statements cost on a database, as Postgres itself says it. Nothing is changed: each is rolled back. */
import { HELD_HERE_SQL, LINES_SQL, LOST_JOBS_SQL, SWEEP_SQL, UNPARK_SQL } from "../../src/queue/sql/sweep.ts";
import { DISPATCH_SQL, PROMOTE_SQL } from "../../src/queue/sql/relay.ts";
import { DISPATCH_TASKS_SQL, DROP_TASKS_SQL, FREE_TASKS_SQL } from "../../src/queue/sql/summarize.ts";
import { onServer } from "./server.ts";

const NOBODY = "00000000-0000-7000-8000-000000000000";
const agents = ["auditor", "talks", "asks", "sleeps", "spawns"];
const statements: readonly (readonly [name: string, text: string, values: readonly unknown[]])[] = [
  ["leases (sweep)", SWEEP_SQL, [NOBODY]],
  ["lost jobs (sweep)", LOST_JOBS_SQL, [30_000]],
  ["agent missing (sweep)", UNPARK_SQL, [30_000]],
  ["runs held here (sweep)", HELD_HERE_SQL, [NOBODY, "turn"]],
  ["lines of concurrency keys (sweep)", LINES_SQL, []],
  ["timers (relay)", PROMOTE_SQL, []],
  ["dispatch (relay)", DISPATCH_SQL, ["turn", agents, 50, ""]],
  ["summaries: dispatch", DISPATCH_TASKS_SQL, [agents, [], 8]],
  ["summaries: dead claimants", FREE_TASKS_SQL, [3, 30_000]],
  ["summaries: ended runs", DROP_TASKS_SQL, []],
];

export interface StatementCost {
  readonly name: string;
  readonly ms: number;
  /** Pages of 8 KB that were looked at. */
  readonly pages: number;
  readonly plan: string;
}

interface Explained {
  readonly "Execution Time": number;
  readonly Plan: { readonly "Shared Hit Blocks": number; readonly "Shared Read Blocks": number };
}

/** The second of two goes: the first reads plans and pages. */
export async function sweepCosts(url: string): Promise<StatementCost[]> {
  return await onServer(url, async (client) => {
    // As on a worker that lives, or sweeps would have nobody to find work for.
    await client.query(
      `insert into capstan.workers (id, pool, host, pid, version, started_at, heartbeat_at, lease_ms, slots, agents) values ($1, 'turn', 'bench', 1, '0', capstan.now(), capstan.now(), 3600000, 20, $2) on conflict do nothing`,
      [NOBODY, agents],
    );
    const costs: StatementCost[] = [];
    for (const [name, text, values] of statements) {
      let cost: StatementCost | undefined;
      for (let go = 0; go < 2; go++) {
        await client.query("begin");
        const { rows } = await client.query<{ "QUERY PLAN": readonly [Explained] }>(`explain (analyze, buffers, format json) ${text}`, [...values]);
        await client.query("rollback");
        const [explained] = (rows[0] as { "QUERY PLAN": readonly [Explained] })["QUERY PLAN"];
        const { Plan: plan } = explained;
        cost = { name, ms: explained["Execution Time"], pages: plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], plan: JSON.stringify(plan) };
      }
      costs.push(cost as StatementCost);
    }
    await client.query("delete from capstan.workers where id = $1", [NOBODY]);
    return costs;
  });
}
