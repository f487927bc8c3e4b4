/** Routes x scopes x tenants, all as the table says; tokens that are expired, revoked, made up or missing. */
import { randomUUID } from "node:crypto";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { tokenScopes, type TokenScope } from "../../src/client/tokens.ts";
import { mayUse, routeScopes, type RouteName } from "../../src/http/scopes.ts";
import { createApi } from "../../src/http/server.ts";
import { silentLog } from "../../src/telemetry/log.ts";
import { until } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { ask, openApi, type Answer, type Request } from "./api-lab.ts";

const database = await createTestDatabase();
const api = await openApi(database.url, { auth: { cacheMs: 0 } });
afterAll(() => api[Symbol.asyncDispose]());

const routes = Object.keys(routeScopes) as RouteName[];

/** Bodies and queries with which a route does what it is for, if it may. */
const requests: Partial<Record<RouteName, { readonly body?: unknown; readonly query?: string }>> = {
  "POST /v1/runs": { body: { agent: "nobody", input: "x" } },
  "POST /v1/runs/batch": { body: { runs: [{ agent: "nobody", input: "x" }] } },
  "GET /v1/runs/:run_id/result": { query: "wait_ms=0" },
  "GET /v1/runs/:run_id/state": { query: "seq=1" },
  "POST /v1/runs/:run_id/input": { body: { content: "x" } },
  "POST /v1/runs/:run_id/approvals/:call_id": { body: { decision: "approve" } },
  "POST /v1/runs/:run_id/waits/:wait_id/answer": { body: { answer: "x" } },
  "POST /v1/runs/:run_id/compact": { query: "wait_ms=0", body: {} },
  "POST /v1/conversations": { body: { agent: "nobody" } },
  "POST /v1/conversations/:conversation_id/messages": { body: { input: "x" } },
  "POST /v1/agents/:agent/fork": { body: { overlay: {} } },
  "POST /v1/agents/:agent/promote": { body: { sha: "0".repeat(64) } },
  "GET /v1/agents/:agent/diff": { query: "to=nobody" },
  "POST /v1/schedules": { body: { name: "another", agent: "nobody", cron: "@daily", replace: true } },
  "PUT /v1/quotas": { body: { kind: "turn", unit: "calls", window: "day", amount: 5 } },
  "DELETE /v1/quotas": { query: "kind=turn&unit=tokens&window=day" },
  "POST /v1/tokens": { body: { name: "another", scopes: ["runs:read"] } },
  "POST /v1/webhooks": { body: { name: "another", url: "https://example.org/hook" } },
};

interface Things {
  readonly run_id: string;
  readonly conversation_id: string;
  readonly schedule: string;
  readonly webhook: string;
  readonly delivery_id: string;
  readonly token_id: string;
}

const NO_WAIT = randomUUID();
const nothings = (): Things => ({ run_id: randomUUID(), conversation_id: randomUUID(), schedule: "none", webhook: "none", delivery_id: randomUUID(), token_id: randomUUID() });

async function call(name: RouteName, things: Things, bearer: string | undefined): Promise<Answer> {
  const [method = "", url = ""] = name.split(" ");
  const ids: Record<string, string> = { ...things, wait_id: NO_WAIT, call_id: "c1", name: "go", agent: "nobody" };
  const { body, query } = requests[name] ?? {};
  const path = `${url.replaceAll(/:(\w+)/g, (_, param: string) => ids[param] as string)}${query === undefined ? "" : `?${query}`}`;
  const request: Request = { method, bearer, ...(body === undefined ? {} : { body }) };
  return await ask(api.url, path, request);
}

/** One of everything that a tenant can have. */
async function everythingOf(tenant: string): Promise<Things> {
  const { bearer, id: tokenId } = await api.token({ tenant, scopes: ["admin"] });
  const post = async (path: string, body: unknown): Promise<Answer["body"]> => {
    const answer = await ask(api.url, `/v1${path}`, { bearer, body });
    expect(answer.status, JSON.stringify(answer.body)).toBeLessThan(300);
    return answer.body;
  };
  const { run_id: runId } = await post("/runs", { agent: "nobody", input: "secret of acme", run_at: "2100-01-01T00:00:00Z", labels: ["acme"] });
  const { id: conversationId } = await post("/conversations", { agent: "nobody", title: "of acme" });
  await post("/schedules", { name: "acme-nightly", agent: "nobody", cron: "@yearly" });
  await post("/webhooks", { name: "acme-bell", url: "https://example.org/acme" });
  const { delivery_id: deliveryId } = await post("/webhooks/acme-bell/test", {});
  await ask(api.url, "/v1/quotas", { method: "PUT", bearer, body: { kind: "turn", unit: "tokens", window: "day", amount: 12_345 } });
  return { run_id: runId, conversation_id: conversationId, schedule: "acme-nightly", webhook: "acme-bell", delivery_id: deliveryId, token_id: tokenId };
}

