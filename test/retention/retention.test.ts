/** What goes and what stays, and what is left of a run that went. */
import pg from "pg";
import { randomBytes } from "node:crypto";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import { RetentionClient, type RetentionFilter } from "../../src/client/retention.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { createTestDatabase } from "../support/database.ts";
import { openLab, until, type Lab } from "../engine/harness.ts";
import { rowsOfRun, tablesWithRows } from "./tables.ts";

const database = await createTestDatabase();
const DAY = 86_400_000;
const month: RetentionFilter = { olderThanMs: 30 * DAY };
const big = randomBytes(300_000).toString("hex");
const fetchBig = tool({ name: "fetch", description: "Fetches.", input: z.object({}), effect: "read", execute: () => big });
const reader = agent({ name: "reader", model: "scripted:reader", instructions: "Read.", tools: [fetchBig] });
const chat = agent({ name: "chat", model: "scripted:chat", instructions: "Chat." });

let lab: Lab;
let retention: RetentionClient;
let client: pg.Client;
beforeAll(async () => {
  lab = await openLab(database.url, {
    agents: [reader, chat],
    models: [
      scriptedModel([{ toolCalls: [{ name: "fetch" }] }, "Read."], { name: "scripted:reader", by: "turn" }),
      scriptedModel(["Said."], { name: "scripted:chat", by: "turn" }),
    ],
  });
  retention = new RetentionClient(lab.db, (text) => text);
  client = new pg.Client({ connectionString: database.url });
  await client.connect();
});
afterAll(async () => {
  await client.end();
  await lab[Symbol.asyncDispose]();
});

let tenants = 0;
const newTenant = (): string => `tenant-${++tenants}`;
const ended = async (tenant: string, of: "chat" | "reader" = "chat"): Promise<string> => (await lab.run(of, "go", { tenant })).id;
const age = (ids: readonly string[], days: number) =>
  client.query("update capstan.runs set finished_at = capstan.now() - $2 * interval '1 day' where id = any($1::uuid[])", [ids, days]);
const oldRun = async (tenant: string, of: "chat" | "reader" = "chat"): Promise<string> => {
  const id = await ended(tenant, of);
  await age([id], 40);
  return id;
};
const there = async (ids: readonly string[]): Promise<string[]> =>
  (await client.query<{ id: string }>("select id from capstan.runs where id = any($1::uuid[]) order by id", [ids])).rows.map(({ id }) => id);

