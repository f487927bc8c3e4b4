/** Made from the API's own document: whatever is sent to a route, it answers as documented, and never with a fault of its own. */
import fc from "fast-check";
import { afterAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { askHumanTool } from "../../src/agents/engine-tools.ts";
import { tool } from "../../src/agents/tool.ts";
import { checkAgainst } from "../../src/domain/json-schema.ts";
import type { JsonObject, JsonValue } from "../../src/domain/json.ts";
import { routeScopes } from "../../src/http/scopes.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { openLab, until } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { ask, openApi, type Answer } from "./api-lab.ts";
import { fitting, junk, spoilt, type Document, type Operation, type Schema } from "./openapi-arbitrary.ts";

const RUNS_PER_ROUTE = 20;

const database = await createTestDatabase();
const pay = tool({ name: "pay", description: "Pays.", input: z.object({}), approval: true, execute: () => "paid" });
const lab = await openLab(database.url, {
  agents: [
    agent({ name: "talker", model: "scripted:talker", instructions: "Answer.", interactive: true }) as ReturnType<typeof agent>,
    agent({ name: "asker", model: "scripted:asker", instructions: "Ask.", tools: [pay, askHumanTool()] }) as ReturnType<typeof agent>,
  ],
  models: [
    scriptedModel(
      Array.from({ length: 50 }, () => "well"),
      { name: "scripted:talker", by: "turn" },
    ),
    scriptedModel([{ toolCalls: [{ name: "pay", input: {} }] }, { toolCalls: [{ name: "ask_human", input: { question: "which?" } }] }, "done"], {
      name: "scripted:asker",
      by: "turn",
    }),
  ],
});
// One connection: a request that holds one and asks for another would wait for ever.
const api = await openApi(database.url, { poolMax: 1 });
// A tenant of its own: it will be paused, and given limits that let nothing through.
const { bearer } = await api.token({ tenant: "fuzz", scopes: ["admin"] });
afterAll(async () => {
  await api[Symbol.asyncDispose]();
  await lab[Symbol.asyncDispose]();
});

const { body: document } = (await ask(api.url, "/openapi.json")) as { body: Document };
/** First those after which everything is still there. */
const lasting = (name: string): number => (name.startsWith("GET ") ? 0 : /^DELETE |\/(cancel|retire|pauses|pause|tokens|disable)$/.test(name) ? 2 : 1);
const operations = Object.entries(document.paths)
  .flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => ({ name: `${method.toUpperCase()} ${path}`, path, method: method.toUpperCase(), operation })))
  .toSorted((a, b) => lasting(a.name) - lasting(b.name));

/** Ids of things that there are, so that a route is also met with what it is for. */
const known: Record<string, fc.Arbitrary<string>> = await knownThings();

async function knownThings(): Promise<Record<string, fc.Arbitrary<string>>> {
  const post = async (path: string, body: unknown): Promise<Answer["body"]> => {
    const answer = await ask(api.url, `/v1${path}`, { bearer, body });
    expect(answer.status, JSON.stringify(answer.body)).toBeLessThan(300);
    return answer.body;
  };
  const start = async (name: string, more: object = {}): Promise<string> => (await post("/runs", { agent: name, input: "go", ...more })).run_id;
  const runs = [await start("talker"), await start("asker"), await start("asker"), await start("talker", { run_at: "2100-01-01T00:00:00Z" }), await start("nobody")];
  const cancelled = await start("talker");
  await post(`/runs/${cancelled}/cancel`, {});
  await until("the asker's question", async () => (await ask(api.url, `/v1/runs/${runs[1]}/waits`, { bearer })).body.items.length > 0);
  const waits = (await ask(api.url, "/v1/approvals?limit=500", { bearer })).body.items as { id: string; call_id: string }[];
  const { id: conversation } = await post("/conversations", { agent: "talker" });
  await post("/schedules", { name: "nightly", agent: "nobody", cron: "@yearly" });
  await post("/webhooks", { name: "bell", url: "https://example.org/bell" });
  const { delivery_id: delivery } = await post("/webhooks/bell/test", {});
  const tokens = [await api.token({ tenant: "fuzz", scopes: ["runs:read"] }), await api.token({ tenant: "fuzz", scopes: ["runs:read"] })];
  return {
    run_id: fc.constantFrom(...runs, cancelled),
    wait_id: fc.constantFrom(...waits.map(({ id }) => id)),
    call_id: fc.constantFrom(...waits.map(({ call_id: id }) => id)),
    conversation_id: fc.constant(conversation as string),
    schedule: fc.constant("nightly"),
    webhook: fc.constant("bell"),
    delivery_id: fc.constant(delivery as string),
    token_id: fc.constantFrom(...tokens.map(({ id }) => id)),
    agent: fc.constantFrom("talker", "asker"),
    name: fc.constantFrom("go", "completion:x"),
    to: fc.constantFrom("talker", "asker"),
    scope: fc.constant("tenant"),
    value: fc.constant("fuzz"),
    // What waits would make the test wait.
    wait_ms: fc.constantFrom("0", "1", "20"),
  };
}

