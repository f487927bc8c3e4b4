/** Webhooks with real receivers: written with what they tell, sent at least once, by one of several workers. */
import pg from "pg";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { OutgoingGuard } from "../../src/capabilities/outgoing.ts";
import { outgoingPost } from "../../src/capabilities/outgoing-fetch.ts";
import { signWebhook, verifyWebhook, WebhookSignatureError } from "../../src/client/webhook-signature.ts";
import type { WebhooksClient } from "../../src/client/webhooks.ts";
import { Webhooks, type WebhooksOptions } from "../../src/queue/webhooks.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { openLab, until, type Lab } from "../engine/harness.ts";
import { killChildrenAfterAll, startChild } from "../chaos/child-worker.ts";
import { createTestDatabase } from "../support/database.ts";
import { Receiver } from "./receiver.ts";

const database = await createTestDatabase();
const same = (text: string): string => text;
killChildrenAfterAll();
const echo = agent({ name: "echo", model: "scripted:echo", instructions: "Echo." });
const chat = agent({ name: "chat", model: "scripted:chat", instructions: "Chat.", interactive: true });
const models = [scriptedModel(["the secret answer"], { name: "scripted:echo", by: "turn" }), scriptedModel(["Hello.", "Bye."], { name: "scripted:chat", by: "turn" })];

let lab: Lab;
let hooks: WebhooksClient;
const receivers: Receiver[] = [];
const pools: pg.Pool[] = [];
beforeAll(async () => {
  lab = await openLab(database.url, { agents: [echo, chat], models, allow: ["127.0.0.1"] });
  hooks = lab.capstan.webhooks;
});
afterEach(async () => {
  for (const { tenant, name } of await hooks.list()) await hooks.delete(name, { tenant });
  await Promise.all(receivers.splice(0).map((each) => each.stop()));
});
afterAll(async () => {
  await lab[Symbol.asyncDispose]();
  await Promise.all(pools.map((pool) => pool.end()));
});

async function receiver(): Promise<Receiver> {
  const made = await new Receiver().start();
  receivers.push(made);
  return made;
}

/** A sender that is not started; its database's clock is ahead by `interval`. */
function sender(interval = "0 seconds", options: Partial<WebhooksOptions> = {}): Webhooks {
  const pool = new pg.Pool({ connectionString: database.url, max: 4, options: `-c capstan_clock.offset=${interval.replaceAll(" ", "\\ ")}` });
  pools.push(pool);
  const log = { debug() {}, info() {}, warn() {}, error() {} };
  return new Webhooks({
    pool,
    named: same,
    log,
    send: outgoingPost(new OutgoingGuard({ allow: ["127.0.0.1"] })),
    sign: signWebhook,
    random: () => 0,
    userAgent: "test",
    ...options,
  });
}

/** Enqueued, and ended at once by a cancel: no worker is needed. */
async function ended(tenant = "default", name = "echo"): Promise<string> {
  const { rows } = await lab.db.query<{ id: string }>("select capstan.enqueue_run($1, '\"x\"', tenant => $2, run_at => '2099-01-01') as id", [name, tenant]);
  const id = rows[0]?.id as string;
  await lab.db.query("select capstan.cancel_run($1)", [id]);
  return id;
}
const deliveryOf = async (runId: string) => (await hooks.deliveries({ runId }))[0];
const settledAs = (runId: string, state: string) =>
  until(`the delivery to be ${state}`, async () => ((await deliveryOf(runId))?.state === state ? await deliveryOf(runId) : undefined));

