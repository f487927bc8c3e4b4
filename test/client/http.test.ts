/** The client over HTTP means what the client over Postgres means: the same handle, the same errors, nothing done twice. */
import { randomUUID } from "node:crypto";
import { afterAll, beforeEach, describe, expect, expectTypeOf, it, onTestFinished } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { askHumanTool } from "../../src/agents/engine-tools.ts";
import { tool } from "../../src/agents/tool.ts";
import type { CapstanApi } from "../../src/client/api.ts";
import { agentContract } from "../../src/client/agent-contract.ts";
import { createClient } from "../../src/client/client.ts";
import {
  ArgumentError,
  IdempotencyConflictError,
  InputInvalidError,
  ResultTimeoutError,
  RunEndedError,
  RunFailedError,
  UnknownRunError,
  WaitDecidedError,
  WaitUnknownError,
} from "../../src/client/errors.ts";
import { ApiError, ApiUnavailableError } from "../../src/client/http/errors.ts";
import type { RunHandle } from "../../src/client/handle.ts";
import type { JsonValue } from "../../src/domain/json.ts";
import { createPool } from "../../src/store/pool.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { collect, openLab, until } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { follower, seqsOf } from "./follower.ts";
import { createApi } from "../../src/http/server.ts";
import { silentLog } from "../../src/telemetry/log.ts";
import { startTestApi } from "./http-api.ts";

const database = await createTestDatabase();
const report = agentContract({ name: "report", input: z.object({ topic: z.string(), depth: z.number().default(1) }), output: z.object({ title: z.string(), pages: z.number() }) });
const reporter = agent({
  name: report.name,
  model: "scripted:report",
  instructions: "Report.",
  input: z.object({ topic: z.string(), depth: z.number().default(1) }),
  output: z.object({ title: z.string(), pages: z.number() }),
});
const talker = agent({ name: "talker", model: "scripted:talker", instructions: "Answer.", interactive: true });
const launch = tool({
  name: "launch",
  description: "launches",
  input: z.object({ force: z.number() }),
  effect: "once",
  approval: true,
  execute: ({ force }) => Promise.resolve(`launched ${force}`),
});
const asker = agent({ name: "asker", model: "scripted:asker", instructions: "Ask.", tools: [launch, askHumanTool()] });
const lab = await openLab(database.url, {
  agents: [reporter, talker, asker],
  models: [
    scriptedModel([{ toolCalls: [{ name: "submit_output", input: { title: "Sand", pages: 3 } }] }], { name: "scripted:report", by: "turn" }),
    scriptedModel(
      Array.from({ length: 20 }, () => "well"),
      { name: "scripted:talker", by: "turn" },
    ),
    scriptedModel([{ toolCalls: [{ name: "launch", input: { force: 1 } }] }, { toolCalls: [{ name: "ask_human", input: { question: "which?" } }] }, "done"], {
      name: "scripted:asker",
      by: "turn",
    }),
  ],
});
const db = createPool({ connectionString: database.url, max: 4, applicationName: "api test" });
const direct = createClient({ connectionString: database.url });
const api = await startTestApi(direct, db);
const small: CapstanApi = createClient({ baseUrl: api.url });
// The API as it is served, beside the small one that can be made to fail.
const served = await createApi({ db, client: direct, log: silentLog });
const { url: servedUrl } = await served.listen({ host: "127.0.0.1", port: 0 });
const real: CapstanApi = createClient({ baseUrl: servedUrl });
afterAll(async () => {
  await api.app.close();
  await served.close();
  await direct.close();
  await lab[Symbol.asyncDispose]();
  await db.end();
});
beforeEach(() => {
  api.faults.length = 0;
  (api.seen as string[]).length = 0;
  (api.headers as unknown[]).length = 0;
});

const countRuns = async (): Promise<number> => (await db.query<{ n: number }>("select count(*)::int as n from capstan.runs")).rows[0]?.n ?? 0;
const parked = (run: Pick<RunHandle, "status">): Promise<unknown> => until("input to be waited for", async () => (await run.status()).wait_reason === "input");