/** Everything of a tenant in the database, to see that nothing has changed. */
async function stateOf(tenant: string): Promise<unknown> {
  const tables = ["runs", "conversations", "schedules", "webhooks", "webhook_deliveries", "audit_log", "pauses"];
  const of = (table: string): string => `select '${table}' as t, to_jsonb(x) - 'last_used_at' as row from capstan.${table} x where ${table === "pauses" ? "value" : "tenant"} = $1`;
  const tokens = "select 't', to_jsonb(x) - 'last_used_at' - 'hash' from capstan.api_tokens x where tenant = $1";
  const others =
    "select 'e', to_jsonb(e) from capstan.events e join capstan.runs r on r.id = e.run_id where r.tenant = $1 union all select 'q', to_jsonb(q) from capstan.quota_limits q where q.value = $1";
  const { rows } = await api.db.query(`${[...tables.map(of), tokens, others].join(" union all ")} order by 1, 2`, [tenant]);
  return rows;
}

describe("the table of scopes", () => {
  let acme: Things;
  beforeAll(async () => {
    acme = await everythingOf("acme");
  });

  it("has every route that is served, and serves every route that it has", async () => {
    for (const name of routes) {
      const [method = "", url = ""] = name.split(" ");
      expect(api.api.app.hasRoute({ method, url }), name).toBe(true);
    }
    const forgetful = createApi({ db: api.db, client: api.client, log: silentLog, mounts: [{ scopes: {}, register: (app) => void app.get("/v1/forgotten", async () => "open") }] });
    await expect(forgetful).rejects.toThrow("route GET /v1/forgotten has no scope");
  });

  it.each([...tokenScopes])("lets a token with %s use exactly the routes that need it", async (scope) => {
    const { bearer } = await api.token({ tenant: "walker", scopes: [scope] });
    const got: Record<string, boolean> = {};
    for (const name of routes) {
      const { status, body } = await call(name, nothings(), bearer);
      expect(status, `${name}: ${JSON.stringify(body)}`).not.toBe(401);
      expect(status, `${name}: ${JSON.stringify(body)}`).toBeLessThan(500);
      got[name] = status !== 403;
    }
    expect(got).toEqual(Object.fromEntries(routes.map((name) => [name, mayUse([scope], routeScopes[name])])));
  });

  it("says of another tenant's things what it says of none, and leaves them as they are", async () => {
    const before = await stateOf("acme");
    const { bearer } = await api.token({ tenant: "other", scopes: ["admin"] });
    const mask = (answer: Answer, ids: Things): unknown => {
      const text = Object.entries(ids).reduce((masked, [name, id]) => masked.replaceAll(id as string, name), JSON.stringify(answer.body));
      return { status: answer.status, body: text };
    };
    for (const name of routes.filter((route) => /:(run_id|conversation_id|schedule|webhook|delivery_id|token_id)/.test(route))) {
      const none = { ...nothings(), schedule: "x-schedule", webhook: "x-webhook" };
      const [theirs, nobodys] = [await call(name, acme, bearer), await call(name, none, bearer)];
      expect(theirs.status, name).toBe(404);
      expect(mask(theirs, acme), name).toEqual(mask(nobodys, none));
    }
    for (const name of routes.filter((route) => route.startsWith("GET /v1/") && !route.includes("/:"))) {
      const { status, body } = await call(name, acme, bearer);
      expect(status, name).toBe(200);
      const text = JSON.stringify(body);
      for (const trace of [acme.run_id, acme.conversation_id, acme.token_id, "of acme", "example.org/acme", "12345"]) expect(text, `${name} shows ${trace}`).not.toContain(trace);
    }
    for (const name of routes.filter((route) => !route.startsWith("GET ") && !route.includes("/:"))) expect((await call(name, acme, bearer)).status, name).toBeLessThan(300);
    expect(await stateOf("acme")).toEqual(before);
  });

  it("shows a tenant its own things on all of these routes", async () => {
    const { bearer } = await api.token({ tenant: "acme", scopes: ["runs:read", "admin"] });
    for (const name of routes.filter((route) => route.startsWith("GET /v1/") && /:(run_id|conversation_id|schedule|webhook)/.test(route))) {
      expect((await call(name, acme, bearer)).status, name).toBe(200);
    }
    expect((await ask(api.url, "/v1/quotas", { bearer })).body.items).toMatchObject([{ value: "acme", amount: 12_345, used: 0 }]);
    expect((await ask(api.url, "/v1/runs?q=acme", { bearer })).body.items).toHaveLength(1);
  });

  it.each(["none", "made up", "malformed", "expired", "revoked"])("opens nothing but public routes for a token that is %s", async (kind) => {
    const bearer = await badToken(kind);
    for (const name of routes) {
      const answer = await call(name, acme, bearer);
      if (routeScopes[name] === "public") expect(answer.status, name).toBe(200);
      else {
        expect(answer, name).toMatchObject({ status: 401, body: { code: "UNAUTHORIZED", status: 401 } });
        expect(answer.headers.get("www-authenticate")).toBe("Bearer");
      }
    }
  });
});