describe("what is told", () => {
  it("the end of a run, by a worker, signed, with ids and state and nothing that was said", async () => {
    const to = await receiver();
    const { secret } = await hooks.create({ name: "ends", url: to.url });
    const run = await lab.run(echo, "the secret question");
    const delivery = await settledAs(run.id, "delivered");
    expect(to.received).toHaveLength(1);
    const [{ headers, body }] = to.received as [(typeof to.received)[0]];
    const { id, event } = verifyWebhook({ body, headers, secret });
    expect(id).toBe(delivery.id);
    expect(event).toMatchObject({ type: "run.completed", data: { run_id: run.id, tenant: "default", agent: "echo", state: "completed", turn: 1 } });
    expect(body).not.toMatch(/secret/);
    expect(delivery).toMatchObject({ webhook: "ends", event: "run.completed", attempts: 1, status_code: 204 });
    for (const changed of [
      { body: `${body} ` },
      { secret: `whsec_${Buffer.alloc(32).toString("base64")}` },
      { nowMs: Date.now() + 600_000 },
      { headers: { ...headers, "webhook-id": "other" } },
    ])
      expect(() => verifyWebhook({ body, headers, secret, ...changed })).toThrow(WebhookSignatureError);
  });

  it("what the run said, where it is asked for", async () => {
    const to = await receiver();
    await hooks.create({ name: "content", url: to.url, content: true, events: ["run.completed"] });
    const run = await lab.run(echo, "x");
    await settledAs(run.id, "delivered");
    expect(JSON.parse(to.received[0]?.body ?? "")).toMatchObject({ data: { output: "the secret answer" } });
  });

  it("that a run waits for a person", async () => {
    const to = await receiver();
    await hooks.create({ name: "waits", url: to.url, events: ["run.waiting"] });
    const run = await lab.run(chat, "hello");
    await settledAs(run.id, "delivered");
    expect(JSON.parse(to.received[0]?.body ?? "")).toMatchObject({ type: "run.waiting", data: { run_id: run.id, state: "waiting", wait_reason: "input" } });
    await lab.capstan.run(run.id).cancel();
  });

  it("only what was asked for: event, agent, tenant; and nothing at all is written without a webhook", async () => {
    const to = await receiver();
    expect(await deliveryOf(await ended())).toBeUndefined();
    await hooks.create({ name: "completed", url: to.url, events: ["run.completed"] });
    await hooks.create({ name: "chat", url: to.url, agent: "chat" });
    await hooks.create({ name: "acme", url: to.url, tenant: "acme" });
    expect(await deliveryOf(await ended())).toBeUndefined();
    expect((await hooks.deliveries({ runId: await ended("default", "chat") })).map(({ webhook }) => webhook)).toEqual(["chat"]);
    expect((await hooks.deliveries({ runId: await ended("acme") })).map(({ webhook }) => webhook)).toEqual(["acme"]);
  });

  it("is written in the transaction of what it tells, or not at all", async () => {
    const to = await receiver();
    await hooks.create({ name: "cancels", url: to.url });
    const { rows } = await lab.db.query<{ id: string }>("select capstan.enqueue_run('echo', '\"x\"', run_at => '2099-01-01') as id");
    const client = await lab.db.connect();
    try {
      await client.query("begin");
      await client.query("select capstan.cancel_run($1)", [rows[0]?.id]);
      expect((await client.query("select event from capstan.webhook_deliveries where run_id = $1", [rows[0]?.id])).rows).toEqual([{ event: "run.cancelled" }]);
      await client.query("rollback");
    } finally {
      client.release();
    }
    expect(await deliveryOf(rows[0]?.id as string)).toBeUndefined();
  });
});

