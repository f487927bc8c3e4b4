/** Followers over HTTP: order, cursors, live text, slow and dead clients, revoked tokens, shutdown, a database that goes away. */
import { randomUUID } from "node:crypto";
import { afterAll, describe, expect, it, onTestFinished } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { createPool } from "../../src/store/pool.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { gatedStream } from "../client/gated-stream.ts";
import { openLab, until, type Lab } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { connectSse, idsOf, type Sse, type SseConnection } from "./sse-client.ts";
import { startStreamApp, type StreamApp } from "./stream-app.ts";

const database = await createTestDatabase();
const talker = agent({ name: "talker", model: "scripted:talker", instructions: "Answer.", interactive: true });
const lab: Lab = await openLab(database.url, {
  agents: [talker],
  models: [
    scriptedModel(
      Array.from({ length: 20 }, () => "well"),
      { name: "scripted:talker", by: "turn" },
    ),
  ],
  settings: { slots: 4 },
});
const db = createPool({ connectionString: database.url, max: 4, applicationName: "stream test" });
let statements = 0;
const counted = new Proxy(db, {
  get(target, key) {
    if (key === "query") statements++;
    const value: unknown = Reflect.get(target, key, target);
    return typeof value === "function" ? (value.bind(target) as unknown) : value;
  },
});
afterAll(async () => {
  await lab[Symbol.asyncDispose]();
  await db.end();
});

async function open(settings: Parameters<typeof startStreamApp>[1] = {}): Promise<StreamApp> {
  const started = await startStreamApp(counted, settings);
  onTestFinished(() => started.app.close());
  return started;
}

const events = (app: StreamApp, runId: string, query = ""): string => `${app.url}/v1/runs/${runId}/events${query}`;
const enqueue = async (): Promise<string> => (await lab.capstan.enqueue(talker, "hello")).id;
const has = (connection: SseConnection, event: string, times = 1): boolean => connection.items.filter((item) => item.event === event).length >= times;
const textOf = (items: readonly Sse[]): string => items.flatMap(({ event, data }) => (event === "delta" ? [(JSON.parse(data) as { text: string }).text] : [])).join("");

/** Events of so many bytes, as a worker would have written them; the run is parked, so no worker looks at them. */
async function grow(run: string, count: number, bytes: number): Promise<number> {
  const { rows } = await db.query<{ last: number }>(
    `with grown as (update capstan.runs set next_seq = next_seq + $2::int where id = $1 returning next_seq - $2::int as first, turn, fencing_token),
       written as (
         insert into capstan.events (run_id, at, append_id, seq, turn, fencing_token, view_epoch, size, version, attempt, type, payload)
         select $1, capstan.now(), 1, g.first + i, g.turn, g.fencing_token, 0, $3, 1, 1, 'test.grown', json_build_object('text', repeat(chr(65 + i % 26), $3))
         from grown g, generate_series(0, $2::int - 1) as i)
     select first + $2::int - 1 as last from grown`,
    [run, count, bytes],
  );
  return rows[0]?.last ?? 0;
}

/** Ids from 1, or from the one after `after`, without gap or double. */
function expectWhole(items: readonly Sse[], after = 0): void {
  const ids = idsOf(items);
  expect(ids).toEqual(ids.map((_, i) => after + i + 1));
}

