/** A tenant with 10,000 queued runs beside tenants with one: who is served when, and what it costs to find out. */
import type pg from "pg";
import { afterAll, expect, it } from "vitest";
import { DISPATCH_SQL } from "../../src/queue/sql/relay.ts";
import { createPool } from "../../src/store/pool.ts";
import { createTestDatabase } from "../support/database.ts";
import { queueBench } from "./queue-bench.ts";

const database = await createTestDatabase();
const { db } = queueBench(database.url);
// As a relay's own connections are.
const relayPool = createPool({ connectionString: database.url, max: 1, applicationName: "fairness relay", pinnedPlans: true });
afterAll(() => relayPool.end());

interface Picked {
  readonly run_id: string | null;
  readonly tenant: string;
  readonly more: boolean;
}

const dispatch = async (pool: string, room: number, cursor: string, by: Pick<pg.Pool, "query"> = relayPool): Promise<Picked[]> =>
  (await by.query<Picked>(DISPATCH_SQL, [pool, ["plain"], room, cursor])).rows;

/** As a relay goes on: behind the tenant that was served last. */
async function serve(pool: string, room: number, rounds: number, cursor = ""): Promise<string[][]> {
  const served: string[][] = [];
  for (let n = 0, last = cursor; n < rounds; n++) {
    const picked = await dispatch(pool, room, last);
    served.push(picked.map(({ tenant }) => tenant));
    last = picked.at(-1)?.tenant ?? last;
  }
  return served;
}

/** Wishes alone, by the thousand: a relay looks at nothing else. */
async function wishes(pool: string, tenant: string, count: number, { priority = 0, minutesAgo = 0, agent = "plain" } = {}): Promise<void> {
  await db.query(
    `insert into capstan.wishes (run_id, at, priority, ready, pool, agent, tenant)
     select capstan.uuid_v7(), capstan.now() - $5::int * interval '1 minute' + n * interval '1 ms', $4, true, $1, $6, $2 from generate_series(1, $3::int) n`,
    [pool, tenant, count, priority, minutesAgo, agent],
  );
}

it("serves tenants in turn, whoever has waited longer and whatever priorities the others have", async () => {
  await wishes("turns", "flood", 10_000, { priority: -1000, minutesAgo: 60 });
  await wishes("turns", "late", 3, { priority: 1000 });
  await wishes("turns", "more", 1);
  // One slot becomes free at a time: with room for one, the flood would win each time by age or priority.
  expect((await serve("turns", 1, 8)).flat()).toEqual(["flood", "late", "more", "flood", "late", "flood", "late", "flood"]);
  await wishes("turns", "late", 2);
  // With more room than tenants each has one before any has a second.
  expect(await serve("turns", 5, 2, "more")).toEqual([
    ["flood", "late", "flood", "late", "flood"],
    ["flood", "flood", "flood", "flood", "flood"],
  ]);
});

it("goes on behind the tenant that was served last, so that more tenants than there is room for all have their turn", async () => {
  for (let n = 0; n < 12; n++) await wishes("many", `t${String(n).padStart(2, "0")}`, 3);
  const names = Array.from({ length: 12 }, (_, n) => `t${String(n).padStart(2, "0")}`);
  expect(await serve("many", 5, 8)).toEqual(Array.from({ length: 8 }, (_, round) => Array.from({ length: round < 7 ? 5 : 1 }, (_unused, n) => names[(round * 5 + n) % 12])));
});

it("passes over tenants that stand still or have nothing for its agents, and finds those behind them", async () => {
  for (let n = 0; n < 6; n++) await wishes("others", `a${n}`, 50, { agent: "another" });
  await wishes("others", "b", 1);
  await wishes("others", "c", 1);
  await db.query("select capstan.pause_all(tenant => 'b')");
  const found: Picked[] = [];
  let cursor = "";
  for (let n = 0; n < 5 && found.length === 0; n++) {
    const picked = await dispatch("others", 3, cursor);
    cursor = picked.at(-1)?.tenant ?? cursor;
    found.push(...picked.filter(({ run_id: runId }) => runId !== null));
  }
  expect(found.map(({ tenant }) => tenant)).toEqual(["c"]);
  await db.query("select capstan.resume_all(tenant => 'b')");
  expect((await serve("others", 3, 3, cursor)).flat()).toContain("b");
});

it("a dispatch reads no more with 10,000 wishes waiting than with 30", async () => {
  const pagesOf = async (pool: string, room: number): Promise<number> => {
    const client = await relayPool.connect();
    try {
      await client.query("begin");
      const { rows } = await client.query<{ "QUERY PLAN": [{ Plan: Record<string, number> }] }>(
        `explain (analyze, buffers, format json) ${DISPATCH_SQL.replaceAll("$1", `'${pool}'::text`).replaceAll("$2", "array['plain']").replaceAll("$3", String(room)).replaceAll("$4", "''::text")}`,
      );
      await client.query("rollback");
      const plan = rows[0]?.["QUERY PLAN"][0].Plan ?? {};
      return (plan["Shared Hit Blocks"] ?? 0) + (plan["Shared Read Blocks"] ?? 0);
    } finally {
      client.release();
    }
  };
  await wishes("small", "one", 30);
  await wishes("large", "one", 10_000);
  await wishes("large", "two", 1);
  await db.query("analyze capstan.wishes");
  await dispatch("large", 1, "");
  await dispatch("small", 1, "");
  const [small, large] = [await pagesOf("small", 10), await pagesOf("large", 10)];
  console.log(`a dispatch of 10 touches ${small} pages with 30 wishes of a tenant, ${large} with 10,000 and another tenant's one`);
  expect(large).toBeLessThan(small + 80);
});