describe("what becomes of it", () => {
  it("a receiver that was down gets it when it is back, once, with the id that it had", async () => {
    const to = await receiver();
    await hooks.create({ name: "down", url: to.url });
    await to.stop();
    const run = await ended();
    const failed = await until("a failed try", async () => {
      const delivery = await deliveryOf(run);
      return (delivery?.attempts ?? 0) > 0 && delivery?.error !== undefined ? delivery : undefined;
    });
    expect(failed).toMatchObject({ state: "waiting", error: expect.stringContaining("ECONNREFUSED") });
    await to.start();
    const later = sender("1 hour");
    await later.round();
    await later.settled();
    expect(to.received.map(({ headers }) => headers["webhook-id"])).toEqual([failed.id]);
    expect(await deliveryOf(run)).toMatchObject({ state: "delivered", attempts: 2 });
  });

  it("a sender that is killed between sending and noting leaves it to be sent again, under the same id", async () => {
    const idle = await openLab(database.url, { agents: [], idle: true, allow: ["127.0.0.1"] });
    // This file's own worker would be first: a webhook of another tenant is made while it is away.
    await lab.worker?.stop();
    const to = await receiver();
    const { secret } = await idle.capstan.webhooks.create({ name: "killed", url: to.url, tenant: "killed" });
    const run = await ended("killed");
    const child = await startChild({ url: database.url, effects: "", program: "../webhooks/sender-process.ts", failpoint: "webhook.sent:1" });
    expect(await child.ended).toBe("SIGKILL");
    expect(to.received).toHaveLength(1);
    expect((await idle.capstan.webhooks.deliveries({ runId: run }))[0]).toMatchObject({ state: "waiting", attempts: 1 });
    // Not due before the lease has ended.
    await sender().round();
    const later = sender("2 minutes");
    await later.round();
    await later.settled();
    expect(to.received).toHaveLength(2);
    expect(new Set(to.received.map(({ headers, body }) => verifyWebhook({ headers, body, secret }).id)).size).toBe(1);
    expect((await idle.capstan.webhooks.deliveries({ runId: run }))[0]).toMatchObject({ state: "delivered", attempts: 2 });
    await idle[Symbol.asyncDispose]();
    await lab.startWorker();
  });

  it("four senders at once send each once", async () => {
    await lab.worker?.stop();
    const to = await receiver();
    await hooks.create({ name: "shared", url: to.url, tenant: "shared" });
    const runs = await Promise.all(Array.from({ length: 30 }, () => ended("shared")));
    const senders = Array.from({ length: 4 }, () => sender());
    await Promise.all(
      senders.map(async (each) => {
        while ((await hooks.deliveries({ tenant: "shared", state: "waiting" })).length > 0) {
          await each.round();
          await each.settled();
        }
      }),
    );
    expect(to.received.map(({ headers }) => String(headers["webhook-id"])).toSorted()).toEqual((await hooks.deliveries({ tenant: "shared" })).map(({ id }) => id).toSorted());
    expect(to.received).toHaveLength(runs.length);
    await lab.startWorker();
  });

  it("a receiver that never answers slows neither turns nor the others' deliveries", async () => {
    const slow = await receiver();
    slow.answer = () => {};
    const quick = await receiver();
    await hooks.create({ name: "slow", url: slow.url });
    await Promise.all(Array.from({ length: 20 }, () => ended()));
    await until("the slow one to be busy", () => slow.received.length >= 4);
    await hooks.create({ name: "quick", url: quick.url });
    const startedMs = performance.now();
    const runs = await Promise.all(Array.from({ length: 10 }, () => lab.run(echo, "x")));
    expect(runs.every(({ status }) => status.state === "completed")).toBe(true);
    await until("the quick one to have all", () => quick.received.length >= runs.length);
    // Far below what the slow one holds each of its sends for.
    expect(performance.now() - startedMs).toBeLessThan(12_000);
    expect(slow.received.length).toBeLessThanOrEqual(4);
  });

  it("redirects are not followed, and an answer without end is not read", async () => {
    const to = await receiver();
    const elsewhere = await receiver();
    await hooks.create({ name: "odd", url: to.url });
    to.answer = (_request, response) => void response.writeHead(302, { location: elsewhere.url }).end();
    const moved = await ended();
    await until("a try", async () => (await deliveryOf(moved))?.status_code === 302);
    expect(elsewhere.received).toEqual([]);
    to.answer = (_request, response) => {
      response.writeHead(200);
      const flood = (): void => {
        while (!response.destroyed && response.write(Buffer.alloc(65_536)));
      };
      response.on("drain", flood);
      flood();
    };
    expect(await settledAs(await ended(), "delivered")).toMatchObject({ status_code: 200 });
  });

  it("is given up after its tries, and its webhook is disabled after several in a row, or at once when it is gone", async () => {
    await lab.worker?.stop();
    const to = await receiver();
    to.answer = (_request, response) => void response.writeHead(500).end();
    await hooks.create({ name: "broken", url: to.url, tenant: "broken" });
    const runs: string[] = [];
    for (let i = 0; i < 5; i++) runs.push(await ended("broken"));
    await lab.db.query("update capstan.webhook_deliveries set attempts = 19 where tenant = 'broken'");
    const now = sender();
    for (let i = 0; i < 4; i++) {
      await now.round();
      await now.settled();
    }
    expect(await deliveryOf(runs[0] as string)).toMatchObject({ state: "gave_up", attempts: 20, status_code: 500, error: "the receiver answered 500" });
    expect(await hooks.get("broken", { tenant: "broken" })).toMatchObject({ failures: 5, disabled_reason: "5 deliveries in a row were given up" });
    expect(await deliveryOf(await ended("broken"))).toBeUndefined();

    // Back again: what was given up is sent by hand.
    to.answer = (_request, response) => void response.writeHead(200).end();
    expect(await hooks.enable("broken", { tenant: "broken" })).toBe(true);
    const again = (await deliveryOf(runs[0] as string))?.id as string;
    await hooks.redeliver(again, { tenant: "broken" });
    await now.round();
    await now.settled();
    expect(await deliveryOf(runs[0] as string)).toMatchObject({ id: again, state: "delivered", attempts: 1 });
    expect((await hooks.get("broken", { tenant: "broken" })).failures).toBe(0);

    to.answer = (_request, response) => void response.writeHead(410).end();
    await hooks.create({ name: "gone", url: to.url, tenant: "gone" });
    const gone = await ended("gone");
    await now.round();
    await now.settled();
    expect(await deliveryOf(gone)).toMatchObject({ state: "gave_up", attempts: 1, status_code: 410 });
    expect(await hooks.get("gone", { tenant: "gone" })).toMatchObject({ disabled_reason: "the receiver says that it is gone (410)" });
    await lab.startWorker();
  });

  it("what waits for a webhook that is disabled comes to nothing", async () => {
    await lab.worker?.stop();
    const to = await receiver();
    await hooks.create({ name: "off", url: to.url });
    const run = await ended();
    expect(await hooks.disable("off")).toBe(true);
    expect(await hooks.disable("off")).toBe(false);
    const now = sender();
    await now.round();
    expect(await deliveryOf(run)).toMatchObject({ state: "gave_up", error: "the webhook is disabled" });
    expect(to.received).toEqual([]);
    await expect(hooks.test("off")).rejects.toThrow(/disabled/);
    await lab.startWorker();
  });
});