describe.each([
  ["the API", real],
  ["a small API", small],
] as const)("a run over HTTP, by %s", (_, client) => {
  it("has its agent's types, from the contract alone", async () => {
    const run = await client.enqueue(report, { topic: "sand" });
    expectTypeOf(run).toEqualTypeOf<RunHandle<{ title: string; pages: number }>>();
    expectTypeOf(client.enqueue("report", 1)).toEqualTypeOf<Promise<RunHandle<JsonValue>>>();
    // @ts-expect-error the topic is missing
    await expect(client.enqueue(report, { depth: 2 })).rejects.toThrow(InputInvalidError);
    // @ts-expect-error and here it is no text
    await expect(client.enqueue(report, { topic: 1 })).rejects.toThrow(/topic/);
    expect(await run.result({ timeoutMs: 20_000 })).toEqual({ title: "Sand", pages: 3 });
    // Defaults of the schema are part of what was sent.
    const [created] = await collect(run.events({ follow: false }));
    expect(created?.payload).toMatchObject({ input: { topic: "sand", depth: 1 } });
  });

  it("is the same to both clients: status, events, live text, end", async () => {
    const run = await client.enqueue("talker", "hello", { labels: ["x"], priority: 3, metadata: { a: 1 } });
    const same = direct.run(run.id);
    await parked(run);
    expect(await run.status()).toEqual(await same.status());
    const reader = follower(run);
    await reader.untilEvent("run.parked");
    expect(await run.send("again", { dedupeKey: "k" })).toBe(await run.send("again", { dedupeKey: "k" }));
    await until("the second answer", () => reader.items.filter((item) => item.type === "event" && item.event.type === "run.parked").length === 2);
    expect(await run.pause()).toBe(true);
    expect(await run.pause()).toBe(false);
    expect(await run.resume()).toBe(true);
    expect(await run.cancel("enough")).toBe(true);
    expect(await run.cancel()).toBe(false);
    await reader.ended;
    const events = await collect(same.events());
    expect(reader.items.flatMap((item) => (item.type === "event" ? [item.event] : []))).toEqual(events);
    expect(await collect(run.events())).toEqual(events);
    expect(await collect(run.events({ follow: false, after: 2 }))).toEqual(events.slice(2));
    await expect(run.result()).rejects.toMatchObject({ name: "RunFailedError", code: "RUN_CANCELLED", message: `run ${run.id} cancelled: enough` });
    await expect(run.result()).rejects.toThrow(RunFailedError);
    await expect(run.send("late")).rejects.toThrow(RunEndedError);
    const again = await run.retry();
    await parked(again);
    const forked = await again.fork();
    expect(forked.id).not.toBe(again.id);
    await Promise.all([again.cancel(), forked.cancel()]);
  });

  it("is approved, denied and answered by its handle, as over Postgres", async () => {
    for (const through of [client, direct] as CapstanApi[]) {
      const run = await through.enqueue(asker, "go");
      const [wait] = await until("the approval", async () => (await run.waits()).length > 0 && (await run.waits()));
      expect(wait).toMatchObject({ kind: "approval", name: "launch", run_id: run.id });
      const callId = wait?.call_id ?? "";
      await expect(run.approve("another")).rejects.toThrow(WaitUnknownError);
      await expect(run.approve(callId, { input: { force: "much" } })).rejects.toThrow(InputInvalidError);
      await run.approve(callId, { input: { force: 7 }, reason: "safe" });
      await expect(run.deny(callId)).rejects.toThrow(WaitDecidedError);
      const [question] = await until("the question", async () => {
        const open = await run.waits();
        return open[0]?.kind === "question" && open;
      });
      await expect(run.answer(randomUUID(), "this")).rejects.toThrow(WaitUnknownError);
      await run.answer(question?.id ?? "", "this");
      expect(await run.result({ timeoutMs: 20_000 })).toBe("done");
      const results = (await collect(run.events({ follow: false }))).filter(({ type }) => type === "tool.completed");
      expect(JSON.stringify(results.map(({ payload }) => payload))).toContain("launched 7");
    }
  });

  it("has the errors of the other client, by code, with what belongs to them", async () => {
    await expect(client.run(randomUUID()).status()).rejects.toThrow(UnknownRunError);
    await expect(collect(client.run(randomUUID()).events())).rejects.toThrow(UnknownRunError);
    await expect(client.run(randomUUID()).result()).rejects.toThrow(UnknownRunError);
    const idempotencyKey = randomUUID();
    const run = await client.enqueue("talker", "one", { idempotencyKey });
    expect((await client.enqueue("talker", "one", { idempotencyKey })).id).toBe(run.id);
    const conflict = await client.enqueue("talker", "two", { idempotencyKey }).catch((error: unknown) => error);
    expect(conflict).toBeInstanceOf(IdempotencyConflictError);
    expect(conflict).toMatchObject({ runId: run.id, code: "IDEMPOTENCY_CONFLICT" });
    await expect(run.result({ timeoutMs: 300 })).rejects.toThrow(ResultTimeoutError);
    const stop = new AbortController();
    const waiting = run.result({ signal: stop.signal });
    stop.abort(new Error("no more"));
    await expect(waiting).rejects.toThrow("no more");
    await run.cancel();
  });

  it("refuses what means nothing without a database, before it asks", async () => {
    for (const options of [{ tx: db }, { tenant: "acme" }, { actor: "me" }]) await expect(client.enqueue("talker", "x", options)).rejects.toThrow(ArgumentError);
    await expect(client.enqueueMany([], { tx: db })).rejects.toThrow(/connectionString/);
    await expect(client.run(randomUUID()).send("x", { tx: db })).rejects.toThrow(ArgumentError);
    expect(() => createClient({ baseUrl: "ftp://x" })).toThrow(/baseUrl/);
    expect(() => createClient({ baseUrl: api.url, connectionString: database.url } as never)).toThrow(ArgumentError);
    expect(api.seen).toEqual([]);
  });
});

