/** The service around the routes: without tokens, without a database, and as the client in TypeScript uses it. */
import { request as rawRequest } from "node:http";
import { randomUUID } from "node:crypto";
import { afterAll, describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { DefinitionInvalidError } from "../../src/client/agent-errors.ts";
import { createClient } from "../../src/client/client.ts";
import { ConversationBusyError, RunEndedError, ScheduleExistsError, ScheduleUnknownError, UnknownRunError } from "../../src/client/errors.ts";
import { createApi } from "../../src/http/server.ts";
import { createPool } from "../../src/store/pool.ts";
import { silentLog } from "../../src/telemetry/log.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { collect, openLab, until } from "../engine/harness.ts";
import { startProxy } from "../engine/proxy.ts";
import { createTestDatabase } from "../support/database.ts";
import { ask, openApi } from "./api-lab.ts";

const database = await createTestDatabase();
const lab = await openLab(database.url, {
  agents: [
    agent({ name: "talker", model: "scripted:talker", instructions: "Answer.", interactive: true }),
    agent({ name: "writer", model: "scripted:writer", instructions: "Write." }),
  ],
  models: [
    scriptedModel(
      Array.from({ length: 20 }, () => "well"),
      { name: "scripted:talker", by: "turn" },
    ),
    scriptedModel(
      Array.from({ length: 20 }, () => "written"),
      { name: "scripted:writer", by: "turn" },
    ),
  ],
});
const api = await openApi(database.url, { auth: { cacheMs: 50 } });
afterAll(async () => {
  await api[Symbol.asyncDispose]();
  await lab[Symbol.asyncDispose]();
});

/** A request as no browser and no fetch would send it. */
function raw(path: string, headers: Record<string, string>): Promise<number> {
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  const { port } = new URL(api.url);
  rawRequest({ host: "127.0.0.1", port, path, headers: { host: `127.0.0.1:${port}`, ...headers } }, (response) => {
    response.resume();
    resolve(response.statusCode ?? 0);
  })
    .on("error", reject)
    .end();
  return promise;
}

describe("without tokens", () => {
  it("takes requests of this machine, and none that a proxy or a page brings", async () => {
    const { port } = new URL(api.url);
    expect(await raw("/v1/runs", {})).toBe(200);
    expect(await raw("/v1/runs", { host: `localhost:${port}` })).toBe(200);
    expect(await raw("/v1/runs", { origin: `http://127.0.0.1:${port}` })).toBe(200);
    expect(await raw("/v1/runs", { host: "evil.example" })).toBe(403);
    expect(await raw("/v1/runs", { origin: "https://evil.example" })).toBe(403);
    expect(await raw("/v1/runs", { origin: "null" })).toBe(403);
    expect(await raw("/v1/runs", { "x-forwarded-for": "203.0.113.9" })).toBe(403);
    expect(await raw("/v1/runs", { forwarded: "for=203.0.113.9" })).toBe(403);
    expect((await ask(api.url, "/v1/tokens/current")).body).toMatchObject({ tenant: "default", scopes: expect.arrayContaining(["admin"]) });
  });

  it("listens on this machine only", async () => {
    const db = createPool({ connectionString: database.url, max: 1, applicationName: "api test" });
    const client = createClient({ pool: db });
    const open = await createApi({ db, client, log: silentLog });
    await expect(open.listen({ host: "0.0.0.0", port: 0 })).rejects.toThrow("capstan tokens create");
    await open.close();
    await client.close();
    await db.end();
  });
});

describe("the client in TypeScript", () => {
  it("starts, follows, continues and forks runs, in conversations and by schedules", async () => {
    const client = createClient({ baseUrl: api.url });
    const run = await client.enqueue("writer", "hello", { metadata: { a: 1 }, compaction: { enabled: true }, budget: { hard: { turns: 3 } } });
    expect(await run.result({ timeoutMs: 20_000 })).toBe("written");
    expect(await run.status()).toEqual(await api.client.run(run.id).status());
    expect(await collect(run.events())).toEqual(await collect(api.client.run(run.id).events({ follow: false })));
    expect(await run.at(1)).toEqual(await api.client.run(run.id).at(1));
    await expect(run.send("late")).rejects.toThrow(RunEndedError);
    await expect(client.run(randomUUID()).status()).rejects.toThrow(UnknownRunError);
    const fork = await run.fork({ input: "again" });
    expect(await fork.result({ timeoutMs: 20_000 })).toBe("written");
    expect(
      (
        await client.enqueueMany([
          { agent: "writer", input: 1 },
          { agent: "writer", input: 2 },
        ])
      ).length,
    ).toBe(2);

    const thread = await client.conversations.create({ agent: "writer", title: "a thread", subject: "s" });
    const first = await thread.send("one");
    expect(await first.result({ timeoutMs: 20_000 })).toBe("written");
    const second = await thread.send("two", { runAt: new Date("2100-01-01T00:00:00Z") });
    await expect(thread.send("three")).rejects.toThrow(ConversationBusyError);
    expect((await thread.runs()).map(({ id }) => id)).toEqual([first.id, second.id]);
    expect(await thread.get()).toMatchObject({ title: "a thread", runs: 2, last_run_id: second.id });
    expect((await thread.transcript()).messages.length).toBeGreaterThan(2);
    expect((await client.conversations.list({ subject: "s" })).map(({ id }) => id)).toEqual([thread.id]);
    await second.cancel();

    const schedule = await client.schedules.create("nightly", { agent: "writer", cron: "0 3 * * *", input: "report" });
    expect(schedule).toMatchObject({ name: "nightly", tenant: "default", timezone: "UTC", input: "report" });
    await expect(client.schedules.create("nightly", { agent: "writer", cron: "0 3 * * *" })).rejects.toThrow(ScheduleExistsError);
    expect(await client.schedules.create("nightly", { agent: "writer", cron: "0 4 * * *", replace: true })).toMatchObject({ cron: "0 4 * * *" });
    expect([await client.schedules.pause("nightly"), await client.schedules.pause("nightly"), await client.schedules.resume("nightly")]).toEqual([true, false, true]);
    expect(await client.run(await client.schedules.runNow("nightly")).result({ timeoutMs: 20_000 })).toBe("written");
    expect((await client.schedules.list()).map(({ name }) => name)).toEqual(["nightly"]);
    await client.schedules.delete("nightly");
    await expect(client.schedules.get("nightly")).rejects.toThrow(ScheduleUnknownError);
    await client.close();
  });

  it("works with agents: fork, promote, compare, retire", async () => {
    const client = createClient({ baseUrl: api.url });
    const before = await client.agents.get("talker");
    const forked = await client.agents.fork("talker", { instructions: "Be brief." });
    expect(forked).toMatchObject({ created: true, definition: { instructions: "Be brief." } });
    await expect(client.agents.fork("talker", { limits: { max_turns: 0 } })).rejects.toThrow(DefinitionInvalidError);
    expect(await client.agents.diff(before.sha, forked.sha)).toMatchObject([{ path: "instructions" }]);
    expect(await client.agents.promote("talker", forked.sha)).toEqual({ sha: forked.sha, changed: true });
    expect(await client.agents.promote("talker", forked.sha)).toEqual({ sha: forked.sha, changed: false });
    expect((await client.agents.history("talker"))[0]).toMatchObject({ what: "promoted", sha: forked.sha, actor: "api", at: expect.any(Date) });
    expect(await client.agents.retire("talker")).toBe(true);
    expect((await client.agents.list()).find(({ name }) => name === "talker")).toMatchObject({ retired: true });
    expect(await ask(api.url, "/v1/runs", { body: { agent: "talker", input: 1 } })).toMatchObject({ status: 400 });
    expect((await ask(api.url, "/v1/agents/talker/unretire", { method: "POST" })).body).toEqual({ changed: true });
    await client.close();
  });
});

describe("a database that is away", () => {
  it("is told as such, without its name, and is back by itself", async () => {
    const proxy = await startProxy(database.url);
    const second = await openApi(proxy.url, { auth: { cacheMs: 60_000 } });
    const good = await ask(second.url, "/v1/runs", { body: { agent: "writer", input: 1 } });
    expect(good.status).toBe(201);
    expect((await ask(second.url, "/readyz")).body).toEqual({ status: "ready" });
    proxy.cut();
    for (const path of ["/readyz", "/v1/runs", `/v1/runs/${good.body.run_id}`]) {
      const answer = await ask(second.url, path);
      expect(answer, path).toMatchObject({ status: 503, body: { code: "DATABASE_UNAVAILABLE", status: 503 } });
      expect(answer.headers.get("retry-after")).toBe("1");
      expect(JSON.stringify(answer.body)).not.toContain(new URL(proxy.url).port);
    }
    expect((await ask(second.url, "/v1/runs", { body: { agent: "writer", input: 1 } })).status).toBe(503);
    expect((await ask(second.url, "/healthz")).status).toBe(200);
    proxy.mend();
    await until("the API to be ready again", async () => (await ask(second.url, "/readyz")).status === 200);
    expect((await ask(second.url, `/v1/runs/${good.body.run_id}`)).status).toBe(200);
    await second[Symbol.asyncDispose]();
    await proxy[Symbol.asyncDispose]();
  });
});

describe("figures", () => {
  it("are Prometheus text without a name of a run or a tenant", async () => {
    const { status, body, headers } = await ask(api.url, "/metrics");
    expect({ status, type: headers.get("content-type") }).toEqual({ status: 200, type: "text/plain; version=0.0.4; charset=utf-8" });
    for (const line of String(body).trim().split("\n")) expect(line).toMatch(/^(# (HELP|TYPE) capstan_\w+ .+|capstan_\w+(\{(state|pool)="[^"]*"\})? [\d.]+)$/);
    expect(body).toContain('capstan_runs_open{state="queued"}');
    expect((await ask(api.url, "/v1/queue")).body.runs.map(({ state }: { state: string }) => state)).toEqual(["queued", "running", "waiting"]);
    expect((await ask(api.url, "/v1/pools")).body.items).toMatchObject([{ pool: "turn", workers: 1 }]);
  });
});

describe("the first token", () => {
  it("closes the API to all who have none", async () => {
    const made = await ask(api.url, "/v1/tokens", { body: { name: "first", scopes: ["admin"] } });
    expect(made.status).toBe(201);
    await until("the token to count", async () => (await ask(api.url, "/v1/runs")).status === 401);
    const bearer = `Bearer ${made.body.token}`;
    expect((await ask(api.url, "/v1/runs", { bearer })).status).toBe(200);
    // Also once it is revoked: whoever took tokens away did not mean to open the door.
    await ask(api.url, `/v1/tokens/${made.body.id}`, { method: "DELETE", bearer });
    await until("the revocation to count", async () => (await ask(api.url, "/v1/runs", { bearer })).status === 401);
    expect((await ask(api.url, "/v1/runs")).status).toBe(401);
  });
});
