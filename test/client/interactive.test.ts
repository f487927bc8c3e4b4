/** Interactive runs: they wait without holding anything, and what is sent to them is applied once, in the right place. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { InboxFullError } from "../../src/client/errors.ts";
import type { RunEvent } from "../../src/client/handle.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { openLab, payloads, typesOf, until, type Lab } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { doing } from "../bad-input/cases.ts";

const database = await createTestDatabase();

/** Opens when the test says so; by the name of the run's step. */
class Gate {
  #open: () => void = () => {};
  readonly entered: Promise<void>;
  #enter: () => void = () => {};
  readonly #opened = new Promise<void>((resolve) => (this.#open = resolve));
  constructor() {
    this.entered = new Promise((resolve) => (this.#enter = resolve));
  }
  pass(): Promise<void> {
    this.#enter();
    return this.#opened;
  }
  open(): void {
    this.#open();
  }
}

const [toolGate, answerGate, fullGate, cancelGate] = [new Gate(), new Gate(), new Gate(), new Gate()];
const executed: string[] = [];
const chat = agent({ name: "chat", model: "scripted:chat", instructions: "Chat.", interactive: true });
const steered = agent({
  name: "steered",
  model: "scripted:steered",
  instructions: "Work.",
  tools: [doing("work", () => toolGate.pass().then(() => "worked")), doing("other", () => "other")],
});
const late = agent({ name: "late", model: "scripted:late", instructions: "Answer." });
const full = agent({ name: "full", model: "scripted:full", instructions: "Answer." });
const stopped = agent({
  name: "stopped",
  model: "scripted:stopped",
  instructions: "Work.",
  tools: [doing("slow", async () => cancelGate.pass().then(() => "done")), doing("effect", () => void executed.push("effect"), { effect: "once" })],
  limits: { parallelTools: 1 },
});
const models = [
  scriptedModel(["One.", "Two.", "Three."], { name: "scripted:chat", by: "turn" }),
  scriptedModel([{ toolCalls: [{ name: "work" }, { name: "other" }] }, "Steered."], { name: "scripted:steered", by: "turn" }),
  scriptedModel([() => answerGate.pass().then(() => "First."), "Second."], { name: "scripted:late", by: "turn" }),
  scriptedModel([() => fullGate.pass().then(() => "First."), "Second."], { name: "scripted:full", by: "turn" }),
  scriptedModel([{ toolCalls: [{ name: "slow" }, { name: "effect" }] }, "Never."], { name: "scripted:stopped", by: "turn" }),
];
const agents = [chat, steered, late, full, stopped];

let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, { agents, models });
});
afterAll(() => lab[Symbol.asyncDispose]());

const textsOf = (events: readonly RunEvent[]) => payloads(events, "input.applied").map((payload) => payload.content[0].text as string);
const answered = (id: string, turn: number) =>
  until(`answer ${turn}`, async () => {
    const status = await lab.capstan.run(id).status();
    return status.turn === turn && (status.state === "waiting" || status.state === "completed") ? status : undefined;
  });