async function badToken(kind: string): Promise<string | undefined> {
  if (kind === "none") return undefined;
  if (kind === "malformed") return "Basic YTpi";
  if (kind === "made up") return `Bearer cap_${"A".repeat(43)}`;
  const { id, bearer } = await api.token({ tenant: "acme", scopes: ["admin"] });
  if (kind === "revoked") expect(await api.tokens.revoke(id)).toBe(true);
  else await api.db.query("update capstan.api_tokens set expires_at = capstan.now() - interval '1 ms' where id = $1", [id]);
  return bearer;
}

describe("tokens", () => {
  it("are kept as hashes, listed without them, and say who did it", async () => {
    const { bearer, id, name } = await api.token({ tenant: "t1", scopes: ["runs:create", "runs:read"], subject: "user 7" });
    const secret = bearer.slice("Bearer ".length);
    expect(secret).toMatch(/^cap_[A-Za-z0-9_-]{43}$/);
    const { rows } = await api.db.query<{ row: string }>("select to_jsonb(t)::text as row from capstan.api_tokens t where id = $1", [id]);
    expect(rows[0]?.row).not.toContain(secret.slice(4));
    const made = await ask(api.url, "/v1/runs", { bearer, body: { agent: "nobody", input: 1 } });
    const { rows: runs } = await api.db.query("select r.subject, r.tenant, e.actor from capstan.runs r join capstan.events e on e.run_id = r.id where r.id = $1", [
      made.body.run_id,
    ]);
    expect(runs).toEqual([{ subject: "user 7", tenant: "t1", actor: `token:${name}` }]);
    expect(await ask(api.url, "/v1/runs", { bearer, body: { agent: "nobody", input: 1, subject: "user 8" } })).toMatchObject({ status: 403, body: { code: "FORBIDDEN" } });
    const admin = await api.token({ tenant: "t1", scopes: ["admin"] });
    const audit = (await ask(api.url, "/v1/audit", { bearer: admin.bearer })).body.items;
    expect(audit.find(({ action }: { action: string }) => action === "run.create")).toMatchObject({ token_id: id, actor: `token:${name}`, target: made.body.run_id });
    // Also what the database's own functions write down.
    await ask(api.url, `/v1/runs/${made.body.run_id}/cancel`, { bearer: admin.bearer, method: "POST" });
    const [cancel] = (await ask(api.url, "/v1/audit?action=run.cancel", { bearer: admin.bearer })).body.items;
    expect(cancel).toMatchObject({ token_id: admin.id, actor: `token:${admin.name}` });
    expect((await ask(api.url, "/v1/tokens/current", { bearer })).body).toEqual({ token_id: id, name, tenant: "t1", subject: "user 7", scopes: ["runs:create", "runs:read"] });
  });

  it("are made, listed and revoked over HTTP, within their tenant", async () => {
    const { bearer } = await api.token({ tenant: "t2", scopes: ["admin"] });
    const made = await ask(api.url, "/v1/tokens", { bearer, body: { name: "ci", scopes: ["runs:read"], expires_at: "2100-01-01T00:00:00Z" } });
    expect(made).toMatchObject({ status: 201, body: { tenant: "t2", scopes: ["runs:read"], state: "active" } });
    expect(made.headers.get("cache-control")).toBe("no-store");
    expect((await ask(api.url, "/v1/tokens", { bearer, body: { name: "ci", scopes: ["runs:read"] } })).body).toMatchObject({ status: 409, code: "TOKEN_EXISTS" });
    expect((await ask(api.url, "/v1/tokens", { bearer, body: { name: "late", scopes: ["runs:read"], expires_at: "2001-01-01T00:00:00Z" } })).status).toBe(400);
    const { body } = await ask(api.url, "/v1/tokens", { bearer });
    expect(body.items[0]).toMatchObject({ name: "ci" });
    expect(JSON.stringify(body)).not.toContain(made.body.token);
    expect(JSON.stringify(body)).not.toContain("hash");
    const own = { bearer: `Bearer ${made.body.token}` };
    expect((await ask(api.url, "/v1/runs", own)).status).toBe(200);
    expect((await ask(api.url, `/v1/tokens/${made.body.id}`, { bearer, method: "DELETE" })).body).toEqual({ revoked: true });
    expect((await ask(api.url, `/v1/tokens/${made.body.id}`, { bearer, method: "DELETE" })).body).toEqual({ revoked: false });
    expect((await ask(api.url, "/v1/runs", own)).status).toBe(401);
  });

  it("set limits of their own tenant only", async () => {
    const { bearer } = await api.token({ tenant: "t3", scopes: ["admin"] });
    const limit = { kind: "turn", unit: "calls", window: "minute", amount: 3 };
    for (const foreign of [{ scope: "overall" }, { scope: "tenant", value: "acme" }, { scope: "tenant", value: "*" }, { scope: "agent", value: "nobody" }]) {
      expect(await ask(api.url, "/v1/quotas", { method: "PUT", bearer, body: { ...limit, ...foreign } }), JSON.stringify(foreign)).toMatchObject({ status: 403 });
    }
    expect((await ask(api.url, "/v1/quotas", { method: "PUT", bearer, body: limit })).body).toEqual({ changed: true });
    expect((await ask(api.url, "/v1/quotas", { bearer })).body.items).toMatchObject([{ scope: "tenant", value: "t3", amount: 3 }]);
  });

  it("end their streams when they are revoked", async () => {
    const { bearer, id } = await api.token({ tenant: "t4", scopes: ["runs:create", "runs:read"] });
    const { body } = await ask(api.url, "/v1/runs", { bearer, body: { agent: "nobody", input: 1, run_at: "2100-01-01T00:00:00Z" } });
    const response = await fetch(`${api.url}/v1/runs/${body.run_id}/events`, { headers: { accept: "text/event-stream", authorization: bearer } });
    expect(response.status).toBe(200);
    await api.tokens.revoke(id);
    expect(await response.text()).toContain("event: problem");
  });

  it("are asked of the database again after a moment, and not for every request", async () => {
    const cached = await openApi(database.url, { auth: { cacheMs: 300 } });
    const { bearer, id } = await cached.token({ tenant: "t5", scopes: ["runs:read"] });
    expect((await ask(cached.url, "/v1/runs", { bearer })).status).toBe(200);
    await cached.tokens.revoke(id);
    await until("the revocation to be seen", async () => (await ask(cached.url, "/v1/runs", { bearer })).status === 401, 2_000);
    await cached[Symbol.asyncDispose]();
  });
});