describe("a stream", () => {
  it("gives the events so far and those that come, each once and in order, and ends with the run", async () => {
    const app = await open();
    const run = await enqueue();
    const reader = connectSse(events(app, run));
    expect(await reader.status).toBe(200);
    expect(await reader.headers).toMatchObject({ "content-type": "text/event-stream", "cache-control": "no-store" });
    await until("the first answer", () => has(reader, "run.parked"));
    await lab.capstan.run(run).send("again");
    await until("the second answer", () => has(reader, "run.parked", 2));
    const late = connectSse(events(app, run));
    const resumed = connectSse(events(app, run, "?after=1"), { headers: { "last-event-id": "3" } });
    await lab.capstan.run(run).cancel();
    await Promise.all([reader.closed, late.closed, resumed.closed]);
    expectWhole(reader.items);
    expect(late.items.filter(({ event }) => event !== "delta")).toEqual(reader.items.filter(({ event }) => event !== "delta"));
    expectWhole(resumed.items, 3);
    for (const { items } of [reader, late, resumed]) {
      expect(items.at(-1)).toEqual({ event: "end", data: '{"state":"cancelled"}' });
      expect(items.at(-2)?.event).toBe("run.cancelled");
    }
    const { last_seq: last } = await lab.capstan.run(run).status();
    expect(idsOf(reader.items).at(-1)).toBe(last);
    const first = JSON.parse(reader.items[0]?.data ?? "") as Record<string, unknown>;
    expect(first).toMatchObject({ seq: 1, type: "run.created", payload: { input: "hello" } });
    expect(app.stream.size).toBe(0);
  });

  it("behind the last event of a run that has ended is empty but for the end", async () => {
    const app = await open();
    const run = await enqueue();
    await lab.capstan.run(run).cancel();
    const { last_seq: last } = await lab.capstan.run(run).status();
    for (const after of [last, last + 100]) {
      const reader = connectSse(events(app, run, `?after=${after}`));
      await reader.closed;
      expect(reader.items).toEqual([{ event: "end", data: '{"state":"cancelled"}' }]);
    }
  });

  it("refuses a cursor that is none, and is not given to those who ask for JSON", async () => {
    const app = await open();
    const run = await enqueue();
    for (const id of ["x", "-1", "1.5", "99999999999", "4294967296"]) {
      const reader = connectSse(events(app, run), { headers: { "last-event-id": id } });
      expect(await reader.status).not.toBe(200);
      await reader.closed;
    }
    for (const accept of ["application/json", "*/*", "text/event-stream;q=0"]) {
      expect(await (await fetch(events(app, run), { headers: { accept } })).json()).toEqual({ accepted: false });
    }
    const head = await fetch(events(app, run), { method: "HEAD", headers: { accept: "text/event-stream" } });
    expect(head.status).toBe(200);
    await lab.capstan.run(run).cancel();
  });

  it("has long journals in pages, for many who come at different places", async () => {
    const app = await open();
    const run = await enqueue();
    const handle = lab.capstan.run(run);
    await lab.settled(run);
    await grow(run, 450, 2_000);
    const readers = Array.from({ length: 40 }, (_, i) => connectSse(events(app, run, `?after=${i * 10}`)));
    await until("all to be there", () => app.stream.size === 40);
    await grow(run, 50, 2_000);
    await handle.cancel();
    await Promise.all(readers.map(({ closed }) => closed));
    for (const [i, { items }] of readers.entries()) {
      expectWhole(items, i * 10);
      expect(idsOf(items).at(-1)).toBeGreaterThan(500);
      expect(items.at(-1)?.event).toBe("end");
    }
  });
});

describe("live text", () => {
  it("comes between its call's events, without ids, to all who have the events so far", async () => {
    const voice = gatedStream();
    const speaker = agent({ name: "speaker", model: "scripted:speaker", instructions: "Speak." });
    await using speaking = await openLab(database.url, { agents: [speaker], models: [scriptedModel([{ stream: voice }], { name: "scripted:speaker" })] });
    const app = await open();
    const { id } = await speaking.capstan.enqueue(speaker, "go");
    const readers = [connectSse(events(app, id)), connectSse(events(app, id))];
    const quiet = connectSse(events(app, id, "?deltas=false"));
    await until("a first piece for both", () => {
      voice.say("·");
      return readers.every(({ items }) => textOf(items).includes("·"));
    });
    const late = connectSse(events(app, id));
    await until("the late one to have the events", () => has(late, "model.requested"));
    voice.say("So it ", "is.");
    await until("the text, before the response", () => [...readers, late].every(({ items }) => textOf(items).endsWith("So it is.")));
    expect(readers.some((reader) => has(reader, "model.responded"))).toBe(false);
    voice.end();
    await Promise.all([...readers, late, quiet].map(({ closed }) => closed));
    for (const { items } of [...readers, late]) {
      expectWhole(items);
      const kinds = items.map(({ event }) => event);
      expect(kinds.indexOf("delta")).toBeGreaterThan(kinds.indexOf("model.requested"));
      expect(kinds.lastIndexOf("delta")).toBeLessThan(kinds.indexOf("model.responded"));
      expect(items.filter(({ event, id: seq }) => event === "delta" && seq !== undefined)).toEqual([]);
    }
    expectWhole(quiet.items);
    expect(textOf(quiet.items)).toBe("");
  });
});

