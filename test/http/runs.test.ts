/** Runs over HTTP, each route with good and bad input, against a worker and a scripted model. */
import { randomUUID } from "node:crypto";
import { afterAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { askHumanTool } from "../../src/agents/engine-tools.ts";
import { tool } from "../../src/agents/tool.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { openLab, until } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { ask, openApi, type Answer, type Request } from "./api-lab.ts";

const database = await createTestDatabase();
const launch = tool({
  name: "launch",
  description: "launches",
  input: z.object({ force: z.number() }),
  effect: "once",
  approval: true,
  execute: ({ force }) => Promise.resolve(`launched ${force}`),
});
const reporter = agent({ name: "reporter", model: "scripted:report", instructions: "Report.", input: z.object({ topic: z.string() }), output: z.object({ title: z.string() }) });
const talker = agent({ name: "talker", model: "scripted:talker", instructions: "Answer.", interactive: true });
const asker = agent({ name: "asker", model: "scripted:asker", instructions: "Ask.", tools: [launch, askHumanTool()] });
const lab = await openLab(database.url, {
  agents: [reporter, talker, asker],
  models: [
    scriptedModel([{ toolCalls: [{ name: "submit_output", input: { title: "Sand" } }] }], { name: "scripted:report", by: "turn" }),
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
// One connection: a request that holds one and asks for another would wait for ever.
const api = await openApi(database.url, { poolMax: 1 });
afterAll(async () => {
  await api[Symbol.asyncDispose]();
  await lab[Symbol.asyncDispose]();
});

const call = (path: string, request?: Request): Promise<Answer> => ask(api.url, `/v1${path}`, request);
const start = async (name: string, input: unknown, more: object = {}): Promise<string> => {
  const { status, body } = await call("/runs", { body: { agent: name, input, ...more } });
  expect(status, JSON.stringify(body)).toBe(201);
  return body.run_id;
};
const status = async (id: string): Promise<Answer["body"]> => (await call(`/runs/${id}`)).body;
const parked = (id: string, reason = "awaiting_input"): Promise<unknown> =>
  until(`run ${id} to wait`, async () => [reason, reason.replace("awaiting_", "")].includes((await status(id)).wait_reason));
const audit = async (action: string): Promise<Answer["body"][]> => (await call(`/audit?action=${action}`)).body.items;
const missing = { code: "RUN_MISSING", status: 404, title: "Not Found", type: "about:blank" };

describe("starting runs", () => {
  it("answers with the run, and waits for its result", async () => {
    const made = await call("/runs", { body: { agent: "reporter", input: { topic: "sand" }, labels: ["a", "b"], metadata: { n: 1 }, priority: -5, subject: "user 1" } });
    expect(made).toMatchObject({ status: 201, body: { agent: "reporter", tenant: "default", paused: false } });
    expect(made.headers.get("location")).toBe(`/v1/runs/${made.body.run_id}`);
    expect(made.headers.get("content-type")).toMatch(/^application\/json/);
    const result = await call(`/runs/${made.body.run_id}/result?wait_ms=20000`);
    expect(result).toMatchObject({ status: 200, body: { state: "completed", output: { title: "Sand" }, compaction: { enabled: false } } });
    expect(await status(made.body.run_id)).toEqual(result.body);
    expect((await call(`/runs/${made.body.run_id}/usage`)).body.total).toMatchObject({ calls: 1 });
    const [entry] = await audit("run.create");
    expect(entry).toMatchObject({ actor: "api", target: made.body.run_id, tenant: "default", detail: { agent: "reporter" } });
    const [created] = (await call(`/runs/${made.body.run_id}/events`)).body.items;
    expect(created).toMatchObject({ seq: 1, type: "run.created", actor: "api" });
  });

  it("gives the same run for the same key, and says so", async () => {
    const headers = { "idempotency-key": randomUUID() };
    const first = await call("/runs", { body: { agent: "reporter", input: { topic: "one" } }, headers });
    const again = await call("/runs", { body: { agent: "reporter", input: { topic: "one" } }, headers });
    const other = await call("/runs", { body: { agent: "reporter", input: { topic: "two" } }, headers });
    expect([first.status, again.status, other.status]).toEqual([201, 200, 409]);
    expect(again.body.run_id).toBe(first.body.run_id);
    expect(other.body).toMatchObject({ code: "IDEMPOTENCY_CONFLICT", details: { run_id: first.body.run_id } });
    expect(other.headers.get("content-type")).toBe("application/problem+json");
    expect((await audit("run.create")).filter(({ target }) => target === first.body.run_id)).toHaveLength(1);
    const many = await Promise.all(
      Array.from({ length: 8 }, () => call("/runs", { body: { agent: "reporter", input: { topic: "many" } }, headers: { "idempotency-key": "many" } })),
    );
    expect(many.map((answer) => answer.status).toSorted((a, b) => a - b)).toEqual([200, 200, 200, 200, 200, 200, 200, 201]);
    expect(new Set(many.map((answer) => answer.body.run_id)).size).toBe(1);
  });

  it("starts all of a batch, or none", async () => {
    const count = async (): Promise<number> => (await api.db.query<{ n: number }>("select count(*)::int as n from capstan.runs")).rows[0]?.n ?? 0;
    const good = { agent: "reporter", input: { topic: "batch" } };
    const batch = await call("/runs/batch", { body: { runs: [good, { ...good, idempotency_key: "b1" }, { ...good, labels: ["last"] }] } });
    expect(batch.status).toBe(201);
    expect(batch.body.items.map(({ created }: { created: boolean }) => created)).toEqual([true, true, true]);
    const again = await call("/runs/batch", { body: { runs: [{ ...good, idempotency_key: "b1" }] } });
    expect(again.body.items).toEqual([{ run_id: batch.body.items[1].run_id, created: false }]);
    const before = await count();
    expect(await call("/runs/batch", { body: { runs: [good, { ...good, pool: "summarize" }] } })).toMatchObject({ status: 400, body: { code: "ARGUMENT_INVALID" } });
    expect(await count()).toBe(before);
    const keyed = { headers: { "idempotency-key": "whole" }, body: { runs: [good, good] } };
    expect((await call("/runs/batch", keyed)).body.items[1].run_id).toBe((await call("/runs/batch", keyed)).body.items[1].run_id);
  });

  it("takes compaction and budget for the run alone, and shows them resolved", async () => {
    const id = await start("talker", "hello", { compaction: { enabled: true, keep_last_n: 7 }, budget: { hard: { turns: 9 } }, concurrency: { key: "k", limit: 3 } });
    expect(await status(id)).toMatchObject({ compaction: { enabled: true, keep_last_n: 7, autocompact_at_pct: 80 }, budget: { hard: { turns: 9 } } });
    expect((await call("/runs", { body: { agent: "talker", input: "x", compaction: { target_percentage: 7 } } })).body).toMatchObject({
      status: 400,
      issues: [{ path: "compaction.target_percentage", message: "must be a whole number from 10 to 50, not 7" }],
    });
  });

  it.each([
    ["no body", { method: "POST" }, 400, ""],
    ["half a body", { text: '{"agent":' }, 400, "JSON_INVALID"],
    ["text", { text: "hello", headers: { "content-type": "text/plain" } }, 415, "MEDIA_TYPE_UNSUPPORTED"],
    ["a form", { text: "a=b", headers: { "content-type": "application/x-www-form-urlencoded" } }, 415, "MEDIA_TYPE_UNSUPPORTED"],
    ["a list", { body: [] }, 400, "ARGUMENT_INVALID"],
    ["an agent that is no name", { body: { agent: "no name", input: 1 } }, 400, "ARGUMENT_INVALID"],
    ["a number for a text", { body: { agent: 7, input: 1 } }, 400, "ARGUMENT_INVALID"],
    ["a time without a zone", { body: { agent: "talker", input: 1, run_at: "2026-12-01T00:00:00" } }, 400, "ARGUMENT_INVALID"],
    ["a definition that is not there", { body: { agent: "talker", input: 1, definition_sha: `sha256:${"0".repeat(64)}` } }, 400, "ARGUMENT_INVALID"],
    ["a key with a line break in it", { body: { agent: "talker", input: 1 }, headers: { "idempotency-key": "x".repeat(401) } }, 400, "ARGUMENT_INVALID"],
    ["a NUL in a label", { body: { agent: "talker", input: 1, labels: ["a\u0000b"] } }, 400, "ARGUMENT_INVALID"],
    ["JSON that is too deep", { text: `{"agent":"talker","input":${"[".repeat(2_000)}${"]".repeat(2_000)}}` }, 400, "ARGUMENT_INVALID"],
  ] as [string, Request, number, string][])("refuses %s", async (_, request, expected, code) => {
    const answer = await call("/runs", request);
    expect(answer).toMatchObject({ status: expected, body: { status: expected, instance: "/v1/runs", ...(code === "" ? {} : { code }) } });
    expect(answer.headers.get("content-type")).toBe("application/problem+json");
  });

  it("names fields that it does not know", async () => {
    const { body } = await call("/runs", { body: { agent: "talker", input: 1, priorty: 1, budget: { hard: { turn: 1 } }, concurrency: { key: "a", on_conflikt: "queue" } } });
    expect(body.issues).toEqual(
      expect.arrayContaining([
        { path: "priorty", message: "is not a known field" },
        { path: "budget.hard.turn", message: "is not a known field" },
        { path: "concurrency.on_conflikt", message: "is not a known field" },
      ]),
    );
    expect((await call("/runs?limt=3")).body.issues).toEqual([{ path: "limt", message: "is not a known field" }]);
  });

  it("refuses a body of 17 MiB without reading it to its end, and takes one that is nearly as long as allowed", async () => {
    const large = (mib: number): Promise<Answer> => call("/runs", { body: { agent: "talker", input: "x".repeat(mib * 1024 * 1024) } });
    expect(await large(17)).toMatchObject({ status: 413, body: { code: "PAYLOAD_TOO_LARGE" } });
    expect((await large(3)).status).toBe(201);
  });
});

describe("looking at runs", () => {
  it("lists newest first, page by page, and filters", async () => {
    const label = `list-${randomUUID()}`;
    const ids: string[] = [];
    for (let i = 0; i < 5; i++) ids.unshift(await start("reporter", { topic: "list" }, { labels: [label], subject: `list subject ${i % 2}` }));
    const seen: string[] = [];
    let cursor: string | undefined;
    do {
      const { body } = await call(`/runs?label=${label}&limit=2${cursor === undefined ? "" : `&cursor=${cursor}`}`);
      expect(body.items.length).toBeLessThanOrEqual(2);
      seen.push(...body.items.map(({ run_id: id }: { run_id: string }) => id));
      cursor = body.next_cursor;
    } while (cursor !== undefined);
    expect(seen).toEqual(ids);
    const filtered = async (query: string): Promise<number> => (await call(`/runs?label=${label}&${query}`)).body.items.length;
    expect(await filtered("subject=list%20subject%201")).toBe(2);
    expect(await filtered("agent=talker")).toBe(0);
    expect(await filtered("q=LIST%20SUBJ")).toBe(5);
    expect(await filtered(`q=${(ids[0] as string).slice(0, 30)}`)).toBeGreaterThan(0);
    expect(await filtered("q=%25")).toBe(0);
    expect(await filtered("created_after=2100-01-01T00:00:00Z")).toBe(0);
    await Promise.all(ids.map((id) => call(`/runs/${id}/result?wait_ms=20000`)));
    expect(await filtered("state=completed")).toBe(5);
    for (const query of ["cursor=abc", "cursor=MQ==", "limit=0", "limit=1e2", "limit=501", "state=done", "created_after=yesterday"]) {
      expect(await call(`/runs?${query}`), query).toMatchObject({ status: 400, body: { code: "ARGUMENT_INVALID" } });
    }
  });

  it("gives events in pages, messages, the run at an event, and its tree", async () => {
    const id = await start("talker", "hello");
    await parked(id);
    const all: { seq: number }[] = [];
    let after = 0;
    for (let page = await call(`/runs/${id}/events?limit=2`); page.body.items.length > 0; page = await call(`/runs/${id}/events?limit=2&after=${after}`)) {
      expect(page.body.ended).toBe(false);
      all.push(...page.body.items);
      after = page.body.next_after;
    }
    expect(all.map(({ seq }) => seq)).toEqual(Array.from({ length: (await status(id)).last_seq }, (_, i) => i + 1));
    expect((await call(`/runs/${id}/transcript`)).body.messages).toMatchObject([{ role: "user" }, { role: "assistant" }]);
    expect((await call(`/runs/${id}/state?seq=1`)).body).toMatchObject({ seq: 1, state: "queued", messages: [{ role: "user" }] });
    expect((await call(`/runs/${id}/state?seq=999`)).status).toBe(400);
    expect((await call(`/runs/${id}/tree`)).body).toMatchObject({ root: { run_id: id, children: [] }, runs: 1, is_cut: false });
    expect((await audit("transcript.read")).filter(({ target }) => target === id)).toHaveLength(2);
    await call(`/runs/${id}/cancel`, { method: "POST" });
    expect((await call(`/runs/${id}/events?after=${after}`)).body).toMatchObject({ items: [{ type: "run.cancelled" }], ended: true });
    expect((await call(`/runs/${id}/events?after=2147483647`)).body).toEqual({ items: [], next_after: 2_147_483_647, ended: true });
  });

  it("says the same of a run that is not there, wherever it is asked for, and refuses what is no id", async () => {
    const none = randomUUID();
    for (const [path, request] of onRun(none)) expect(await call(path, request), path).toMatchObject({ status: 404, body: { ...missing, detail: `no run ${none}` } });
    for (const [path, request] of onRun("not-an-id")) expect(await call(path, request), path).toMatchObject({ status: 400, body: { code: "ARGUMENT_INVALID" } });
    expect((await call("/runs/%E0%A4%A")).body).toMatchObject({ status: 400, code: "URL_INVALID" });
    expect((await call("/nothing")).body).toMatchObject({ status: 404, code: "ROUTE_UNKNOWN", instance: "/v1/nothing" });
  });

  it("ends a wait with the time, not with the run, and when the server stops", async () => {
    const id = await start("talker", "hello");
    await parked(id);
    expect((await call(`/runs/${id}/result?wait_ms=50`)).body).toMatchObject({ state: "waiting", wait_reason: expect.any(String) });
    const begun = Promise.withResolvers<void>();
    const second = await openApi(database.url, { mounts: [{ scopes: {}, register: (app) => void app.addHook("preHandler", async () => begun.resolve()) }] });
    const waiting = ask(second.url, `/v1/runs/${id}/result?wait_ms=60000`);
    await begun.promise;
    const closing = second[Symbol.asyncDispose]();
    expect(await waiting).toMatchObject({ status: 200, body: { run_id: id, state: "waiting" } });
    await closing;
    await call(`/runs/${id}/cancel`, { method: "POST" });
  });
});

describe("steering runs", () => {
  it("sends input once, stops, pauses, resumes, cancels, retries and forks", async () => {
    const id = await start("talker", "hello");
    await parked(id);
    const headers = { "idempotency-key": "i1" };
    const first = await call(`/runs/${id}/input`, { body: { content: "more" }, headers });
    expect(first).toMatchObject({ status: 202, body: { input_id: expect.any(String) } });
    expect((await call(`/runs/${id}/input`, { body: { content: "more" }, headers })).body).toEqual(first.body);
    await until("the answer", async () => (await status(id)).turn === 2 && (await status(id)).state === "waiting");
    expect((await call(`/runs/${id}/stop`, { method: "POST" })).body).toMatchObject({ status: 409, code: "NOT_MID_TURN" });
    expect((await call(`/runs/${id}/pause`, { method: "POST" })).body).toEqual({ run_id: id, paused: true });
    expect((await call(`/runs/${id}/pause`, { body: {} })).body).toEqual({ run_id: id, paused: false });
    expect((await call(`/runs/${id}/resume`, { method: "POST" })).body).toEqual({ run_id: id, resumed: true });
    const fork = await call(`/runs/${id}/fork`, { body: { input: "another way", overlay: { instructions: "Be brief." } }, headers });
    expect(fork).toMatchObject({ status: 201, body: { agent: "talker" } });
    expect(await call(`/runs/${id}/fork`, { body: { input: "another way", overlay: { instructions: "Be brief." } }, headers })).toMatchObject({
      status: 200,
      body: { run_id: fork.body.run_id },
    });
    expect((await call(`/runs/${id}/fork`, { body: { overlay: { model: 7 } } })).body).toMatchObject({ status: 400, code: "DEFINITION_INVALID", issues: [{ path: "model" }] });
    expect((await call(`/runs/${id}/fork`, { body: { at: 2 } })).body).toMatchObject({ status: 409, code: "FORK_POINT_ILLEGAL" });
    expect((await call(`/runs/${id}/cancel`, { body: { reason: "enough" } })).body).toEqual({ run_id: id, cancelled: true });
    expect((await call(`/runs/${id}/cancel`, { method: "POST" })).body).toEqual({ run_id: id, cancelled: false });
    expect(await status(id)).toMatchObject({ state: "cancelled" });
    expect((await call(`/runs/${id}/input`, { body: { content: "late" } })).body).toMatchObject({ status: 409, code: "RUN_FINISHED" });
    const retry = await call(`/runs/${id}/retry`, { method: "POST" });
    expect(retry.status).toBe(201);
    expect(await call(`/runs/${id}/retry`, { body: {} })).toMatchObject({ status: 200, body: { run_id: retry.body.run_id } });
    expect((await call(`/runs/${retry.body.run_id}/retry`, { body: {} })).body).toMatchObject({ code: "RUN_NOT_FAILED", status: 409 });
    for (const action of ["run.input", "run.cancel", "run.retry", "run.pause", "run.resume"]) {
      expect((await audit(action)).filter(({ target }) => target === id).length, action).toBe(action === "run.input" ? 2 : 1);
    }
    for (const other of [fork, retry]) await call(`/runs/${other.body.run_id}/cancel`, { method: "POST" });
  });

  it("refuses input for a full inbox, with a time to come again", async () => {
    const id = await start("talker", "hello", { run_at: "2100-01-01T00:00:00Z" });
    for (let i = 0; i < 16; i++) expect((await call(`/runs/${id}/input`, { body: { content: i } })).status).toBe(202);
    const full = await call(`/runs/${id}/input`, { body: { content: 17 } });
    expect(full).toMatchObject({ status: 429, body: { code: "INBOX_FULL" } });
    expect(full.headers.get("retry-after")).toBe("1");
    await call(`/runs/${id}/cancel`, { method: "POST" });
  });

  it("decides approvals once, answers questions, and keeps one from being taken for the other", async () => {
    const id = await start("asker", "go");
    await parked(id, "approval");
    const inbox = (await call("/approvals?limit=500")).body.items.filter(({ run_id: run }: { run_id: string }) => run === id);
    expect(inbox).toMatchObject([{ kind: "approval", name: "launch" }]);
    const [wait] = (await call(`/runs/${id}/waits`)).body.items;
    expect(wait).toMatchObject(inbox[0]);
    const path = `/runs/${id}/approvals/${wait.call_id}`;
    expect((await call(`/runs/${id}/waits/${wait.id}/answer`, { body: { answer: "yes" } })).status).toBe(404);
    expect((await call(`/runs/${id}/approvals/none`, { body: { decision: "approve" } })).body).toMatchObject({ code: "WAIT_UNKNOWN", status: 404 });
    expect((await call(path, { body: { decision: "maybe" } })).body).toMatchObject({ issues: [{ path: "decision" }] });
    expect((await call(path, { body: { decision: "approve", input: { force: "much" } } })).body).toMatchObject({ status: 400, code: "INPUT_INVALID", issues: [{ path: "force" }] });
    expect(await call(path, { body: { decision: "approve", input: { force: 7 }, reason: "safe" } })).toMatchObject({ status: 200, body: { decision: "approve" } });
    expect((await call(path, { body: { decision: "deny" } })).body).toMatchObject({ status: 409, code: "WAIT_DECIDED" });
    const [question] = await until("the question", async () => {
      const { body } = await call(`/runs/${id}/waits`);
      return body.items[0]?.kind === "question" && body.items;
    });
    expect((await call(`/runs/${id}/waits/${randomUUID()}/answer`, { body: { answer: 1 } })).status).toBe(404);
    expect((await call(`/runs/${id}/waits/${question.id}/answer`, { body: { answer: "this" } })).body).toMatchObject({ answered: true });
    expect((await call(`/runs/${id}/result?wait_ms=20000`)).body).toMatchObject({ state: "completed", output: "done" });
    expect((await audit("approval.approve")).filter(({ target }) => target === id)).toMatchObject([{ actor: "api", detail: { name: "launch", wait_id: wait.id } }]);
  });

  it("keeps a signal until somebody waits for it, once for each key", async () => {
    const id = await start("talker", "hello", { run_at: "2100-01-01T00:00:00Z" });
    const headers = { "idempotency-key": "s1" };
    const first = await call(`/runs/${id}/signals/go`, { body: { payload: { a: 1 } }, headers });
    expect(first.status).toBe(202);
    expect((await call(`/runs/${id}/signals/go`, { body: { payload: { a: 1 } }, headers })).body).toEqual(first.body);
    expect((await call(`/runs/${id}/signals/a%00b`, { body: {} })).status).toBe(400);
    await call(`/runs/${id}/cancel`, { method: "POST" });
  });
});

/** Every route of one run. */
function onRun(id: string): [string, Request?][] {
  const post = (path: string, body: object = {}): [string, Request] => [`/runs/${id}${path}`, { body }];
  return [
    [`/runs/${id}`],
    [`/runs/${id}/result`],
    [`/runs/${id}/events`],
    [`/runs/${id}/events`, { headers: { accept: "text/event-stream" } }],
    [`/runs/${id}/transcript`],
    [`/runs/${id}/state?seq=1`],
    [`/runs/${id}/tree`],
    [`/runs/${id}/usage`],
    [`/runs/${id}/waits`],
    post("/input", { content: 1 }),
    post("/stop"),
    post("/cancel"),
    post("/pause"),
    post("/resume"),
    post("/signals/x"),
    post("/approvals/c", { decision: "approve" }),
    post(`/waits/${randomUUID()}/answer`, { answer: 1 }),
    post("/compact"),
    post("/fork"),
    post("/retry"),
  ];
}
