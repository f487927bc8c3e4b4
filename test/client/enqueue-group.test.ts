/** Enqueues that come at once share commits, and are still each their own. */
import { afterAll, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { createPool } from "../../src/store/pool.ts";
import { createClient } from "../../src/client/client.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();
const waiter = agent({ name: "waiter", model: "scripted:nobody", instructions: "Wait." });
const client = createClient({ connectionString: database.url });
const db = createPool({ connectionString: database.url, max: 1, applicationName: "test" });
afterAll(() => Promise.all([client.close(), db.end()]));

async function rows(ids: readonly string[]): Promise<Map<string, { input: unknown; labels: string[] | null; metadata: unknown; commit: string }>> {
  const found = await db.query<{ id: string; input: unknown; labels: string[] | null; metadata: unknown; commit: string }>(
    `select r.id, e.payload -> 'input' as input, r.labels, r.metadata, r.xmin::text as commit from capstan.runs r join capstan.events e on e.run_id = r.id and e.seq = 1 where r.id = any($1)`,
    [ids],
  );
  return new Map(found.rows.map((row) => [row.id, row]));
}

it("gives every caller its own run, in far fewer commits than runs", async () => {
  const wanted = Array.from({ length: 250 }, (_, n) => ({
    input: `job ${n} "quoted" {braces}, naïve 🦉`,
    labels: n % 3 === 0 ? undefined : Array.from({ length: n % 3 }, (_unused, k) => `l,${n}"${k}`),
    metadata: n % 2 === 0 ? undefined : { n, nested: [null, { deep: 1e300 }] },
  }));
  const handles = await Promise.all(
    wanted.map(({ input, labels, metadata }) => client.enqueue(waiter, input, { ...(labels === undefined ? {} : { labels }), ...(metadata === undefined ? {} : { metadata }) })),
  );
  const stored = await rows(handles.map(({ id }) => id));
  expect(stored.size).toBe(250);
  for (const [n, { id }] of handles.entries()) {
    const row = stored.get(id);
    expect(row?.input).toBe(wanted[n]?.input);
    expect(row?.labels).toEqual(wanted[n]?.labels ?? null);
    expect(row?.metadata ?? null).toEqual(wanted[n]?.metadata ?? null);
  }
  expect(new Set([...stored.values()].map(({ commit }) => commit)).size).toBeLessThan(25);
});

it("refuses one without touching the others", async () => {
  await client.enqueue(waiter, "taken", { idempotencyKey: "taken" });
  const outcomes = await Promise.allSettled(
    Array.from({ length: 40 }, (_, n) =>
      client.enqueue(waiter, `run ${n}`, n === 7 ? { priority: 5_000 } : n === 9 ? { idempotencyKey: "taken" } : n === 11 ? { tenant: "" } : {}),
    ),
  );
  expect(outcomes.flatMap((outcome, n) => (outcome.status === "rejected" ? [[n, (outcome.reason as { code: string }).code]] : []))).toEqual([
    [7, "ARGUMENT_INVALID"],
    [9, "IDEMPOTENCY_CONFLICT"],
    [11, "ARGUMENT_INVALID"],
  ]);
  const ids = outcomes.flatMap((outcome) => (outcome.status === "fulfilled" ? [outcome.value.id] : []));
  expect((await rows(ids)).size).toBe(37);
  expect(new Set(ids).size).toBe(37);
});

it("gives one run for one key, also when both come together", async () => {
  const handles = await Promise.all(Array.from({ length: 60 }, (_, n) => client.enqueue(waiter, `of key ${n % 5}`, { idempotencyKey: `together-${n % 5}` })));
  expect(new Set(handles.map(({ id }) => id)).size).toBe(5);
  const stored = await rows(handles.map(({ id }) => id));
  for (const [n, { id }] of handles.entries()) expect(stored.get(id)?.input).toBe(`of key ${n % 5}`);
});

it("does not wait for another enqueue when it is the only one, and keeps null apart from absent", async () => {
  const anything = { name: "anything", definition: waiter.definition, parseInput: (value: unknown) => ({ ok: true as const, value }) };
  await expect(client.enqueue(anything, null)).rejects.toMatchObject({ code: "ARGUMENT_INVALID" });
  const handles = await Promise.all([null, 0, "", [], { a: null }].map((input) => client.enqueue("waiter-by-name", input)));
  const stored = await rows(handles.map(({ id }) => id));
  expect(handles.map(({ id }) => stored.get(id)?.input)).toEqual([null, 0, "", [], { a: null }]);
});