const { sha } = (await ask(api.url, "/v1/agents/talker", { bearer })).body as { sha: string };
const sensible: Readonly<Record<string, unknown>> = {
  agent: "talker",
  cron: "0 3 * * 1-5",
  timezone: "Europe/Vienna",
  url: "https://example.org/hook",
  scope: "tenant",
  value: "fuzz",
  definition_sha: sha,
  sha,
  overlay: { instructions: "Be brief." },
};

interface Sent {
  readonly path: string;
  readonly body: unknown;
  /** Sent instead of the body. */
  readonly raw: string | undefined;
  readonly key: string | undefined;
}

function requestsTo(path: string, { parameters = [], requestBody }: Operation): fc.Arbitrary<Sent> {
  const text = (value: unknown): string => (typeof value === "string" ? value : JSON.stringify(value));
  const parameter = (name: string, schema: Schema): fc.Arbitrary<string> => {
    const fits = fitting(schema, document).map(text);
    const there = known[name];
    if (name === "wait_ms") return there as fc.Arbitrary<string>;
    return fc.oneof({ weight: there === undefined ? 0 : 6, arbitrary: there ?? fits }, { weight: 3, arbitrary: fits }, { weight: 1, arbitrary: junk.map(text) });
  };
  const inPath = Object.fromEntries(parameters.filter((each) => each.in === "path").map(({ name, schema }) => [name, parameter(name, schema)]));
  const inQuery = parameters.filter((each) => each.in === "query");
  const query = fc.record(Object.fromEntries(inQuery.map(({ name, schema }) => [name, parameter(name, schema)])), {
    requiredKeys: inQuery.filter(({ name, required }) => required === true || name === "wait_ms").map(({ name }) => name),
    noNullPrototype: true,
  });
  const schema = requestBody?.content["application/json"]?.schema;
  // What a schema cannot say: that there must be such an agent, or that a line must be one of cron.
  const named = (body: unknown): unknown => {
    if (typeof body !== "object" || body === null) return body;
    return Object.fromEntries(Object.entries(body).map(([name, value]) => [name, Array.isArray(value) && name === "runs" ? value.map(named) : (sensible[name] ?? value)]));
  };
  const fits = schema === undefined ? fc.constant(undefined) : fitting(schema, document);
  const body = fc.oneof({ weight: 3, arbitrary: fits.map(named) }, { weight: 1, arbitrary: fits }, { weight: schema === undefined ? 0 : 3, arbitrary: spoilt(fits.map(named)) });
  const raw = fc.oneof(
    { weight: 14, arbitrary: fc.constant(undefined) },
    { weight: schema === undefined ? 0 : 1, arbitrary: fc.constantFrom("", "{", "[1", '{"a":1,"a":2}', "\u0000", '{"__proto__":1}') },
  );
  const key = fc.option(fc.constantFrom("a", "b", "c", " ", "x".repeat(401)), { nil: undefined, freq: 2 });
  return fc.record({ params: fc.record(inPath), query, body, raw, key }, { noNullPrototype: true }).map(({ params, query: given, ...rest }) => {
    const filled = path.replaceAll(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent((params[name] as string).toWellFormed()));
    const pairs = new URLSearchParams(given as Record<string, string>).toString();
    return { path: `${filled}${pairs === "" ? "" : `?${pairs}`}`, ...rest };
  });
}