describe("many runs at once", () => {
  it.each([
    ["HTTP", (): CapstanApi => real],
    ["HTTP, small", (): CapstanApi => small],
    ["Postgres", (): CapstanApi => direct],
  ])("over %s are all there in their order, or none", async (_, through) => {
    const runs = await through().enqueueMany(Array.from({ length: 30 }, (_item, i) => ({ agent: "talker", input: `n${i}`, options: { idempotencyKey: `many-${randomUUID()}` } })));
    const inputs = await Promise.all(runs.map(async (run) => (await collect(run.events({ follow: false })))[0]?.payload["input"]));
    expect(inputs).toEqual(runs.map((_run, i) => `n${i}`));
    const before = await countRuns();
    const refused = through().enqueueMany([
      { agent: "talker", input: "good" },
      { agent: report, input: { depth: 1 } },
      { agent: "talker", input: "good too" },
    ]);
    await expect(refused).rejects.toThrow(InputInvalidError);
    await expect(
      through().enqueueMany([
        { agent: "talker", input: "good" },
        { agent: "talker", input: "bad", options: { priority: 5_000 } },
      ]),
    ).rejects.toThrow(ArgumentError);
    expect(await countRuns()).toBe(before);
    await expect(through().enqueueMany(Array.from({ length: 1_001 }, () => ({ agent: "talker", input: "x" })))).rejects.toThrow(/1000/);
    expect(await through().enqueueMany([])).toEqual([]);
    await Promise.all(runs.map((run) => run.cancel()));
  });

  it("in a transaction of the caller's exist with it", async () => {
    const tx = await db.connect();
    try {
      await tx.query("begin");
      const runs = await direct.enqueueMany(
        [
          { agent: talker, input: "a" },
          { agent: report, input: { topic: "b" } },
        ],
        { tx },
      );
      await tx.query("rollback");
      await expect(direct.run(runs[0]?.id ?? "").status()).rejects.toThrow(UnknownRunError);
    } finally {
      tx.release();
    }
  });
});

