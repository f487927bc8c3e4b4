/** Conversations of several runs, and many runs at once, on a real worker. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { ArgumentError, ConversationBusyError, ConversationUnknownError } from "../../src/client/errors.ts";
import type { Model } from "../../src/engine/model-port.ts";
import { createTestDatabase } from "../support/database.ts";
import { collect, openLab, payloads, typesOf, until, type Lab } from "../engine/harness.ts";

const database = await createTestDatabase();

let isDown = false;
let release: (() => void) | undefined;

/** Answers with the texts of all user messages that it sees; "wait" holds the answer back until it is let go. */
const echo: Model = {
  name: "scripted:echo",
  structuredOutput: false,
  window: { tokens: undefined, source: "unknown" },
  async call(call) {
    const said = call.messages.flatMap((message) => (message.role === "user" ? message.content.flatMap((part) => (part.type === "text" ? [part.text] : [`(${part.type})`])) : []));
    if (isDown) return { kind: "failed", code: "PROVIDER_AUTH", message: "no key", retryable: false, countsAsAttempt: true };
    if (said.at(-1) === "wait") await new Promise<void>((resolve) => (release = resolve));
    return { kind: "responded", content: [{ type: "text", text: said.join(" | ") }], finish: { reason: "stop" }, usage: { input: 1, output: 1, scale: "estimate" } };
  },
};

const talker = agent({ name: "talker", model: "scripted:echo", instructions: "Talk.", limits: { maxTurns: 1 } });
const host = agent({ name: "host", model: "scripted:echo", instructions: "Host.", interactive: true });

let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, { agents: [talker, host], models: [echo] });
});
afterAll(() => lab[Symbol.asyncDispose]());

describe("a conversation", () => {
  it("goes on from run to run, each with the whole view before it and turns of its own", async () => {
    const thread = await lab.capstan.conversations.create({ agent: "talker", title: "Tides", budget: { max_tokens: 4_096 } });
    expect(await thread.transcript()).toMatchObject({ run_id: null, messages: [] });
    const answers: unknown[] = [];
    for (const text of ["one", "two", "three"]) answers.push(await (await thread.send(text)).result({ timeoutMs: 20_000 }));
    expect(answers).toEqual(["one", "one | two", "one | two | three"]);
    const runs = await thread.runs();
    expect(runs).toHaveLength(3);
    const [first, second, third] = await Promise.all(runs.map((run) => lab.events(run.id)));
    expect(payloads(first ?? [], "run.created")[0]).toMatchObject({ origin: "api", conversation_id: thread.id });
    expect(payloads(second ?? [], "run.created")[0]).toMatchObject({ origin: "continue", conversation_id: thread.id, base: { run_id: runs[0]?.id, seq: 4, position: 4 } });
    expect(payloads(third ?? [], "run.created")[0]).toMatchObject({ base: { run_id: runs[1]?.id, seq: 4, position: 8 } });
    expect(third?.map(({ turn }) => turn)).toEqual([2, 3, 3, 3]);
    for (const run of runs) await lab.intact(run.id);
    expect(await thread.get()).toMatchObject({ id: thread.id, title: "Tides", runs: 3, last_run_id: runs[2]?.id, last_state: "completed", budget: { max_tokens: 4_096 } });
    expect((await thread.transcript()).messages).toHaveLength(6);
    expect((await lab.capstan.conversations.list({ agent: "talker" })).map(({ id }) => id)).toContain(thread.id);
  });

  it("is refused while its last run is at work, and takes one message once", async () => {
    const thread = await lab.capstan.conversations.create({ agent: "talker" });
    const run = await thread.send("wait", { idempotencyKey: "m1" });
    await until("the call", () => release);
    expect((await thread.send("wait", { idempotencyKey: "m1" })).id).toBe(run.id);
    await expect(thread.send("more")).rejects.toBeInstanceOf(ConversationBusyError);
    release?.();
    release = undefined;
    expect(await run.result({ timeoutMs: 20_000 })).toBe("wait");
    const next = await thread.send("more", { idempotencyKey: "m2" });
    expect((await thread.send("more", { idempotencyKey: "m2" })).id).toBe(next.id);
    expect(await next.result({ timeoutMs: 20_000 })).toBe("wait | more");
    await expect(thread.send("other", { idempotencyKey: "m2" })).rejects.toMatchObject({ code: "IDEMPOTENCY_CONFLICT" });
    expect(await thread.runs()).toHaveLength(2);
  });

  it("starts one run for two messages that come at once", async () => {
    const thread = await lab.capstan.conversations.create({ agent: "talker" });
    const sent = await Promise.allSettled([thread.send("a"), thread.send("b"), thread.send("c")]);
    const began = sent.filter(({ status }) => status === "fulfilled");
    for (const outcome of sent) if (outcome.status === "rejected") expect(outcome.reason).toBeInstanceOf(ConversationBusyError);
    expect(began.length).toBeGreaterThanOrEqual(1);
    expect(await thread.runs()).toHaveLength(began.length);
  });

  it("goes on after a failure from what was good, and takes a retry in", async () => {
    const thread = await lab.capstan.conversations.create({ agent: "talker" });
    await (await thread.send("one")).result({ timeoutMs: 20_000 });
    isDown = true;
    const failed = await thread.send("two");
    expect((await lab.settled(failed.id)).state).toBe("failed");
    isDown = false;
    const retry = await failed.retry();
    expect(await retry.result({ timeoutMs: 20_000 })).toBe("one | two");
    await lab.intact(retry.id);
    expect(await (await thread.send("three")).result({ timeoutMs: 20_000 })).toBe("one | two | three");
    isDown = true;
    await lab.settled((await thread.send("four")).id);
    isDown = false;
    const last = await thread.send("five");
    expect(await last.result({ timeoutMs: 20_000 })).toBe("one | two | three | four | five");
    await lab.intact(last.id);
  });

  it("gives the message to an interactive run that waits for it", async () => {
    const thread = await lab.capstan.conversations.create({ agent: "host" });
    const run = await thread.send("one");
    expect(await lab.settled(run.id)).toMatchObject({ state: "waiting", wait_reason: "input" });
    const long = "two ".repeat(400_000);
    expect((await thread.send(long, { idempotencyKey: "k" })).id).toBe(run.id);
    expect((await thread.send(long, { idempotencyKey: "k" })).id).toBe(run.id);
    await until("the answer", async () => (await run.status()).turn === 2 && (await run.status()).state === "waiting");
    expect(payloads(await lab.events(run.id), "input.applied")).toHaveLength(1);
    // What went to a blob is the run's that took the message.
    const refs = (await lab.db.query("select distinct run_id from capstan.blob_refs")).rows;
    expect(refs).toEqual([{ run_id: run.id }]);
    await run.cancel();
    const next = await thread.send("three");
    expect(await lab.settled(next.id)).toMatchObject({ state: "waiting", wait_reason: "input" });
    await lab.intact(next.id);
    expect((await lab.db.query("select count(*)::int as n from capstan.blob_refs where run_id = $1", [next.id])).rows).toEqual([{ n: 1 }]);
  });

  it("is refused with what is wrong", async () => {
    const thread = await lab.capstan.conversations.create({ agent: "talker" });
    await (await thread.send("one")).result({ timeoutMs: 20_000 });
    await lab.capstan.agents.retire("talker");
    await expect(thread.send("two")).rejects.toThrow("agent talker is retired");
    await lab.capstan.agents.unretire("talker");
    await expect(lab.capstan.conversations.create({ agent: "talker", budget: { max_tokens: 100 } })).rejects.toThrow("budget.max_tokens is a whole number from 512 on");
    await expect(lab.capstan.conversations.create({ agent: "no such name!" })).rejects.toBeInstanceOf(ArgumentError);
    await expect(lab.capstan.conversation("01900000-0000-7000-8000-000000000000").send("x")).rejects.toBeInstanceOf(ConversationUnknownError);
  });
});