describe("ended runs that are old enough", () => {
  it("go with everything that is theirs, and leave their usage behind", async () => {
    const tenant = newTenant();
    const gone = await oldRun(tenant, "reader");
    const [young, other] = [await ended(tenant), await oldRun(newTenant())];
    const before = (await client.query("select * from capstan.usage_by_day where tenant = $1 order by kind, agent, model", [tenant])).rows;
    expect(before.map(({ kind, calls }) => `${kind} ${calls}`)).toEqual(["tool 1", "turn 1", "turn 2"]);
    expect(await retention.preview({ ...month, tenant })).toMatchObject({ matched: 1, deletable: 1, kept: {} });

    const report = await retention.deleteEnded({ ...month, tenant });
    expect(report).toMatchObject({ deleted: 1, kept: {}, refused: [], complete: true, content: { blobs: 1, left: 0 } });
    expect(report.tables["events"]?.rows).toBe(7);
    expect(report.content.bytes).toBe(big.length);
    expect(await there([gone, young, other])).toEqual([young, other]);
    expect(await rowsOfRun(client, gone)).toEqual([]);
    expect((await client.query("select from capstan.blob_chunks where tenant = $1", [tenant])).rowCount).toBe(0);
    expect((await client.query("select * from capstan.usage_by_day where tenant = $1 order by kind, agent, model", [tenant])).rows).toEqual(before);
    await lab.intact(young);
    await expect(lab.capstan.run(gone).status()).rejects.toMatchObject({ code: "RUN_MISSING" });
    expect(await retention.deleteEnded({ ...month, tenant })).toMatchObject({ deleted: 0, complete: true });
  });

  it("are chosen by agent, state and tenant", async () => {
    const tenant = newTenant();
    const [one, two] = [await oldRun(tenant, "chat"), await oldRun(tenant, "reader")];
    const cancelled = await lab.capstan.enqueue("chat", "go", { tenant, runAt: new Date(Date.now() + DAY) });
    await cancelled.cancel();
    await age([cancelled.id], 40);
    await retention.deleteEnded({ ...month, tenant, agent: "reader" });
    expect(await there([one, two, cancelled.id])).toEqual([one, cancelled.id]);
    await retention.deleteEnded({ ...month, tenant, states: ["cancelled"] });
    expect(await there([one, two, cancelled.id])).toEqual([one]);
    await expect(retention.deleteEnded({ ...month, states: ["running"] })).rejects.toMatchObject({ code: "ARGUMENT_INVALID" });
  });

  it("stay while they are held, and go when they are released", async () => {
    const tenant = newTenant();
    const id = await oldRun(tenant);
    expect(await retention.hold(id, { reason: "an inquiry", actor: "ann" })).toBe(true);
    expect(await retention.hold(id)).toBe(false);
    expect(await retention.deleteEnded({ ...month, tenant })).toMatchObject({ deleted: 0, kept: { hold: 1 } });
    expect(await retention.release(id, { actor: "ann" })).toBe(true);
    expect(await retention.release(id)).toBe(false);
    expect(await retention.deleteEnded({ ...month, tenant })).toMatchObject({ deleted: 1, kept: {} });
    const { rows } = await client.query("select action, actor, detail from capstan.audit_log where target = $1 order by id", [id]);
    expect(rows).toEqual([
      { action: "run.hold", actor: "ann", detail: { reason: "an inquiry" } },
      { action: "run.release", actor: "ann", detail: null },
    ]);
    await expect(retention.hold(id)).rejects.toMatchObject({ code: "RUN_MISSING" });
  });

  it("stay while a compaction of them is asked for", async () => {
    const tenant = newTenant();
    const id = await oldRun(tenant);
    // A pause keeps the worker from doing it at once.
    await lab.capstan.pauses.pause({ tenant });
    await client.query("select capstan.compact_run($1)", [id]);
    expect(await retention.deleteEnded({ ...month, tenant })).toMatchObject({ deleted: 0, kept: { compaction: 1 } });
    await client.query("update capstan.inbox set at = capstan.now() - interval '35 days' where run_id = $1", [id]);
    expect(await retention.deleteEnded({ ...month, tenant })).toMatchObject({ deleted: 1 });
    expect(await tablesWithRows(client, tenant)).toEqual(["audit_log", "pauses", "usage_rollup"]);
  });
});