describe("secrets and addresses", () => {
  it("a secret is shown once, and a new one overlaps with it", async () => {
    const to = await receiver();
    const created = await hooks.create({ name: "rotated", url: to.url });
    expect(JSON.stringify([await hooks.list(), await hooks.get("rotated")])).not.toContain(created.secret);
    const renewed = await hooks.rotate("rotated");
    await hooks.test("rotated");
    await until("both signatures", () => to.received.length === 1);
    const { headers, body } = to.received[0] as { headers: Record<string, string>; body: string };
    for (const secret of [created.secret, renewed.secret]) expect(verifyWebhook({ headers, body, secret }).event.type).toBe("webhook.test");
    await hooks.rotate("rotated", { overlapMs: 0 });
    await hooks.test("rotated");
    await until("the newest signature alone", () => to.received.length === 2);
    const second = to.received[1] as { headers: Record<string, string>; body: string };
    expect(() => verifyWebhook({ ...second, secret: renewed.secret })).toThrow(WebhookSignatureError);
  });

  it("a private address is refused when the webhook is made, and at every send", async () => {
    const to = await receiver();
    await using strict = await openLab(database.url, { agents: [], idle: true });
    await expect(strict.capstan.webhooks.create({ name: "inside", url: to.url.replace("http:", "https:"), tenant: "t" })).rejects.toMatchObject({ code: "OUTGOING_REFUSED" });
    await expect(strict.capstan.webhooks.create({ name: "inside", url: "https://u:p@example.com/", tenant: "t" })).rejects.toMatchObject({ code: "ARGUMENT_INVALID" });
    await lab.worker?.stop();
    // Made where it was allowed, or by SQL; or its name leads elsewhere by now.
    await hooks.create({ name: "inside", url: to.url, tenant: "inside" });
    const run = await ended("inside");
    const guarded = sender("0 seconds", { send: outgoingPost(new OutgoingGuard()) });
    await guarded.round();
    await guarded.settled();
    expect(await deliveryOf(run)).toMatchObject({ state: "waiting", error: expect.stringContaining("loopback") });
    expect(to.received).toEqual([]);
    await lab.startWorker();
  });

  it("names and deeds that are wrong are told so, and deeds are in the audit log", async () => {
    const to = await receiver();
    await expect(hooks.create({ name: "", url: to.url })).rejects.toMatchObject({ code: "ARGUMENT_INVALID" });
    await expect(hooks.create({ name: "x", url: "nowhere" })).rejects.toMatchObject({ code: "ARGUMENT_INVALID" });
    await expect(hooks.create({ name: "x", url: to.url, events: ["run.started" as never] })).rejects.toMatchObject({ code: "ARGUMENT_INVALID" });
    await hooks.create({ name: "x", url: to.url, actor: "ada" });
    await expect(hooks.create({ name: "x", url: to.url })).rejects.toMatchObject({ code: "WEBHOOK_EXISTS" });
    await expect(hooks.get("y")).rejects.toMatchObject({ code: "WEBHOOK_UNKNOWN" });
    await expect(hooks.redeliver("00000000-0000-7000-8000-000000000000")).rejects.toMatchObject({ code: "WEBHOOK_UNKNOWN" });
    const { items } = await lab.capstan.audit.list({ action: "webhook.*", target: "x" });
    expect(items.map(({ action, actor }) => [action, actor])).toContainEqual(["webhook.create", "ada"]);
  });
});