describe("many runs at once", () => {
  it("are retried once each, after a preview, and cancelled", async () => {
    isDown = true;
    const labels = ["batch-7"];
    const failed = await Promise.all(["a", "b", "c"].map((text) => lab.run(talker, text, { labels, tenant: "acme" })));
    isDown = false;
    const filter = { tenant: "acme", label: "batch-7" };
    const preview = await lab.capstan.runs.retryAll(filter, { dryRun: true });
    expect(preview).toMatchObject({ dry_run: true, matched: 3, by_code: [{ code: "PROVIDER_AUTH", runs: 3 }], done: 0 });
    expect(preview.first).toEqual(failed.map(({ id }) => id).toSorted());
    expect(await lab.capstan.runs.failures({ tenant: "acme" })).toMatchObject([{ code: "PROVIDER_AUTH", runs: 3, open: 3, agents: ["talker"] }]);
    expect((await lab.capstan.runs.retryAll({ ...filter, limit: 1 })).done).toBe(1);
    const [one, two] = await Promise.all([lab.capstan.runs.retryAll(filter), lab.capstan.runs.retryAll(filter)]);
    expect(one.refused).toEqual([]);
    expect(two.refused).toEqual([]);
    const retries = (await lab.db.query<{ id: string }>("select id from capstan.runs where origin = 'retry' and tenant = 'acme' order by id")).rows.map(({ id }) => id);
    expect(retries).toHaveLength(3);
    for (const id of retries) expect((await lab.settled(id)).state).toBe("completed");
    expect(await lab.capstan.runs.retryAll(filter)).toMatchObject({ matched: 0, done: 0 });
    expect(await lab.capstan.runs.failures({ tenant: "acme" })).toMatchObject([{ runs: 3, open: 0 }]);

    const waiting = await Promise.all(["x", "y"].map((text) => lab.run(host, text, { tenant: "acme" })));
    expect(await lab.capstan.runs.cancelAll({ tenant: "acme" }, { dryRun: true })).toMatchObject({ matched: 2, by_code: [{ code: "waiting", runs: 2 }] });
    expect(await lab.capstan.runs.cancelAll({ tenant: "acme", agent: "host" }, { reason: "over" })).toMatchObject({ done: 2, refused: [] });
    for (const { handle } of waiting) expect((await handle.status()).state).toBe("cancelled");
    await expect(lab.capstan.runs.cancelAll({ states: ["completed"] })).rejects.toBeInstanceOf(ArgumentError);
    const events = await collect(lab.capstan.run(retries[0] as string).events({ follow: false }));
    expect(typesOf(events)[0]).toBe("run.created");
  });
});