describe("what runs refer to", () => {
  it("stays as long as they do, however far back, in whatever batches", async () => {
    const tenant = newTenant();
    const base = await oldRun(tenant, "reader");
    const middle = (await lab.capstan.run(base).fork({ input: "more" })).id;
    await lab.settled(middle);
    const last = (await lab.capstan.run(middle).fork({ input: "and more" })).id;
    await lab.settled(last);
    await age([middle], 40);
    const chain = [base, middle, last].toSorted();
    for (const batch of [1, 100]) {
      expect(await retention.preview({ ...month, tenant })).toMatchObject({ matched: 2, deletable: 0, kept: { referenced: 2 } });
      expect(await retention.deleteEnded({ ...month, tenant }, { batch })).toMatchObject({ deleted: 0, kept: { referenced: 2 }, content: { blobs: 0 } });
      expect(await there(chain)).toEqual(chain);
      await lab.intact(last);
    }
    // A hold on the last keeps what it begins with.
    await age([last], 40);
    await retention.hold(last);
    expect(await retention.deleteEnded({ ...month, tenant })).toMatchObject({ deleted: 0, kept: { hold: 1, referenced: 2 } });
    await retention.release(last);
    expect(await retention.preview({ ...month, tenant })).toMatchObject({ matched: 3, deletable: 3 });
    expect(await retention.deleteEnded({ ...month, tenant }, { batch: 1 })).toMatchObject({ deleted: 3, kept: {}, content: { blobs: 1 } });
    expect(await tablesWithRows(client, tenant)).toEqual(["audit_log", "usage_rollup"]);
  });

  it("goes also when ids are not in the order of time", async () => {
    const tenant = newTenant();
    const base = await oldRun(tenant);
    const fork = (await lab.capstan.run(base).fork({ input: "more" })).id;
    await lab.settled(fork);
    await age([fork], 40);
    const early = "00000000-0000-7000-8000-000000000001";
    await client.query("set session_replication_role = replica");
    await client.query("update capstan.events set run_id = $2 where run_id = $1", [fork, early]);
    await client.query("update capstan.runs set id = $2, root_run_id = $2 where id = $1", [fork, early]);
    await client.query("set session_replication_role = origin");
    expect(await retention.deleteEnded({ ...month, tenant }, { batch: 1 })).toMatchObject({ deleted: 2, kept: {} });
  });

  it("a failed run can be retried also when one of its retries is gone", async () => {
    const tenant = newTenant();
    const base = await lab.capstan.enqueue("chat", "go", { tenant, runAt: new Date(Date.now() + DAY) });
    await base.cancel();
    const first = await base.retry();
    await lab.settled(first.id);
    const second = await base.retry();
    await lab.settled(second.id);
    await age([base.id, first.id], 40);
    expect(await retention.deleteEnded({ ...month, tenant })).toMatchObject({ deleted: 1, kept: { referenced: 1 } });
    const third = await base.retry();
    expect([base.id, first.id, second.id]).not.toContain(third.id);
    expect((await lab.settled(third.id)).state).toBe("completed");
  });

  it("a content stays until the last run that refers to it is gone", async () => {
    const tenant = newTenant();
    const [first, second] = [await oldRun(tenant, "reader"), await ended(tenant, "reader")];
    expect(await retention.deleteEnded({ ...month, tenant })).toMatchObject({ deleted: 1, content: { blobs: 0 } });
    await lab.intact(second);
    await age([second], 40);
    expect(await retention.deleteEnded({ ...month, tenant })).toMatchObject({ deleted: 1, content: { blobs: 1 } });
    expect(await there([first, second])).toEqual([]);
  });

  it("a conversation keeps its runs, unless conversations that rest are to go as a whole", async () => {
    const tenant = newTenant();
    const thread = await lab.capstan.conversations.create({ agent: "chat", tenant });
    const ids: string[] = [];
    for (const text of ["one", "two", "three"]) {
      const run = await thread.send(text);
      await lab.settled(run.id);
      ids.push(run.id);
    }
    await age(ids, 40);
    expect(await retention.deleteEnded({ ...month, tenant })).toMatchObject({ deleted: 0, kept: { conversation: 1, referenced: 2 } });
    // Something was done to it since.
    expect(await retention.deleteEnded({ ...month, tenant, conversations: true })).toMatchObject({ deleted: 0, kept: { conversation: 1, referenced: 2 } });
    await client.query("update capstan.conversations set updated_at = capstan.now() - interval '40 days' where id = $1", [thread.id]);
    expect(await retention.deleteEnded({ ...month, tenant, conversations: true }, { batch: 2 })).toMatchObject({ deleted: 3, kept: {}, tables: { conversations: { rows: 1 } } });
    await expect(thread.send("four")).rejects.toMatchObject({ code: "CONVERSATION_MISSING" });
  });
});

