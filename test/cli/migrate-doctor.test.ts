import { randomUUID } from "node:crypto";
import pg from "pg";
import { afterAll, describe, expect, inject, it } from "vitest";
import { judgeHorizon, judgeJournalGuard, judgeListen, judgeSchema, judgeServer } from "../../src/cli/doctor/server.ts";
import { judgeWorkers } from "../../src/cli/doctor/work.ts";
import { horizonFacts, journalGuardFacts, queueFacts, type ServerFacts } from "../../src/store/doctor-queries.ts";
import { migrationStatus } from "../../src/store/migrate.ts";
import { createDatabaseOn } from "../../src/testing/databases.ts";
import { capstan } from "./support.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();
const db = new pg.Pool({ connectionString: database.url, max: 3 });
afterAll(() => db.end());

interface FindingJson {
  readonly check: string;
  readonly level: string;
  readonly found: string;
}

it("a database that is not migrated is told apart by every command, and migrate brings it up", { timeout: 180_000 }, async () => {
  const empty = await createDatabaseOn(inject("postgresUrl"), undefined, {});
  const env = { DATABASE_URL: empty.url };
  try {
    expect(await capstan(["migrate", "--check", "--json"], { env })).toMatchObject({ code: 3, stdout: expect.stringContaining('"status":"behind","applied":0') as string });
    expect(await capstan(["runs", "list"], { env })).toMatchObject({ code: 3, stdout: "", stderr: expect.stringMatching(/^NOT_MIGRATED: .*capstan migrate/) as string });
    const migrated = await capstan(["migrate", "--json"], { env });
    expect(migrated.code).toBe(0);
    const { applied, known } = JSON.parse(migrated.stdout) as { applied: number; known: number };
    expect(applied).toBe(known);
    expect(await migrationStatus({ connectionString: empty.url })).toEqual({ applied: known, known });
  } finally {
    await empty.drop();
  }
});