describe("limits of requests", () => {
  it("refuses a caller that asks too often, with a time to come again, and no other", async () => {
    const slow = await openApi(database.url, { rateLimit: { perSecond: 1, burst: 3 } });
    const [first, second] = [await slow.token({ tenant: "r", scopes: ["runs:read"] }), await slow.token({ tenant: "r", scopes: ["runs:read"] })];
    const answers = [];
    for (let i = 0; i < 5; i++) answers.push(await ask(slow.url, "/v1/runs", { bearer: first.bearer }));
    expect(answers.map(({ status }) => status)).toEqual([200, 200, 200, 429, 429]);
    expect(answers[4]?.body).toMatchObject({ code: "RATE_LIMITED" });
    expect(Number(answers[4]?.headers.get("retry-after"))).toBeGreaterThanOrEqual(1);
    expect((await ask(slow.url, "/v1/runs", { bearer: second.bearer })).status).toBe(200);
    const guesses = [];
    for (let i = 0; i < 5; i++) guesses.push((await ask(slow.url, "/v1/runs", { bearer: `Bearer cap_${String(i).repeat(43)}` })).status);
    expect(guesses).toEqual([401, 401, 401, 429, 429]);
    await slow[Symbol.asyncDispose]();
  });
});

describe("what is sent", () => {
  it("never reaches a header, nor a log", async () => {
    const scopes: TokenScope[] = ["admin"];
    const { bearer } = await api.token({ tenant: "h", scopes });
    const hostile = "x%0d%0aset-cookie:%20a=b";
    for (const path of [`/v1/schedules/${hostile}`, `/v1/agents/${hostile}`, `/v1/runs/${hostile}`, `/v1/${hostile}`, `/v1/runs?q=${hostile}`]) {
      const { headers, status } = await ask(api.url, path, { bearer });
      expect(headers.get("set-cookie"), path).toBeNull();
      expect(status).toBeLessThan(500);
    }
    const { headers } = await ask(api.url, "/v1/runs", { bearer, headers: { "x-request-id": "mine" } });
    expect(headers.get("x-request-id")).toMatch(/^[0-9a-f-]{36}$/);
    expect(JSON.stringify(api.log)).not.toContain(bearer.slice("Bearer ".length));
  });
});