describe("at the same moment", () => {
  it("a fork keeps its base, and one that comes too late finds none", async () => {
    const tenant = newTenant();
    const base = await oldRun(tenant);
    const forker = new pg.Client({ connectionString: database.url });
    await forker.connect();
    try {
      await forker.query("begin");
      const { rows } = await forker.query<{ id: string }>("select capstan.fork_run($1, input => '\"more\"') as id", [base]);
      expect(await retention.deleteEnded({ ...month, tenant })).toMatchObject({ deleted: 0 });
      await forker.query("commit");
      expect(await retention.deleteEnded({ ...month, tenant })).toMatchObject({ deleted: 0, kept: { referenced: 1 } });
      const fork = rows[0]?.id ?? "";
      await lab.settled(fork);
      await lab.intact(fork);

      const lone = await oldRun(tenant);
      await client.query("begin");
      await client.query("select capstan.delete_runs(array[$1::uuid])", [lone]);
      const late = forker.query("select capstan.fork_run($1, input => '\"more\"')", [lone]).then(
        () => undefined,
        (error: unknown) => error,
      );
      await until(
        "the fork to wait",
        async () => ((await lab.db.query("select from pg_stat_activity where wait_event_type = 'Lock' and query like '%fork_run%'")).rowCount ?? 0) > 0,
      );
      await client.query("commit");
      expect(await late).toMatchObject({ code: "KC002" });
    } finally {
      await forker.end();
    }
  });

  it("a content that is stored again while it is deleted is there afterwards", async () => {
    const tenant = newTenant();
    const first = await oldRun(tenant, "reader");
    const { rows } = await client.query<{ sha256: string }>("select sha256 from capstan.blob_refs where run_id = $1", [first]);
    const sha256 = rows[0]?.sha256 ?? "";
    await client.query("select capstan.delete_runs(array[$1::uuid])", [first]);
    await client.query("begin");
    expect((await client.query<{ gone: { blobs: number } }>("select capstan.delete_blobs($1, array[$2]) as gone", [tenant, sha256])).rows[0]?.gone.blobs).toBe(1);
    // Its chunks are still seen by others; its reference has to wait.
    const run = await lab.capstan.enqueue("reader", "go", { tenant });
    await until(
      "the worker to wait",
      async () => ((await lab.db.query("select from pg_stat_activity where wait_event = 'advisory' and query like '%blob_refs%'")).rowCount ?? 0) > 0,
    );
    await client.query("commit");
    expect(await run.result({ timeoutMs: 20_000 })).toBe("Read.");
    await lab.intact(run.id);
    expect(
      (await client.query<{ n: number }>("select sum(octet_length(bytes))::int as n from capstan.blob_chunks where tenant = $1 and sha256 = $2", [tenant, sha256])).rows[0]?.n,
    ).toBe(big.length);
  });

  it("a content that somebody stores in an open transaction is left to the next call", async () => {
    const tenant = newTenant();
    await oldRun(tenant, "reader");
    const storer = new pg.Client({ connectionString: database.url });
    await storer.connect();
    try {
      await storer.query("begin");
      await lab.capstan.enqueue("chat", [{ type: "file", media_type: "text/plain", data: Buffer.from("other") }], { tenant, tx: storer });
      expect(await retention.deleteEnded({ ...month, tenant })).toMatchObject({ deleted: 1, content: { blobs: 0, left: 2 } });
      await storer.query("rollback");
    } finally {
      await storer.end();
    }
    expect(await retention.deleteEnded({ ...month, tenant })).toMatchObject({ deleted: 0, content: { blobs: 1, left: 0 } });
  });
});

it("one function does it, for whoever may execute it, and only under read committed", async () => {
  const tenant = newTenant();
  const id = await oldRun(tenant);
  await client.query("begin isolation level repeatable read");
  await expect(client.query("select capstan.delete_runs(array[$1::uuid])", [id])).rejects.toMatchObject({ code: "KC006" });
  await client.query("rollback");
  await client.query("begin; set local role capstan_app");
  await expect(client.query("select capstan.delete_rows_of(array[$1::uuid], true)", [id])).rejects.toMatchObject({ code: "42501" });
  await client.query("rollback; begin; set local role capstan_app");
  await expect(client.query("select capstan.delete_runs(array[$1::uuid])", [id])).rejects.toMatchObject({ code: "42501" });
  await client.query("rollback");
  const { rows } = await client.query<{ done: { kept: object } }>("select capstan.delete_runs(array[$1::uuid, gen_random_uuid()]) as done", [id]);
  expect(rows[0]?.done).toMatchObject({ deleted: [id], tables: { events: { rows: 4 } } });
  expect(Object.values(rows[0]?.done.kept ?? {})).toEqual(["missing"]);
  await expect(client.query("delete from capstan.events")).rejects.toMatchObject({ code: "42501" });
});
