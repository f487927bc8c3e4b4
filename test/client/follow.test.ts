/** Following a run with live text: workers and followers of one process and of several, on a real Postgres. */
import pg from "pg";
import { afterAll, describe, expect, it, onTestFinished } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { createClient, type CapstanClient, type ClientOptions } from "../../src/client/client.ts";
import { DELTA_CHANNEL, FOLLOW_CHANNEL } from "../../src/domain/delta.ts";
import { wellFormedText } from "../../src/domain/json.ts";
import { scriptedModel, type ScriptedModelReply } from "../../src/testing/scripted-model.ts";
import { capstan as cli, ndjson } from "../cli/support.ts";
import { openLab, payloads, typesOf, until } from "../engine/harness.ts";
import { startProxy } from "../engine/proxy.ts";
import { createTestDatabase } from "../support/database.ts";
import { deltasOf, expectInOrder, follower, seqsOf, type Follower } from "./follower.ts";
import { gatedStream, type GatedStream } from "./gated-stream.ts";

const database = await createTestDatabase();
const streams = new Map<string, GatedStream>();
/** Each run streams what its test says: the input names the stream. */
const stream = (call: { readonly messages: readonly { readonly content: readonly object[] }[] }): ScriptedModelReply => {
  const inputs = call.messages.flatMap(({ content }) => content.flatMap((part) => ("text" in part ? [String(part.text)] : [])));
  const found = streams.get(inputs.findLast((text) => streams.has(text)) ?? "");
  if (found === undefined) throw new Error(`no stream for ${inputs.join(", ")}`);
  return { stream: found };
};
const model = scriptedModel(
  Array.from({ length: 60 }, () => stream),
  { name: "scripted:stream" },
);
const speaker = agent({ name: "speaker", model: "scripted:stream", instructions: "Speak." });
const quick = agent({ name: "quick", model: "scripted:quick", instructions: "Be quick." });
const quickModel = scriptedModel(["One.", "Two.", "Three."], { name: "scripted:quick" });
const lab = await openLab(database.url, { agents: [speaker, quick], models: [model, quickModel] });
const db = new pg.Pool({ connectionString: database.url, max: 2 });
db.on("error", () => {});
afterAll(async () => {
  await lab[Symbol.asyncDispose]();
  await db.end();
});

function open(options: Partial<ClientOptions> = {}): CapstanClient {
  const client = createClient({ connectionString: database.url, ...options });
  onTestFinished(() => client.close());
  return client;
}

let count = 0;
async function speaking(options: { readonly interactive?: boolean } = {}): Promise<{ id: string; voice: GatedStream }> {
  const name = `stream ${++count}`;
  const voice = gatedStream();
  streams.set(name, voice);
  const { id } = await lab.capstan.enqueue(speaker, name, options);
  await until("the call", async () => typesOf(await lab.events(id)).includes("model.requested"));
  return { id, voice };
}

/** Nobody can tell from outside when the worker knows of a follower: that is when a first piece arrives. */
async function heard(voice: GatedStream, ...readers: readonly Follower[]): Promise<void> {
  await until("a first piece", () => {
    voice.say("·");
    return readers.every((reader) => reader.text() !== "");
  });
}

const listeners = async (): Promise<number[]> =>
  (await db.query<{ pid: number }>("select pid from pg_stat_activity where datname = current_database() and application_name = 'capstan follow'")).rows.map(({ pid }) => pid);

/** Those that listen already: it is the last that they asked of the server. */
const listening = async (): Promise<number> =>
  (await db.query("select 1 from pg_stat_activity where datname = current_database() and application_name = 'capstan follow' and state = 'idle' and query like 'listen %'")).rows
    .length;

async function answerOf(id: string): Promise<string> {
  const [{ content }] = payloads(await lab.events(id), "model.responded");
  return content.map((part: { text: string }) => part.text).join("");
}

