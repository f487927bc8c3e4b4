/** What the ways in refuse, with which words, and what they take as the same. */
import { afterAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { ArgumentError, IdempotencyConflictError, InputInvalidError, TooLargeError } from "../../src/client/errors.ts";
import type { JsonValue } from "../../src/domain/json.ts";
import { createCapstan } from "../../src/main.ts";
import { payloads } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { Cases } from "./cases.ts";

const database = await createTestDatabase();
const cases = new Cases();
const order = cases.later(
  cases.add(
    "order",
    Array.from({ length: 40 }, () => "Done."),
    { input: z.object({ id: z.string(), amount: z.number().default(1) }) },
  ).agent,
);
const free = cases.later(
  cases.add(
    "free",
    Array.from({ length: 40 }, () => "Done."),
    { input: z.json() },
  ).agent,
);
cases.openOn(database.url);

const runsOf = async (key: string): Promise<number> => {
  const { rows } = await cases.lab.db.query<{ n: number }>("select count(*)::int as n from capstan.runs where idempotency_key = $1", [key]);
  return rows[0]?.n ?? 0;
};
const enqueue = (own: typeof order, input: unknown, options?: object) => cases.lab.capstan.enqueue(own as never, input as never, options);
const thrown = (promise: Promise<unknown>) =>
  promise.then(
    () => undefined,
    (error: unknown) => error as Error & { code?: string; details?: Record<string, unknown> },
  );

describe("input that does not fit its agent", () => {
  it("is refused in TypeScript before anything is sent, with the place", async () => {
    const error = await thrown(enqueue(order, { id: 7 }, { idempotencyKey: "never" }));
    expect(error).toBeInstanceOf(InputInvalidError);
    expect(error).toMatchObject({ code: "INPUT_INVALID", message: expect.stringMatching(/agent order: id: /), details: { agent: "order", issues: [{ path: "id" }] } });
    expect(await runsOf("never")).toBe(0);
  });

  it.each([
    [
      "a cycle",
      () => {
        const a: unknown[] = [];
        a.push(a);
        return a;
      },
      /cycle/,
    ],
    ["a BigInt", () => ({ n: 1n }), /bigint/],
    ["infinity", () => [Number.POSITIVE_INFINITY], /Infinity/],
    ["a Map", () => new Map(), /Map/],
    [
      "10,000 levels",
      () => {
        let v: unknown = 1;
        for (let i = 0; i < 10_000; i++) v = [v];
        return v;
      },
      /nested deeper/,
    ],
  ])("%s cannot be input", async (_, make, says) => {
    const error = await thrown(cases.lab.capstan.enqueue("free", make()));
    expect(error).toBeInstanceOf(InputInvalidError);
    expect(error?.message).toMatch(says);
  });

  it("comes by SQL: the run fails at once with the issues, no model is asked", async () => {
    const { rows } = await cases.lab.db.query<{ id: string }>(`select capstan.enqueue_run('order', '{"id": 7}') as id`);
    const id = rows[0]?.id as string;
    const status = await cases.lab.settled(id);
    expect(status).toMatchObject({ state: "failed", turn: 0, error: { code: "INPUT_INVALID", details: { issues: [{ path: "id" }] } } });
    expect(payloads(await cases.lab.events(id), "model.requested")).toEqual([]);
    await cases.lab.intact(id);
  });

  it("defaults of the schema are part of what is stored", async () => {
    const handle = await enqueue(order, { id: "a" });
    expect(payloads(await cases.lab.events(handle.id), "run.created")[0].input).toEqual({ id: "a", amount: 1 });
    await handle.result({ timeoutMs: 20_000 });
  });

  it("NUL and half a surrogate pair are repaired, `__proto__` is kept, and the model sees what was stored", async () => {
    const handle = await cases.lab.capstan.enqueue("free", JSON.parse('{"a\\u0000":"\\ud800","__proto__":{"x":1}}'));
    await handle.result({ timeoutMs: 20_000 });
    const input = payloads(await cases.lab.events(handle.id), "run.created")[0].input as Record<string, JsonValue>;
    expect(JSON.stringify(input)).toContain('"__proto__":{"x":1}');
    expect(input["a\uFFFD"]).toBe("\uFFFD");
    await cases.lab.intact(handle.id);
  });
});

describe("idempotency keys", () => {
  it("met again with the same input, in another order and with 1.0 for 1: the same run", async () => {
    const first = await enqueue(free, { a: 1, b: [2, { c: 3 }] }, { idempotencyKey: "same" });
    const second = await enqueue(free, { b: [2, { c: 3 }], a: 1 }, { idempotencyKey: "same" });
    const { rows } = await cases.lab.db.query<{ id: string }>(`select capstan.enqueue_run('free', '{"b": [2.0, {"c": 3}], "a": 1.0}', idempotency_key => 'same') as id`);
    expect([second.id, rows[0]?.id]).toEqual([first.id, first.id]);
    expect(await runsOf("same")).toBe(1);
  });

  it("met again with another input: a conflict that names the run and says what to do", async () => {
    const first = await enqueue(free, 1, { idempotencyKey: "taken" });
    const error = await thrown(enqueue(free, 2, { idempotencyKey: "taken" }));
    expect(error).toBeInstanceOf(IdempotencyConflictError);
    expect(error).toMatchObject({ code: "IDEMPOTENCY_CONFLICT", runId: first.id });
    const sql = await thrown(cases.lab.db.query(`select capstan.enqueue_run('free', '2', idempotency_key => 'taken')`));
    expect(sql).toMatchObject({ code: "KC001", detail: first.id, hint: expect.stringContaining("new key") });
    const other = await thrown(enqueue(order, { id: "a" }, { idempotencyKey: "taken" }));
    expect(other?.message).toContain("another agent");
  });

  it("belong to a tenant", async () => {
    const ours = await enqueue(free, 1, { idempotencyKey: "shared", tenant: "a" });
    const theirs = await enqueue(free, 2, { idempotencyKey: "shared", tenant: "b" });
    expect(ours.id).not.toBe(theirs.id);
  });

  it("ten at once: one run, and all get it", async () => {
    const handles = await Promise.all(Array.from({ length: 10 }, () => enqueue(free, { n: 1 }, { idempotencyKey: "race" })));
    expect(new Set(handles.map((handle) => handle.id)).size).toBe(1);
    expect(await runsOf("race")).toBe(1);
  });

  it("two at once with different inputs: one run, one conflict", async () => {
    const ends = await Promise.all([thrown(enqueue(free, 1, { idempotencyKey: "race2" })), thrown(enqueue(free, 2, { idempotencyKey: "race2" }))]);
    expect(ends.filter((end) => end === undefined)).toHaveLength(1);
    expect(ends.filter((end) => end instanceof IdempotencyConflictError)).toHaveLength(1);
  });

  it("are free again when the transaction that used one is rolled back", async () => {
    const client = await cases.lab.db.connect();
    try {
      await client.query("begin");
      await enqueue(free, 1, { idempotencyKey: "undone", tx: client });
      await client.query("rollback");
    } finally {
      client.release();
    }
    await enqueue(free, 2, { idempotencyKey: "undone" });
    expect(await runsOf("undone")).toBe(1);
  });
});

describe("arguments out of range", () => {
  it("an input over the inline limit names size, limit and the way out", async () => {
    // A text alone would go to a blob; inside an object nobody knows what may be taken out.
    const error = await thrown(enqueue(free, { text: "x".repeat(1_100_000) }));
    expect(error).toBeInstanceOf(TooLargeError);
    expect(error).toMatchObject({ code: "PAYLOAD_TOO_LARGE", message: expect.stringMatching(/1100\d{3} bytes.*1048576.*inline_payload_bytes.*agent free/) });
    expect(await thrown(cases.lab.db.query("select capstan.enqueue_run('free', to_jsonb(repeat('x', 1100000)))"))).toMatchObject({ code: "KC005" });
  });

  it.each([
    ["a priority", { priority: 5_000 }, /priority 5000 is outside/],
    ["a tenant", { tenant: "" }, /tenant/],
    ["a tenant that is too long", { tenant: "t".repeat(201) }, /tenant/],
    ["an idempotency key", { idempotencyKey: "" }, /idempotency_key/],
  ])("%s that cannot be", async (_, options, says) => {
    const error = await thrown(enqueue(free, 1, options));
    expect(error).toBeInstanceOf(ArgumentError);
    expect(error).toMatchObject({ code: "ARGUMENT_INVALID", message: expect.stringMatching(says) });
  });

  it.each(["", "no spaces", "-first", "a".repeat(65), "semi;colon"])("the agent name %j", async (name) => {
    expect(await thrown(cases.lab.capstan.enqueue(name, 1))).toBeInstanceOf(ArgumentError);
  });
});

describe("a database that is away", () => {
  const away = createCapstan({ connectionString: "postgresql://postgres@127.0.0.1:1/nowhere", env: {}, models: {} });
  afterAll(() => away.close());

  it("is a typed error that may be tried again", async () => {
    const error = await thrown(away.enqueue("free", 1));
    expect(error).toMatchObject({ code: "DATABASE_UNAVAILABLE", retryable: true });
    expect(error?.message).toMatch(/ECONNREFUSED/);
  });

  it("so are status and send", async () => {
    const handle = away.run("00000000-0000-7000-8000-000000000000");
    expect(await thrown(handle.status())).toMatchObject({ code: "DATABASE_UNAVAILABLE" });
    expect(await thrown(handle.send("x"))).toMatchObject({ code: "DATABASE_UNAVAILABLE" });
  });
});

it("agents are checked when they are defined", () => {
  expect(() => agent({ name: "bad name", model: "a:b", instructions: "" })).toThrow(/name must match/);
});