describe("beside runs", () => {
  it("conversations, agents and schedules are what they are over Postgres", async () => {
    const talk = await real.conversations.create({ agent: "talker", title: "sand", metadata: { a: 1 } });
    const first = await talk.send("hello");
    await parked(first);
    expect(await talk.get()).toEqual(await direct.conversation(talk.id).get());
    expect((await talk.runs()).map(({ id }) => id)).toEqual([first.id]);
    expect(await talk.transcript()).toEqual(await direct.conversation(talk.id).transcript());
    expect((await real.conversations.list({ agent: "talker" })).map(({ id }) => id)).toContain(talk.id);
    await first.cancel();
    expect(await first.at(1)).toEqual(await direct.run(first.id).at(1));

    expect(await real.agents.get("talker")).toEqual(await direct.agents.get("talker"));
    expect((await real.agents.list()).map(({ name }) => name)).toEqual((await direct.agents.list()).map(({ name }) => name));
    const forked = await real.agents.fork("talker", { instructions: "Answer well." });
    expect(forked.created).toBe(true);
    expect(await real.agents.promote("talker", forked.sha)).toEqual({ sha: forked.sha, changed: true });
    expect(await real.agents.history("talker")).toEqual(await direct.agents.history("talker"));
    const before = (await real.agents.history("talker")).findLast(({ what }) => what === "promoted")?.sha ?? "";
    expect(await real.agents.diff(before, forked.sha)).toEqual(await direct.agents.diff(before, forked.sha));
    await real.agents.promote("talker", before);

    const made = await real.schedules.create("nightly", {
      agent: "talker",
      cron: "0 3 * * *",
      input: "good night",
      labels: ["n"],
      concurrency: { key: "night", onConflict: "refuse" },
    });
    expect(made).toEqual(await direct.schedules.get("nightly"));
    await expect(real.schedules.create("nightly", { agent: "talker", cron: "0 4 * * *" })).rejects.toMatchObject({ code: "SCHEDULE_EXISTS" });
    expect(await real.schedules.pause("nightly")).toBe(true);
    expect(await real.schedules.pause("nightly")).toBe(false);
    expect(await real.schedules.resume("nightly")).toBe(true);
    const run = real.run(await real.schedules.runNow("nightly"));
    await run.cancel();
    expect(await real.schedules.list()).toEqual(await direct.schedules.list());
    await real.schedules.delete("nightly");
    await expect(real.schedules.get("nightly")).rejects.toMatchObject({ code: "SCHEDULE_UNKNOWN" });
  });
});