describe("live text", () => {
  it("comes before the response, is the response's text, and ends with it", async () => {
    const { id, voice } = await speaking();
    const reader = follower(open().run(id));
    await reader.untilEvent("model.requested");
    await heard(voice, reader);
    voice.say("Hello, ", "wörld ", "👋");
    await reader.untilText("👋");
    expect(reader.items.at(-1)?.type).toBe("delta");
    voice.say(" and good", "bye.");
    voice.end();
    await reader.ended;
    expectInOrder(reader.items);
    expect((await answerOf(id)).endsWith(reader.text())).toBe(true);
    expect(reader.text()).toMatch(/·Hello, wörld 👋 and goodbye\.$/);
    expect(deltasOf(reader.items)[0]).toMatchObject({ run_id: id, turn: 1, attempt: 1, kind: "text" });
    expect(reader.items.slice(-2).map((item) => item.type === "event" && item.event.type)).toEqual(["model.responded", "run.completed"]);
  });

  it("is whole from n = 0 for one who followed before the call, whatever its characters: halves of pairs, NUL, escapes, more than a notification holds", async () => {
    const { id, voice } = await speaking({ interactive: true });
    const reader = follower(open().run(id));
    await heard(voice, reader);
    voice.end();
    await reader.untilEvent("run.parked");
    const odd = gatedStream();
    streams.set("odd", odd);
    await lab.capstan.run(id).send("odd");
    await until("the second call", async () => payloads(await lab.events(id), "model.requested").length === 2);
    const pieces = ["a\u0000b", "\ud83d", "\udc4b", "\ud83d", "x", "\u0001\u0002".repeat(3_000), 'ü€😀"\\\n'.repeat(2_000), "\ude00", "\ud83d"];
    for (const piece of pieces) {
      odd.say(piece);
      await new Promise((resolve) => setTimeout(resolve, 30));
    }
    odd.end();
    await until("the second answer", async () => payloads(await lab.events(id), "run.parked").length === 2);
    await lab.capstan.run(id).cancel();
    await reader.ended;
    expectInOrder(reader.items);
    const answer = payloads(await lab.events(id), "model.responded")[1].content[0].text;
    expect(answer).toBe(wellFormedText(pieces.join("")));
    const deltas = deltasOf(reader.items).filter(({ turn }) => turn === 2);
    expect(deltas.map(({ text }) => text).join("")).toBe(answer);
    expect(deltas.map(({ n }) => n)).toEqual(deltas.map((_, i) => i));
  });

  it("is heard from then on by one who joins late, with or without a cursor, and n says that something came before", async () => {
    const { id, voice } = await speaking();
    voice.say("nobody hears this, ");
    const asked = (await lab.events(id)).length;
    const [late, resumed] = [follower(open().run(id)), follower(open().run(id), { after: asked })];
    await late.untilEvent("model.requested");
    await heard(voice, late, resumed);
    voice.say("but this");
    await Promise.all([late.untilText("but this"), resumed.untilText("but this")]);
    voice.end();
    await Promise.all([late.ended, resumed.ended]);
    for (const reader of [late, resumed]) {
      expect(deltasOf(reader.items)[0]?.n).toBeGreaterThan(0);
      expect(reader.text()).not.toContain("nobody");
    }
    expectInOrder(late.items);
    expect(seqsOf(resumed.items)[0]).toBe(asked + 1);
    // One whose cursor is behind the response hears nothing of it any more.
    const after = (await lab.events(id)).find(({ type }) => type === "model.responded")?.seq ?? 0;
    const done = follower(open().run(id), { after });
    await done.ended;
    expect(done.items.map((item) => item.type)).toEqual(["event"]);
  });

  it("goes on over the turns of an interactive run", async () => {
    const { id, voice } = await speaking({ interactive: true });
    const reader = follower(open().run(id));
    await heard(voice, reader);
    voice.end();
    await reader.untilEvent("run.parked");
    const again = gatedStream();
    streams.set("go on", again);
    await lab.capstan.run(id).send("go on");
    again.say("second ", "answer");
    await reader.untilText("second answer");
    again.end();
    await until("the second answer", async () => payloads(await lab.events(id), "run.parked").length === 2);
    await lab.capstan.run(id).cancel();
    await reader.ended;
    expectInOrder(reader.items);
    expect(new Set(deltasOf(reader.items).map(({ turn }) => turn))).toEqual(new Set([1, 2]));
  });

  it("reaches followers of several processes; those of one share a connection, which ends with the last", async () => {
    const { id, voice } = await speaking();
    const client = open();
    const readers = [follower(client.run(id)), follower(client.run(id))];
    const other = cli(["runs", "follow", id, "--json", "--deltas"], { env: { DATABASE_URL: database.url } });
    await until("both processes", async () => (await listening()) === 2);
    await heard(voice, ...readers);
    voice.say("to all of you");
    await Promise.all(readers.map((reader) => reader.untilText("to all of you")));
    expect(await listeners()).toHaveLength(2);
    voice.end();
    const { code, stdout } = await other;
    await Promise.all(readers.map((reader) => reader.ended));
    expect(readers[0]?.items).toEqual(readers[1]?.items);
    const lines = ndjson<{ type: string; seq?: number; text?: string }>(stdout);
    expect(code).toBe(0);
    expect(lines.flatMap(({ seq }) => seq ?? [])).toEqual(seqsOf(readers[0]?.items ?? []));
    expect(lines.map((line) => (line.type === "delta" ? line.text : "")).join("")).toMatch(/to all of you$/);
    await until("the connections to end", async () => (await listeners()).length === 0);
  });

  it("is shown by the command line only on a terminal, or when asked", async () => {
    const { id, voice } = await speaking();
    voice.say("too early, ");
    const env = { DATABASE_URL: database.url };
    const [plain, live] = [cli(["runs", "follow", id], { env }), cli(["runs", "follow", id, "--deltas"], { env })];
    const reader = follower(open().run(id));
    await until("the live one", async () => (await listening()) === 2);
    await heard(voice, reader);
    voice.say("first line\nsecond \u001B[31mline\u0007");
    await reader.untilText("\u0007");
    voice.end();
    await reader.ended;
    expect((await plain).stdout).not.toContain("second line\n");
    const shown = (await live).stdout;
    expect(shown).toMatch(/\n {2}… ·*first line\n {2}second line\ufffd\n/);
    expect(shown).not.toContain("\u001B");
    expect((await cli(["enqueue", "speaker", "x", "--deltas"], { env })).code).toBe(2);
  });
});

