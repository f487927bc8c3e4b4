/** Where runs can be continued from, what a derived run's row says, and how its line is read. */
import fc from "fast-check";
import pg from "pg";
import { afterAll, describe, expect, it } from "vitest";
import type { CapstanEvent } from "../../src/domain/event.ts";
import { evolve, initialState } from "../../src/domain/fold.ts";
import { createClient } from "../../src/client/client.ts";
import { IdempotencyConflictError, UnknownRunError } from "../../src/client/errors.ts";
import { JournalReader } from "../../src/store/journal-reader.ts";
import type { ReadDb } from "../../src/store/line.ts";
import { createTestDatabase } from "../support/database.ts";
import { run as journals } from "../domain/runs.ts";

const database = await createTestDatabase();
const pool = new pg.Pool({ connectionString: database.url, max: 4 });
const client = createClient({ pool });
afterAll(async () => {
  await client.close();
  await pool.end();
});
const same = (text: string): string => text;
const reader = new JournalReader(pool, same);

/** A run with just these events, as a worker would have left it. */
async function store(events: readonly CapstanEvent[]): Promise<string> {
  const { rows } = await pool.query<{ id: string }>(
    "insert into capstan.runs (id, created_at, updated_at, agent, next_seq) values (capstan.uuid_v7(), capstan.now(), capstan.now(), 'writer', $1) returning id",
    [events.length + 1],
  );
  const id = rows[0]?.id as string;
  for (const event of events) {
    await pool.query(
      `insert into capstan.events (run_id, at, append_id, seq, turn, fencing_token, view_epoch, size, version, attempt, type, step_key, payload)
       values ($1, capstan.now(), 1, $2, $3, 0, $4, 1, 1, $5, $6, $7, $8::json)`,
      [id, event.seq, event.turn, event.epoch, event.attempt, event.type, event.stepKey ?? null, JSON.stringify(event.payload)],
    );
  }
  return id;
}

describe("capstan.run_phases", () => {
  it("says of every event of any run what the fold says", async () => {
    for (const events of fc.sample(journals, { numRuns: 40, seed: 7 })) {
      if (events.length === 0) continue;
      const id = await store(events);
      const { rows } = await pool.query<{ from_seq: number; to_seq: number; phase: string }>("select * from capstan.run_phases($1)", [id]);
      const told = rows.flatMap(({ from_seq: from, to_seq: to, phase }) => Array.from({ length: to - from + 1 }, () => phase));
      const state = initialState();
      expect(told).toEqual(events.map((event) => evolve(state, event).phase.kind));
    }
  });
});

describe("a derived run", () => {
  it("has its base's tenant, pool, priority and labels, and neither its parent nor its deadline", async () => {
    const base = await client.enqueue("writer", "write", {
      tenant: "acme",
      subject: "s-1",
      priority: 7,
      labels: ["a", "b"],
      metadata: { k: 1 },
      deadline: new Date("2100-01-01"),
      pool: "slow",
    });
    const fork = await base.fork({ idempotencyKey: "f1", labels: ["c"] });
    const { rows } = await pool.query(
      "select tenant, subject, priority, labels, metadata, deadline, pool, origin, forked_from_run, forked_from_seq, seq_offset, next_seq, turn, taken_over from capstan.runs where id = $1",
      [fork.id],
    );
    const inherited = { tenant: "acme", subject: "s-1", priority: 7, labels: ["c"], metadata: { k: 1 }, deadline: null, pool: "slow" };
    expect(rows).toEqual([{ ...inherited, origin: "fork", forked_from_run: base.id, forked_from_seq: 1, seq_offset: 1, next_seq: 2, turn: 0, taken_over: true }]);
    expect((await pool.query("select ready from capstan.wishes where run_id = $1", [fork.id])).rows).toEqual([{ ready: true }]);
    // The same asked for again, also when the base has gone on; another thing under the same key is refused.
    await base.cancel();
    expect((await base.fork({ idempotencyKey: "f1" })).id).toBe(fork.id);
    await expect(base.fork({ idempotencyKey: "f1", interactive: true })).rejects.toBeInstanceOf(IdempotencyConflictError);
    await expect(client.run("01900000-0000-7000-8000-000000000000").fork()).rejects.toBeInstanceOf(UnknownRunError);
  });

  it("keeps what its parent had handed down to the base", async () => {
    const made = await pool.query<{ id: string }>(
      `select capstan.create_run(agent => 'writer', input => '"write"', created => '{"grants": ["tool:read_*"], "compaction": {"keep_last_n": 2}}') as id`,
    );
    const base = client.run(made.rows[0]?.id as string);
    await pool.query("update capstan.runs set grants = '[\"tool:read_*\"]' where id = $1", [base.id]);
    const fork = await base.fork();
    const [row] = (await pool.query("select r.grants, r.policy, e.payload from capstan.runs r join capstan.events e on e.run_id = r.id where r.id = $1", [fork.id])).rows;
    expect(row).toMatchObject({ grants: ["tool:read_*"], policy: { keep_last_n: 2 }, payload: { grants: ["tool:read_*"], compaction: { keep_last_n: 2 } } });
  });

  it("is made while its base is kept from being deleted, and only then", async () => {
    const base = await client.enqueue("writer", "write");
    const [forking, deleting] = [await pool.connect(), await pool.connect()];
    try {
      await forking.query("begin");
      await forking.query("select capstan.fork_run($1)", [base.id]);
      const { rows } = await deleting.query<{ pid: number }>("select pg_backend_pid() as pid");
      await deleting.query("begin");
      // As a retention must: the lock first, then the question.
      const locked = deleting.query("select 1 from capstan.runs where id = $1 for update", [base.id]);
      for (let waits = false; !waits;) {
        const blocked = await pool.query("select 1 from pg_stat_activity where pid = $1 and wait_event_type = 'Lock'", [rows[0]?.pid]);
        waits = blocked.rows.length > 0;
      }
      await forking.query("commit");
      await locked;
      const deleted = await deleting.query("delete from capstan.runs r where r.id = $1 and not exists (select from capstan.runs f where f.forked_from_run = r.id)", [base.id]);
      expect(deleted.rowCount).toBe(0);
      await deleting.query("rollback");
    } finally {
      forking.release();
      deleting.release();
    }
  });
});

describe("a line", () => {
  it("of many short runs is read in few statements, and any part of it is the same events", async () => {
    let last = await client.enqueue("writer", "write");
    for (let i = 0; i < 30; i++) last = await last.fork();
    let statements = 0;
    const counting: ReadDb = {
      async query<Row extends pg.QueryResultRow>(statement: pg.QueryConfig) {
        statements++;
        return await pool.query<Row>(statement);
      },
    };
    const all = [];
    for await (const row of new JournalReader(counting, same).walk(last.id, { below: 32 })) all.push(row);
    expect(all.map(({ event }) => event.seq)).toEqual(Array.from({ length: 31 }, (_, i) => i + 1));
    expect(new Set(all.map(({ runId }) => runId)).size).toBe(31);
    expect(statements).toBeLessThanOrEqual(3);
    const part = [];
    for await (const row of reader.walk(last.id, { after: 10 })) part.push(row);
    expect(part).toEqual(all.slice(10));
    expect((await reader.load(last.id))?.events).toEqual(all.map(({ event }) => event));
  });

  it("whose base is gone is a damaged journal, not a shorter one", async () => {
    const base = await client.enqueue("writer", "write");
    const fork = await base.fork();
    await pool.query("delete from capstan.runs where id = $1", [base.id]);
    await expect(reader.load(fork.id)).rejects.toMatchObject({ code: "JOURNAL_DAMAGED" });
  });
});