describe("clients that do not read", () => {
  it("are cut off, lose nothing when they come again, and slow nobody", async () => {
    const app = await open({ settings: { bufferBytes: 64 * 1024, stallMs: 1_500 } });
    const run = await enqueue();
    const handle = lab.capstan.run(run);
    await lab.settled(run);
    const quick = connectSse(events(app, run));
    const slow = Array.from({ length: 20 }, () => connectSse(events(app, run)));
    await until("all to be there", () => app.stream.size === 21 && slow.every((reader) => has(reader, "run.parked")));
    for (const reader of slow) reader.pause();
    // Far more than the kernel keeps for a connection.
    const last = await grow(run, 30, 500_000);
    await until("the quick one to have all", () => idsOf(quick.items).at(-1) === last, 60_000);
    expectWhole(quick.items);
    await until("the slow ones to be cut off", () => app.stream.size === 1, 60_000);
    const [one] = slow as [SseConnection];
    const had = idsOf(one.items).at(-1) ?? 0;
    expect(had).toBeLessThan(last);
    const again = connectSse(events(app, run), { headers: { "last-event-id": String(had) } });
    await handle.cancel();
    await Promise.all([quick.closed, again.closed]);
    expectWhole(again.items, had);
    expect(again.items.at(-1)?.event).toBe("end");
    for (const reader of slow) reader.close();
  });

  it("and are only slow get everything over the one connection", async () => {
    const app = await open({ settings: { bufferBytes: 64 * 1024 } });
    const run = await enqueue();
    const handle = lab.capstan.run(run);
    await lab.settled(run);
    await grow(run, 40, 200_000);
    await handle.cancel();
    const response = await fetch(events(app, run), { headers: { accept: "text/event-stream" } });
    let text = "";
    const decoder = new TextDecoder();
    for await (const piece of response.body ?? []) {
      text += decoder.decode(piece, { stream: true });
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    const ids = [...text.matchAll(/^id: (\d+)$/gm)].map(([, id]) => Number(id));
    expect(ids).toEqual(ids.map((_, i) => i + 1));
    expect(ids).toHaveLength((await handle.status()).last_seq);
    expect(text.endsWith('event: end\ndata: {"state":"cancelled"}\n\n')).toBe(true);
  });
});

describe("a token", () => {
  const insert = async (expires: string): Promise<string> => {
    const id = randomUUID();
    await db.query(
      `insert into capstan.api_tokens (id, name, hash, tenant, scopes, expires_at) values ($1::text::uuid, 'stream ' || $1::text, sha256(convert_to($1::text, 'UTF8')), 'default', '{runs:read}', capstan.now() + $2::interval)`,
      [id, expires],
    );
    return id;
  };

  it("that is revoked or expires ends its streams with a problem, and no others", async () => {
    const app = await open({ settings: { tokenCheckMs: 200 } });
    const run = await enqueue();
    const [revoked, expiring, good] = await Promise.all([insert("1 hour"), insert("2 seconds"), insert("1 hour")]);
    const readers = [revoked, expiring, good].map((id) => connectSse(events(app, run), { headers: { "x-token-id": id } }));
    const without = connectSse(events(app, run));
    await until("all to be there", () => app.stream.size === 4);
    await db.query("update capstan.api_tokens set revoked_at = capstan.now() where id = $1", [revoked]);
    const [first, second, third] = readers as [SseConnection, SseConnection, SseConnection];
    await Promise.all([first.closed, second.closed]);
    for (const { items } of [first, second]) {
      expect(items.at(-1)?.event).toBe("problem");
      expect(JSON.parse(items.at(-1)?.data ?? "")).toMatchObject({ status: 401 });
    }
    expect(app.stream.size).toBe(2);
    await lab.capstan.run(run).cancel();
    await Promise.all([third.closed, without.closed]);
    expect(third.items.at(-1)?.event).toBe("end");
  });
});

describe("what many followers cost", () => {
  it("is some statements a second, not some for each of them", async () => {
    const app = await open();
    const runs = await Promise.all(Array.from({ length: 30 }, enqueue));
    await Promise.all(runs.map((run) => lab.settled(run)));
    const readers = Array.from({ length: 300 }, (_, i) => connectSse(events(app, runs[i % runs.length] as string)));
    await until("all to be there", () => readers.every((reader) => has(reader, "run.parked")));
    const before = statements;
    const startedMs = performance.now();
    await new Promise((resolve) => setTimeout(resolve, 3_000));
    const perSecond = ((statements - before) * 1_000) / (performance.now() - startedMs);
    expect(perSecond).toBeLessThan(6);
    expect(perSecond).toBeGreaterThan(0.5);
    const { rows } = await db.query<{ n: number }>("select count(*)::int as n from pg_stat_activity where datname = current_database() and application_name = 'capstan follow'");
    expect(rows[0]?.n).toBe(1);
    // Each of ten events is read for one run, and told to its ten followers.
    await lab.capstan.run(runs[0] as string).send("again");
    await until("ten to have the answer", () => readers.filter((_, i) => i % 30 === 0).every((reader) => has(reader, "run.parked", 2)));
    await Promise.all(runs.map((run) => lab.capstan.run(run).cancel()));
    await Promise.all(readers.map(({ closed }) => closed));
    for (const { items } of readers) {
      expectWhole(items);
      expect(items.at(-1)?.event).toBe("end");
    }
    await until("the connection to be closed", async () => {
      const after = await db.query("select from pg_stat_activity where datname = current_database() and application_name = 'capstan follow'");
      return after.rowCount === 0;
    });
  });

  it("shows a sign of life while nothing happens", async () => {
    const app = await open({ settings: { keepaliveMs: 500 } });
    const run = await enqueue();
    const reader = connectSse(events(app, run));
    await until("comments", () => reader.comments >= 2);
    expect(has(reader, "end")).toBe(false);
    await lab.capstan.run(run).cancel();
    await reader.closed;
  });
});

describe("an API that shuts down", () => {
  it("ends its streams at once, also of clients that do not read; they go on at another", async () => {
    const app = await startStreamApp(db);
    onTestFinished(() => app.app.close());
    const run = await enqueue();
    const handle = lab.capstan.run(run);
    await lab.settled(run);
    const reader = connectSse(events(app, run));
    const stuck = connectSse(events(app, run));
    await until("both to be there", () => has(reader, "run.parked") && has(stuck, "run.parked"));
    stuck.pause();
    const last = await grow(run, 30, 500_000);
    await until("the reader to have all", () => idsOf(reader.items).at(-1) === last, 60_000);
    const startedMs = performance.now();
    await app.app.close();
    expect(performance.now() - startedMs).toBeLessThan(2_000);
    await reader.closed;
    expect(has(reader, "end")).toBe(false);
    stuck.close();
    const next = await open();
    const resumed = connectSse(events(next, run), { headers: { "last-event-id": String(last) } });
    await handle.cancel();
    await resumed.closed;
    expectWhole([...reader.items, ...resumed.items]);
  });
});

describe("a database whose connections are cut", () => {
  it("leaves streams open, and they go on", async () => {
    const app = await open();
    const run = await enqueue();
    const handle = lab.capstan.run(run);
    const reader = connectSse(events(app, run));
    await until("the answer", () => has(reader, "run.parked"));
    for (let cut = 0; cut < 3; cut++) {
      await db.query(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name in ('stream test', 'capstan follow') and pid <> pg_backend_pid()",
      );
      await handle.send(`after cut ${cut}`);
      await until("the next answer", () => has(reader, "run.parked", cut + 2));
    }
    await handle.cancel();
    await reader.closed;
    expectWhole(reader.items);
    expect(reader.items.at(-1)?.event).toBe("end");
  });
});