describe("an interactive run", () => {
  it("parks at awaiting_input holding no job, no lease and no wish; input continues it on another worker after the first has stopped", async () => {
    await using first = await openLab(database.url, { agents: [agent({ name: "moves", model: "scripted:chat", instructions: "Chat.", interactive: true })], models });
    const run = await first.run("moves", "hello");
    expect(run.status).toMatchObject({ state: "waiting", wait_reason: "input", turn: 1 });
    const { rows } = await first.db.query(
      `select worker_id, (select count(*)::int from capstan.wishes w where w.run_id = r.id) as wishes,
         (select count(*)::int from graphile_worker._private_jobs j where j.payload ->> 'runId' = r.id::text) as jobs from capstan.runs r where r.id = $1`,
      [run.id],
    );
    expect(rows).toEqual([{ worker_id: null, wishes: 0, jobs: 0 }]);
    const before = first.worker?.id;
    await first.worker?.stop();
    await run.handle.send("and now?");
    expect(await run.handle.status()).toMatchObject({ state: "waiting", turn: 1 });
    const second = await first.startWorker();
    expect(second.id).not.toBe(before);
    const status = await until("the second answer", async () => {
      const now = await run.handle.status();
      return now.turn === 2 && now.state === "waiting" ? now : undefined;
    });
    expect(status.wait_reason).toBe("input");
    expect(textsOf(await first.events(run.id))).toEqual(["and now?"]);
    await first.intact(run.id);
  });

  it("takes what was sent in one transaction in the order in which it was sent", async () => {
    const run = await lab.run(chat, "hello");
    const client = await lab.db.connect();
    await client.query("begin");
    await client.query("select capstan.send($1, to_jsonb('message ' || n)) from generate_series(1, 12) n", [run.id]);
    await client.query("commit");
    client.release();
    await answered(run.id, 2);
    expect(textsOf(await lab.events(run.id))).toEqual(Array.from({ length: 12 }, (_, i) => `message ${i + 1}`));
  });

  it("takes a message once, however often it is sent under one key", async () => {
    const run = await lab.run(chat, "hello");
    const ids = await Promise.all([1, 2, 3].map(() => run.handle.send("again", { dedupeKey: "k" })));
    expect(new Set(ids).size).toBe(1);
    await answered(run.id, 2);
    expect(await run.handle.send("again", { dedupeKey: "k" })).toBe(ids[0]);
    expect(textsOf(await lab.events(run.id))).toEqual(["again"]);
    expect(await lab.db.query("select applied_seq is not null as applied from capstan.inbox where run_id = $1", [run.id])).toMatchObject({ rows: [{ applied: true }] });
  });

  it("can be cancelled while it waits", async () => {
    const run = await lab.run(chat, "hello");
    expect(await run.handle.cancel("bye", { actor: "ops" })).toBe(true);
    const [last] = (await lab.events(run.id)).slice(-1);
    expect(last).toMatchObject({ type: "run.cancelled", actor: "ops", payload: { reason: "bye" } });
    await lab.intact(run.id);
  });
});

describe("steering", () => {
  it("that comes while tools run is applied after their results, never between a call and its result", async () => {
    const handle = await lab.capstan.enqueue(steered, "go");
    await toolGate.entered;
    await handle.send("mind the gap", { actor: "anna" });
    toolGate.open();
    expect(await handle.result({ timeoutMs: 20_000 })).toBe("Steered.");
    const events = await lab.events(handle.id);
    const order = typesOf(events).filter((type) => ["model.responded", "tool.completed", "input.applied", "model.requested"].includes(type));
    expect(order).toEqual(["model.requested", "model.responded", "tool.completed", "tool.completed", "input.applied", "model.requested", "model.responded"]);
    expect(events.find((event) => event.type === "input.applied")).toMatchObject({ actor: "anna", payload: { steering: true } });
    await lab.intact(handle.id);
  });

  it("that comes during the final answer gets one more turn", async () => {
    const handle = await lab.capstan.enqueue(late, "go");
    await answerGate.entered;
    await handle.send("wait, one more thing");
    answerGate.open();
    expect(await handle.result({ timeoutMs: 20_000 })).toBe("Second.");
    const events = await lab.events(handle.id);
    expect(textsOf(events)).toEqual(["wait, one more thing"]);
    expect(typesOf(events).filter((type) => type === "run.completed")).toHaveLength(1);
    await lab.intact(handle.id);
  });

  it("may wait sixteen deep; the seventeenth is refused by name, and all sixteen are applied in order", async () => {
    const handle = await lab.capstan.enqueue(full, "go");
    await fullGate.entered;
    for (let i = 1; i <= 16; i++) await handle.send(`message ${i}`);
    const error = await handle.send("message 17").catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(InboxFullError);
    expect(error).toMatchObject({ code: "INBOX_FULL", retryable: true });
    fullGate.open();
    expect(await handle.result({ timeoutMs: 20_000 })).toBe("Second.");
    expect(textsOf(await lab.events(handle.id))).toEqual(Array.from({ length: 16 }, (_, i) => `message ${i + 1}`));
    await lab.intact(handle.id);
  });
});

it("a cancelled run executes no further effect", async () => {
  const handle = await lab.capstan.enqueue(stopped, "go");
  await cancelGate.entered;
  expect(await handle.cancel()).toBe(true);
  cancelGate.open();
  await until("the worker to let go", async () => (await lab.db.query("select 1 from graphile_worker._private_jobs where payload ->> 'runId' = $1", [handle.id])).rowCount === 0);
  expect(executed).toEqual([]);
  expect(payloads(await lab.events(handle.id), "tool.completed")).toEqual([]);
  await lab.intact(handle.id);
});