/** Throws unless the answer is one that the document has. */
function checkAnswer(operation: Operation, { status, headers, body }: Answer): void {
  expect(status).not.toBe(500);
  const documented = operation.responses[String(status)];
  if (documented === undefined) throw new Error(`status ${status} is not documented: ${JSON.stringify(body)}`);
  const [[type, { schema }] = [undefined, { schema: {} }]] = Object.entries(documented.content ?? {});
  expect(headers.get("content-type")).toContain(type as string);
  const checked = checkAgainst(withDefinitions(schema), body as JsonValue);
  if (!checked.ok) throw new Error(`${status} does not match its schema: ${JSON.stringify(checked.issues)} in ${JSON.stringify(body)}`);
  if (status >= 400) expect(body).toMatchObject({ status, code: expect.stringMatching(/^[A-Z][A-Z0-9_]+$/) });
}

function withDefinitions(schema: Schema): JsonObject {
  return JSON.parse(JSON.stringify({ ...schema, $defs: document.components.schemas }).replaceAll("#/components/schemas/", "#/$defs/")) as JsonObject;
}

describe("the document", () => {
  it("has every route of the table of scopes, and says which scope it needs", () => {
    const paths = operations.map(({ name }) => name.replaceAll(/\{(\w+)\}/g, ":$1"));
    expect(paths.toSorted()).toEqual(
      Object.keys(routeScopes)
        .filter((name) => name !== "GET /openapi.json")
        .toSorted(),
    );
    for (const { name, operation } of operations) {
      const scope = routeScopes[name.replaceAll(/\{(\w+)\}/g, ":$1") as keyof typeof routeScopes];
      const { description } = operation as unknown as { description: string };
      expect(description, name).toContain(scope === "public" ? "Needs no token" : scope === "any" ? "Needs a token" : `\`${scope}\``);
    }
  });

  it("is OpenAPI 3.1, without a schema that leads nowhere, and is read by a page that asks no other host", async () => {
    expect(document).toMatchObject({ openapi: expect.stringMatching(/^3\.1/) });
    for (const [, name = ""] of JSON.stringify(document).matchAll(/"#\/components\/schemas\/(\w+)"/g)) expect(document.components.schemas, name).toHaveProperty(name);
    const page = await ask(api.url, "/docs");
    expect(page.status).toBe(200);
    const sources = [...String(page.body).matchAll(/(?:src|href)="([^"]+)"/g)].map(([, source = ""]) => source);
    expect(sources.length).toBeGreaterThan(2);
    for (const source of sources) {
      expect(source).not.toMatch(/^(https?:)?\/\//);
      expect((await ask(api.url, new URL(source, `${api.url}/docs/`).pathname)).status, source).toBe(200);
    }
    expect(page.headers.get("content-security-policy")).not.toContain("unsafe-eval");
  });
});

describe("every route, with whatever fits and whatever does not", () => {
  // oxlint-disable-next-line vitest/expect-expect -- checkAnswer expects
  it.each(operations)("$name", async ({ path, method, operation }) => {
    await fc.assert(
      fc.asyncProperty(requestsTo(path, operation), async ({ path: target, body, raw, key }) => {
        const payload = raw === undefined ? (body === undefined ? {} : { body }) : { text: raw };
        const answer = await ask(api.url, target, { method, bearer, ...payload, headers: key === undefined ? {} : { "idempotency-key": key } });
        checkAnswer(operation, answer);
      }),
      { numRuns: RUNS_PER_ROUTE, endOnFailure: true },
    );
  });
});