describe("an API that fails", () => {
  it("is asked again, with the same key: an answer that was lost starts no second run", async () => {
    const before = await countRuns();
    api.faults.push({ kind: "lost" }, { kind: "answer", status: 503 }, { kind: "answer", status: 502, body: "<html>bad gateway</html>" });
    const run = await small.enqueue("talker", "once");
    expect(api.seen).toEqual(Array.from({ length: 4 }, () => "POST /v1/runs"));
    const keys = new Set(api.headers.map((headers) => headers["idempotency-key"]));
    expect(keys.size).toBe(1);
    expect(await countRuns()).toBe(before + 1);
    await parked(run);
    api.faults.push({ kind: "lost" });
    await run.send("also once");
    await until("one answer", async () => (await run.status()).turn === 2);
    await parked(run);
    expect((await collect(run.events({ follow: false }))).filter(({ type }) => type === "input.received").length).toBeLessThanOrEqual(1);
    expect((await run.status()).turn).toBe(2);
    api.faults.push({ kind: "lost" });
    expect(
      await small.enqueueMany([
        { agent: "talker", input: "a" },
        { agent: "talker", input: "b" },
      ]),
    ).toHaveLength(2);
    expect(await countRuns()).toBe(before + 3);
    await run.cancel();
  });

  it("is given the time it asks for", async () => {
    api.faults.push({ kind: "answer", status: 429, retryAfter: "1" });
    const startedMs = performance.now();
    const run = await small.enqueue("talker", "later");
    expect(performance.now() - startedMs).toBeGreaterThan(950);
    // Nothing was done, so even what must not be done twice is done.
    api.faults.push({ kind: "answer", status: 429, retryAfter: new Date(Date.now() + 1_000).toUTCString() });
    await expect(run.stop()).rejects.toThrow(/turn/);
    api.faults.push({ kind: "answer", status: 429, retryAfter: "3600" });
    await expect(run.status()).rejects.toMatchObject({ name: "ApiError", code: "RATE_LIMITED", status: 429, retryable: true });
    await run.cancel();
  });

  it("is not asked again where twice is not once", async () => {
    const run = await small.enqueue("talker", "stop me");
    await parked(run);
    (api.seen as string[]).length = 0;
    api.faults.push({ kind: "lost" });
    await expect(run.stop()).rejects.toThrow(ApiUnavailableError);
    api.faults.push({ kind: "answer", status: 503 });
    await expect(run.stop()).rejects.toThrow(ApiError);
    expect(api.seen).toHaveLength(2);
    await run.cancel();
  });

  it("that does not answer in time is given up, and said so", async () => {
    const hasty = createClient({ baseUrl: api.url, timeoutMs: 200, retries: 1 });
    api.faults.push({ kind: "silent" }, { kind: "silent" });
    await expect(hasty.run(randomUUID()).status()).rejects.toThrow(/did not answer within 200 ms/);
    const gone = await startTestApi(direct, db);
    await gone.app.close();
    const nowhere = createClient({ baseUrl: gone.url, retries: 0 });
    await expect(nowhere.enqueue("talker", "x")).rejects.toMatchObject({ code: "API_UNAVAILABLE", retryable: true, message: expect.stringContaining("ECONNREFUSED") as string });
  });

  it("sends the token, asked for anew each time, and tells what the API says of it", async () => {
    let asked = 0;
    const withToken = createClient({ baseUrl: `${api.url}/`, token: () => Promise.resolve(`t${++asked}`) });
    api.faults.push({ kind: "answer", status: 401, body: JSON.stringify({ code: "TOKEN_INVALID", detail: "unknown token" }) });
    await expect(withToken.run(randomUUID()).status()).rejects.toMatchObject({ name: "ApiError", code: "TOKEN_INVALID", status: 401, message: "unknown token" });
    await expect(withToken.run(randomUUID()).status()).rejects.toThrow(UnknownRunError);
    expect(api.headers.map(({ authorization }) => authorization)).toEqual(["Bearer t1", "Bearer t2"]);
  });
});

describe("an API that is restarted", () => {
  it("is waited for by those who follow and those who want a result; each event comes once", async () => {
    let current = await startTestApi(direct, db);
    onTestFinished(() => current.app.close());
    const patient = createClient({ baseUrl: current.url });
    const run = await patient.enqueue("talker", "hello");
    const readers = Array.from({ length: 5 }, () => follower(run));
    const result = run.result().catch((error: unknown) => error);
    await Promise.all(readers.map((reader) => reader.untilEvent("run.parked")));
    await current.app.close();
    await direct.run(run.id).send("while it is away");
    await until("the answer", async () => (await direct.run(run.id).status()).turn === 2);
    await parked(direct.run(run.id));
    current = await startTestApi(direct, db, current.port);
    await until("all to have it", () => readers.every(({ items }) => items.filter((item) => item.type === "event" && item.event.type === "run.parked").length === 2));
    await direct.run(run.id).cancel();
    await Promise.all(readers.map(({ ended }) => ended));
    for (const { items } of readers) expect(seqsOf(items)).toEqual(seqsOf(items).map((_, i) => i + 1));
    expect(await result).toMatchObject({ code: "RUN_CANCELLED" });
  });
});
