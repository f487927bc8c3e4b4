/** What the database itself refuses, whoever asks: by role where there are two, by trigger where one role does all. */
import { randomBytes } from "node:crypto";
import pg from "pg";
import { afterAll, beforeAll, describe, expect, inject, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { migrate } from "../../src/store/migrate.ts";
import { createDatabaseOn, type TestDatabase } from "../../src/testing/databases.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { openLab, until } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { calls, doing } from "../bad-input/cases.ts";

const database = await createTestDatabase();
const client = new pg.Client({ connectionString: database.url });
let runId = "";

beforeAll(async () => {
  await client.connect();
  const { rows } = await client.query<{ id: string }>(`select capstan.enqueue_run('some', '"go"') as id`);
  runId = rows[0]?.id ?? "";
});
afterAll(() => client.end());

const attempts = [
  ["change an event", "update capstan.events set type = 'x'"],
  ["delete an event", "delete from capstan.events"],
  ["truncate the journal", "truncate capstan.events"],
  ["delete from a partition", "delete from capstan.events_default"],
  ["truncate a partition", "truncate capstan.events_default"],
] as const;

async function asRole<T>(role: string, work: () => Promise<T>): Promise<T> {
  await client.query(`begin; set local role ${role}`);
  try {
    return await work();
  } finally {
    await client.query("rollback");
  }
}

describe("the application role", () => {
  it.each(attempts)("may not %s", (_, sql) =>
    asRole("capstan_app", () => expect(client.query(sql)).rejects.toMatchObject({ code: "42501", message: expect.stringMatching(/permission denied/) })),
  );

  it("may not switch a trigger off, nor pretend to be retention", async () => {
    await asRole("capstan_app", () => expect(client.query("alter table capstan.events disable trigger all")).rejects.toMatchObject({ code: "42501" }));
    await asRole("capstan_app", async () => {
      await client.query("set local capstan_retention.running = on");
      await expect(client.query("delete from capstan.events")).rejects.toMatchObject({ code: "42501" });
    });
  });

  it("may not change a definition", () =>
    asRole("capstan_app", () => expect(client.query("update capstan.agent_definitions set definition = '{}'")).rejects.toMatchObject({ code: "42501" })));

  it("may enqueue, send and cancel", () =>
    asRole("capstan_app", async () => {
      const { rows } = await client.query<{ id: string }>(`select capstan.enqueue_run('some', '1') as id`);
      await client.query(`select capstan.send($1, '"more"')`, [rows[0]?.id]);
      expect((await client.query("select capstan.cancel_run($1) as ended", [rows[0]?.id])).rows).toEqual([{ ended: true }]);
    }));

  it("is enough for a worker: a whole run with nothing else", async () => {
    const user = `capstan_worker_${randomBytes(4).toString("hex")}`;
    await client.query(`create role ${user} login password 'secret' in role capstan_app`);
    try {
      const url = new URL(database.url);
      [url.username, url.password] = [user, "secret"];
      const own = agent({ name: "limited", model: "scripted:limited", instructions: "Do it.", tools: [doing("big", () => "x".repeat(400_000))] });
      await using lab = await openLab(url.toString(), { agents: [own], models: [scriptedModel([calls("big"), "Done."], { name: "scripted:limited" })] });
      const run = await lab.run(own, "go");
      expect(run.status).toMatchObject({ state: "completed", output: "Done." });
      await lab.intact(run.id);
    } finally {
      await until("the worker's connections to close", async () => {
        const { rows } = await client.query<{ n: number }>("select count(*)::int as n from pg_stat_activity where usename = $1", [user]);
        return rows[0]?.n === 0;
      });
      await client.query(`drop owned by ${user}; drop role ${user}`);
    }
  });
});

describe("the owner, or the only role of a one-role install", () => {
  it.each(attempts)("cannot %s by mistake", async (_, sql) => {
    await expect(client.query(sql)).rejects.toMatchObject({ code: "42501", message: expect.stringMatching(/journal is append-only/), hint: expect.stringContaining("retention") });
  });

  it("a user that may not make roles migrates all the same, and the triggers guard", async () => {
    const user = `plain_${randomBytes(4).toString("hex")}`;
    const serverUrl = inject("postgresUrl");
    let own: TestDatabase | undefined;
    await client.query(`create role ${user} login password 'secret'`);
    try {
      own = await createDatabaseOn(serverUrl);
      await client.query(`alter database ${own.name} owner to ${user}`);
      const url = new URL(own.url);
      [url.username, url.password] = [user, "secret"];
      const report = await migrate({ connectionString: url.toString() });
      expect(report.roles).toMatchObject({ kind: "one_role", reason: expect.stringMatching(/permission denied|must have admin option/) });
      expect(await migrate({ connectionString: url.toString() })).toMatchObject({ applied: 0 });
      const plain = new pg.Client({ connectionString: url.toString() });
      await plain.connect();
      await plain.query(`select capstan.enqueue_run('some', '1')`);
      for (const [, sql] of attempts) await expect(plain.query(sql)).rejects.toMatchObject({ code: "42501", message: expect.stringMatching(/append-only/) });
      await plain.end();
    } finally {
      await own?.drop();
      await client.query(`drop role ${user}`);
    }
  });
});

describe("constraints", () => {
  const update = (set: string) => client.query(`update capstan.runs set ${set} where id = $1`, [runId]);
  it.each([
    ["an unknown state", "state = 'asleep'", "runs_state"],
    ["waiting without a reason", "state = 'waiting'", "runs_waiting_has_reason"],
    ["a reason without waiting", "wait_reason = 'input'", "runs_waiting_has_reason"],
    ["an end without its time", "state = 'completed'", "runs_finished_at"],
    ["a time of an end that has not come", "finished_at = now()", "runs_finished_at"],
    ["an ended run that is held", "state = 'failed', finished_at = now(), worker_id = gen_random_uuid()", "runs_finished_unheld"],
    ["a negative token", "fencing_token = -1", "runs_positive"],
    ["a negative inbox", "inbox_pending = -1", "runs_positive"],
  ])("refuse %s", async (_, set, constraint) => {
    await expect(update(set)).rejects.toMatchObject({ code: "23514", constraint });
  });

  const insert = (values: string) =>
    client.query(
      `insert into capstan.events (run_id, at, append_id, seq, turn, fencing_token, view_epoch, size, version, attempt, type, step_key, codec, payload, payload_sealed) values ($1, now(), 1, ${values})`,
      [runId],
    );
  it.each([
    ["a seq twice", "1, 0, 0, 0, 2, 1, 0, 'x', null, null, '{}', null", "23505"],
    ["seq 0", "0, 0, 0, 0, 2, 1, 0, 'x', null, null, '{}', null", "23514"],
    ["an event without a payload", "2, 0, 0, 0, 2, 1, 0, 'x', null, null, null, null", "23514"],
    ["an event with two payloads", "2, 0, 0, 0, 2, 1, 0, 'x', null, null, '{}', 'x'", "23514"],
    ["a sealed payload without its codec", "2, 0, 0, 0, 2, 1, 0, 'x', null, null, null, 'x'", "23514"],
  ])("refuse %s", async (_, values, code) => {
    await expect(insert(values)).rejects.toMatchObject({ code });
  });

  it("record a step once per run (P3)", async () => {
    await client.query("begin");
    await insert("2, 1, 0, 0, 2, 1, 0, 'x', 'm1', null, '{}', null");
    await expect(insert("3, 1, 0, 0, 2, 1, 0, 'x', 'm1', null, '{}', null")).rejects.toMatchObject({ code: "23505", constraint: expect.stringContaining("step_key") });
    await client.query("rollback");
  });
});

it("a second partition is split off the default one; runs on both sides go on", async () => {
  const chat = agent({ name: "chat", model: "scripted:chat", instructions: "Chat.", interactive: true });
  await using lab = await openLab(database.url, { agents: [chat], models: [scriptedModel(["One.", "Two."], { name: "scripted:chat", by: "turn" })] });
  const low = await lab.run(chat, "hello", {});
  const border = (await client.query<{ id: string }>("select capstan.uuid_v7() as id")).rows[0]?.id ?? "";
  const high = await lab.run(chat, "hello", {});
  expect(low.id < border && border < high.id).toBe(true);

  await client.query(`
    begin;
    set local capstan_retention.running = on;
    alter table capstan.events detach partition capstan.events_default;
    create table capstan.events_late partition of capstan.events for values from ('${border}') to (maxvalue);
    create trigger events_no_truncate before truncate on capstan.events_late for each statement execute function capstan.refuse_rewrite();
    with moved as (delete from capstan.events_default where run_id >= '${border}' returning *) insert into capstan.events select * from moved;
    alter table capstan.events attach partition capstan.events_default default;
    commit`);

  for (const run of [low, high]) {
    await run.handle.send("and?");
    const status = await until("the second answer", async () => {
      const now = await run.handle.status();
      return now.turn === 2 && now.state === "waiting" ? now : undefined;
    });
    expect(status.wait_reason).toBe("input");
    await lab.intact(run.id);
  }
  const { rows } = await client.query(
    "select tableoid::regclass::text as part, count(distinct run_id)::int as runs from capstan.events where run_id = any($1::uuid[]) group by 1 order by 1",
    [[low.id, high.id]],
  );
  expect(rows).toEqual([
    { part: "capstan.events_default", runs: 1 },
    { part: "capstan.events_late", runs: 1 },
  ]);
  await expect(client.query("truncate capstan.events_late")).rejects.toMatchObject({ code: "42501" });
  await expect(client.query("delete from capstan.events_late")).rejects.toMatchObject({ code: "42501" });
  await expect(client.query(`insert into capstan.events select * from capstan.events where run_id = '${high.id}' limit 1`)).rejects.toMatchObject({ code: "23505" });
});