describe("doctor", () => {
  it("finds dead workers, runs without a worker, stuck, overdue and crash-looped ones, dead locks, growth and missing keys", { timeout: 180_000 }, async () => {
    const dead = randomUUID();
    await db.query(
      `insert into capstan.workers (id, pool, host, pid, version, started_at, heartbeat_at, lease_ms, slots, agents)
       values ($1, 'turn', 'gone.example', 77, '0.0.1', capstan.now() - interval '1 hour', capstan.now() - interval '10 min', 8000, 4, '{lost}')`,
      [dead],
    );
    const definition = { name: "keyed", model: "anthropic:claude-opus-5-5", fallbacks: ["nowhere:x"], instructions: "", tools: [] };
    await db.query("insert into capstan.agent_definitions (sha, name, definition) values ('sha256:1', 'keyed', $1)", [definition]);
    await db.query("insert into capstan.agents (name, promoted_sha) values ('keyed', 'sha256:1')");
    const ids: Record<string, string> = {};
    for (const name of ["unserved", "held", "overdue", "looped", "parked", "forgotten"]) {
      const { rows } = await db.query<{ id: string }>("select capstan.enqueue_run('lost', 'null') as id");
      ids[name] = (rows[0] as { id: string }).id;
    }
    const long = "updated_at = capstan.now() - interval '10 min'";
    await db.query(`update capstan.runs set state = 'running', worker_id = $2, growth_level = 2, ${long} where id = $1`, [ids["held"], randomUUID()]);
    await db.query(`update capstan.runs set deadline = capstan.now() - interval '5 min', ${long} where id = $1`, [ids["overdue"]]);
    await db.query(`update capstan.runs set state = 'waiting', wait_reason = 'crash_loop', ${long} where id = $1`, [ids["looped"]]);
    await db.query(`update capstan.runs set state = 'waiting', wait_reason = 'agent_missing', ${long} where id = $1`, [ids["parked"]]);
    await db.query(`update capstan.runs set ${long} where id = $1`, [ids["forgotten"]]);
    await db.query("delete from capstan.wishes where run_id = any($1)", [[ids["held"], ids["looped"], ids["parked"], ids["forgotten"]]]);
    await db.query("select graphile_worker.add_job('capstan/turn/other', '{}')");
    await db.query("update graphile_worker._private_jobs set locked_at = now(), locked_by = 'pool-of-the-dead'");
    expect(await queueFacts(db, (text) => text)).toMatchObject({ locked_by_dead: 1, waiting: 0, exhausted: 0 });

    const { code, stdout } = await capstan(["doctor", "--json"], { env: { DATABASE_URL: database.url, ANTHROPIC_API_KEY: "" } });
    const { findings } = JSON.parse(stdout) as { findings: FindingJson[] };
    const bad = findings.filter(({ level }) => level === "warning" || level === "error");
    expect(Object.fromEntries(bad.map(({ check, found }) => [check, found]))).toMatchObject({
      workers: "no worker is alive",
      dead_workers: expect.stringContaining("gone.example pid 77"),
      no_worker_for_agent: expect.stringContaining("2 runs of agent lost"),
      agent_missing: expect.stringContaining(ids["parked"] as string),
      orphaned_runs: expect.stringContaining(ids["held"] as string),
      overdue_runs: expect.stringContaining(ids["overdue"] as string),
      forgotten_runs: expect.stringContaining(ids["forgotten"] as string),
      crash_loop: expect.stringContaining(ids["looped"] as string),
      locked_jobs: expect.stringContaining("1 job"),
      growth_critical: expect.stringContaining(ids["held"] as string),
    });
    const models = bad.filter(({ check }) => check === "models").map(({ found }) => found);
    expect(models.toSorted()).toEqual([expect.stringContaining("no API key"), expect.stringContaining('no provider "nowhere"')]);
    // Nothing of this is beyond repair by starting a worker; a test server without fsync is an error of its own.
    const errors = bad.filter(({ level }) => level === "error").map(({ check }) => check);
    expect(["", "durability"]).toContain(errors.join());
    expect(code).toBe(errors.length === 0 ? 0 : 1);
  });

  it("tells privileges from triggers, and an error when a trigger is off", async () => {
    const asOwner = await journalGuardFacts(db, "capstan");
    expect(asOwner).toMatchObject({ may_rewrite: true, triggers_on: 2 });
    const client = await db.connect();
    try {
      await client.query("set role capstan_app");
      const asApp = await journalGuardFacts(client, "capstan");
      expect(judgeJournalGuard(asApp, "app")).toMatchObject([{ level: "ok", found: expect.stringContaining("by privilege") }]);
      await client.query("reset role; begin; alter table capstan.events disable trigger events_append_only");
      expect(judgeJournalGuard(await journalGuardFacts(client, "capstan"), "postgres")[0]).toMatchObject({ level: "error", check: "journal_triggers" });
      await client.query("rollback");
    } finally {
      client.release();
    }
    expect(judgeJournalGuard(asOwner && { ...asOwner, app_role_exists: false }, "postgres")).toMatchObject([{ level: "warning" }]);
  });

  it("names who holds vacuum back", async () => {
    const client = await db.connect();
    try {
      await client.query("begin isolation level repeatable read; select 1");
      const holders = await horizonFacts(db);
      expect(holders.some(({ source }) => source.startsWith("pid "))).toBe(true);
      expect(judgeHorizon(holders.map((holder) => ({ ...holder, open_ms: 400_000 })))).toMatchObject({ level: "warning", found: expect.stringContaining("open for 6m") });
    } finally {
      await client.query("rollback");
      client.release();
    }
    expect(judgeHorizon([])).toMatchObject({ level: "ok" });
  });

  const healthy: ServerFacts = {
    version: "18.4",
    version_num: 180_004,
    fsync: "on",
    synchronous_commit: "on",
    full_page_writes: "on",
    in_recovery: false,
    read_only: false,
    max_connections: 100,
    connections: 10,
    user: "app",
    is_superuser: false,
    clock_skew_ms: 3,
    round_trip_ms: 2,
  };
  const levels = (facts: Partial<ServerFacts>) =>
    judgeServer({ ...healthy, ...facts })
      .filter(({ level }) => level !== "ok")
      .map(({ check, level }) => `${level} ${check}`);

  it.each<[Partial<ServerFacts>, string[]]>([
    [{}, []],
    [{ fsync: "off" }, ["error durability"]],
    [{ full_page_writes: "off" }, ["error durability"]],
    [{ synchronous_commit: "off" }, ["warning synchronous_commit"]],
    [{ version_num: 140_011 }, ["error postgres_version"]],
    [{ clock_skew_ms: -60_000 }, ["warning clock"]],
    // A slow answer explains the difference.
    [{ clock_skew_ms: 2_500, round_trip_ms: 3_000 }, []],
    [{ connections: 96 }, ["warning connections"]],
    [{ in_recovery: true }, ["error writable"]],
  ])("judges a server with %j", (facts, expected) => {
    expect(levels(facts)).toEqual(expected);
  });

  it("judges schema, notifications and versions", () => {
    expect(judgeSchema({ applied: 1, known: 2 }).level).toBe("error");
    expect(judgeSchema({ applied: 3, known: 2 }).level).toBe("warning");
    expect(judgeSchema({ applied: 2, known: 2 }).level).toBe("ok");
    expect(judgeListen(undefined, false)).toMatchObject({ level: "warning", do: expect.stringContaining("CAPSTAN_DIRECT_DATABASE_URL") });
    const worker = { id: "w", pool: "turn", host: "h", pid: 1, version: "0.0.9", agents: [], slots: 1, busy: 0, silent_ms: 10, lease_ms: 8_000 };
    expect(judgeWorkers([worker], [{ reason: "blocked", n: 1 }], "0.1.0").map(({ check }) => check)).toEqual(["workers", "blocked_workers", "versions"]);
  });
});