describe("what it costs", () => {
  it("nothing is notified while nobody follows live text, and no connection is opened for events alone", async () => {
    const told: pg.Notification[] = [];
    const spy = new pg.Client({ connectionString: database.url });
    await spy.connect();
    onTestFinished(() => spy.end());
    spy.on("notification", (notification) => told.push(notification));
    await spy.query(`listen ${DELTA_CHANNEL}; listen ${FOLLOW_CHANNEL}`);
    // Of runs that were followed a moment ago nothing is said either: interest is a run's, not the database's.
    const { id, voice } = await speaking();
    const reader = follower(lab.capstan.run(id), { deltas: false });
    voice.say("to ", "nobody");
    voice.end();
    await reader.ended;
    expect(await lab.capstan.run(id).result({ timeoutMs: 10_000 })).toBe("to nobody");
    await (await lab.capstan.enqueue(quick, "go")).result({ timeoutMs: 10_000 });
    expectInOrder(reader.items);
    expect(deltasOf(reader.items)).toEqual([]);
    // Notifications come in the order of commits: after this one, all that there were have been heard.
    await db.query("select pg_notify($1, 'end')", [DELTA_CHANNEL]);
    await until("the end", () => told.some(({ payload }) => payload === "end"));
    // A worker whose own connection was made anew meanwhile asks who follows.
    expect(told.map(({ payload }) => payload).filter((payload) => payload !== '{"is":"who"}')).toEqual(["end"]);
    expect(await listeners()).toEqual([]);
  });

  it("a reader that ends early, and one that is told to stop, leave no connection behind", async () => {
    const { id, voice } = await speaking();
    const client = open();
    for await (const item of client.run(id).follow()) {
      await until("the connection", async () => (await listeners()).length === 1);
      expect(item.type).toBe("event");
      break;
    }
    await until("the end of the connection", async () => (await listeners()).length === 0);
    const reader = follower(client.run(id));
    await until("the connection", async () => (await listeners()).length === 1);
    await reader.stop();
    expect(await listeners()).toEqual([]);
    voice.say("done");
    voice.end();
  });
});

describe("outages", () => {
  it("a listener that is cut off comes back: text goes on, events have no gap", async () => {
    const { id, voice } = await speaking();
    const reader = follower(open().run(id));
    await heard(voice, reader);
    const before = await listeners();
    await db.query("select pg_terminate_backend(pid) from unnest($1::int[]) as pid", [before]);
    await until("another connection", async () => (await listeners()).some((pid) => !before.includes(pid)));
    // The worker's own as well: it listens anew, and asks who follows.
    await db.query("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'capstan listen'");
    await until("text that was said after it", () => {
      voice.say("+");
      return reader.text().endsWith("+");
    });
    voice.end();
    await reader.ended;
    expectInOrder(reader.items);
    expect(await lab.capstan.run(id).result()).toContain("+");
  });

  it("a database that is away is waited for, with events whole and text again", async () => {
    await using proxy = await startProxy(database.url);
    const { id, voice } = await speaking();
    const reader = follower(open({ connectionString: proxy.url }).run(id));
    await heard(voice, reader);
    proxy.cut();
    voice.say("unheard");
    await until("that the worker has sent it to nobody", async () => (await listeners()).length === 0);
    proxy.mend();
    await until("text that was said after it", () => {
      voice.say("+");
      return reader.text().endsWith("+");
    });
    voice.end();
    await reader.ended;
    expectInOrder(reader.items);
    expect(await lab.capstan.run(id).result()).toContain("unheard+");
  });

  it("where notifications do not arrive, events come by polling, and it is said once why there is no text", async () => {
    const warnings: (Error & { code?: string })[] = [];
    const warned = (warning: Error): void => void warnings.push(warning);
    process.on("warning", warned);
    onTestFinished(() => void process.off("warning", warned));
    const { id, voice } = await speaking();
    // Notifications do not leave their database: another one is as deaf as a pooler in transaction mode.
    const elsewhere = new URL(database.url);
    elsewhere.pathname = "/postgres";
    const client = open({ directConnectionString: elsewhere.toString() });
    const reader = follower(client.run(id));
    await until("the warning", () => warnings.some(({ code }) => code === "CAPSTAN_FOLLOW_DEAF"), 30_000);
    voice.say("unheard");
    voice.end();
    await reader.ended;
    expectInOrder(reader.items);
    expect(deltasOf(reader.items)).toEqual([]);
    await follower(client.run(id)).ended;
    expect(warnings.filter(({ code }) => code === "CAPSTAN_FOLLOW_DEAF")).toHaveLength(1);
  });
});
