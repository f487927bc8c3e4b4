/** Limits as an operator sets them, and what they do: enqueues that are refused, calls that wait and say for what. */
import { afterEach, describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { ArgumentError, QueueFullError } from "../../src/client/errors.ts";
import { QuotasClient } from "../../src/client/quotas.ts";
import { ScheduleClient } from "../../src/client/schedules.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { openLab, typesOf, until } from "../engine/harness.ts";
import { claim, queueBench, same } from "../queue/queue-bench.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();
const bench = queueBench(database.url);
const { db } = bench;
const { store } = await bench.worker();
const quotas = new QuotasClient(db, same);
afterEach(() => db.query("delete from capstan.quota_limits"));

const refusal = async (work: Promise<unknown>): Promise<QueueFullError> => {
  const error = await work.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  expect(error).toBeInstanceOf(QueueFullError);
  return error as QueueFullError;
};

describe("a limit of queued runs", () => {
  it("refuses the enqueue beyond it, says which limit and when to come again, and lets in when one has begun", async () => {
    await quotas.set({ scope: "tenant", value: "*", kind: "run", unit: "queued", amount: 2 });
    const first = await bench.enqueue({ tenant: "full", idempotencyKey: "first" });
    await bench.enqueue({ tenant: "full" });
    const error = await refusal(bench.enqueue({ tenant: "full" }));
    expect(error).toMatchObject({ code: "QUEUE_FULL", retryable: true, retryAfterMs: 5_000, details: { scope: "tenant", value: "full", limit: 2, queued: 2, retry_after_s: 5 } });
    expect(error.message).toContain("2 queued runs of tenant full are allowed");
    // Another tenant's, and the same enqueue once more.
    await bench.enqueue({ tenant: "empty" });
    expect(await bench.enqueue({ tenant: "full", idempotencyKey: "first" })).toBe(first);
    expect((await store.append(claim(first))).kind).toBe("appended");
    await bench.enqueue({ tenant: "full" });
    await refusal(bench.enqueue({ tenant: "full" }));
  });

  it("one by name stands in place of that for each; agents and everything together have theirs", async () => {
    await quotas.set({ scope: "tenant", value: "*", kind: "run", unit: "queued", amount: 1 });
    await quotas.set({ scope: "tenant", value: "large", kind: "run", unit: "queued", amount: 3 });
    for (let n = 0; n < 3; n++) await bench.enqueue({ tenant: "large" });
    expect((await refusal(bench.enqueue({ tenant: "large" }))).details).toMatchObject({ limit: 3 });
    const { rows } = await db.query<{ n: number }>("select count(*)::int as n from capstan.runs where state = 'queued' and agent = 'plain'");
    await quotas.set({ scope: "agent", value: "plain", kind: "run", unit: "queued", amount: (rows[0]?.n ?? 0) + 1 });
    await bench.enqueue({ tenant: "third" });
    expect((await refusal(bench.enqueue({ tenant: "fourth" }))).details).toMatchObject({ scope: "agent", value: "plain" });
    await quotas.remove({ scope: "agent", value: "plain", kind: "run", unit: "queued" });
    await quotas.set({ scope: "overall", kind: "run", unit: "queued", amount: 0 });
    expect((await refusal(bench.enqueue({ tenant: "fifth" }))).message).toContain("0 queued runs in all are allowed");
  });

  it("counts the runs of its own transaction, and holds for retries and for schedules", async () => {
    await quotas.set({ scope: "tenant", value: "busy", kind: "run", unit: "queued", amount: 2 });
    const many = db.query("select capstan.enqueue_run(agent => 'plain', input => to_jsonb(n), tenant => 'busy') from generate_series(1, 3) n");
    await expect(many).rejects.toMatchObject({ code: "KC019" });
    expect((await db.query("select from capstan.runs where tenant = 'busy'")).rows).toHaveLength(0);
    const runs = [await bench.enqueue({ tenant: "busy" }), await bench.enqueue({ tenant: "busy" })];
    await db.query("select capstan.cancel_run($1)", [runs[0]]);
    await bench.enqueue({ tenant: "busy" });
    await expect(db.query("select capstan.retry_run($1)", [runs[0]])).rejects.toMatchObject({ code: "KC019" });
    await new ScheduleClient(db, same).create("often", { agent: "plain", cron: "@hourly", tenant: "busy" });
    await expect(db.query("select capstan.run_schedule(name => 'often', tenant => 'busy')")).rejects.toMatchObject({ code: "KC019" });
  });

  it("takes no lock: an open transaction delays nobody, and its run counts when it is committed", async () => {
    await quotas.set({ scope: "tenant", value: "open", kind: "run", unit: "queued", amount: 1 });
    const one = await bench.connection();
    await one.query("begin");
    await one.query("select capstan.enqueue_run(agent => 'plain', input => '1', tenant => 'open')");
    await bench.enqueue({ tenant: "open" });
    await one.query("commit");
    expect((await refusal(bench.enqueue({ tenant: "open" }))).details).toMatchObject({ limit: 1 });
  });
});

describe("limits of the database", () => {
  it("are set, listed with what is used of them, and removed; each change is audited once", async () => {
    const limit = { scope: "tenant", value: "acme", kind: "turn", unit: "tokens", window: "minute" } as const;
    expect(await quotas.set({ ...limit, amount: 1_000 }, { actor: "ann" })).toBe(true);
    expect(await quotas.set({ ...limit, amount: 1_000 }, { actor: "ann" })).toBe(false);
    expect(await quotas.set({ ...limit, amount: 2_000 }, { actor: "bob" })).toBe(true);
    await db.query(
      `insert into capstan.quota_buckets (bucket, window_start, window_end, leased, last_lease) values ('turn/tokens/minute/tenant/acme', capstan.now(), capstan.now() + interval '1 minute', 700, 100)`,
    );
    expect(await quotas.list()).toEqual([{ ...limit, amount: 2_000, used: 700, updated_at: expect.any(String) }]);
    expect(await quotas.use({ tenant: "acme" })).toEqual([{ bucket: "turn/tokens/minute/tenant/acme", used: 700, limit: 2_000, resets_at: expect.any(String) }]);
    expect(await quotas.remove(limit)).toBe(true);
    expect(await quotas.remove(limit)).toBe(false);
    expect((await db.query("select tenant, actor, action, target, detail from capstan.audit_log where action like 'quota.%' and target like '%acme' order by id")).rows).toEqual([
      { tenant: "acme", actor: "ann", action: "quota.set", target: "turn/tokens/minute/tenant/acme", detail: { amount: 1_000 } },
      { tenant: "acme", actor: "bob", action: "quota.set", target: "turn/tokens/minute/tenant/acme", detail: { amount: 2_000, before: 1_000 } },
      { tenant: "acme", actor: expect.any(String), action: "quota.remove", target: "turn/tokens/minute/tenant/acme", detail: { before: 2_000 } },
    ]);
  });

  it.each([
    [{ scope: "tenant", kind: "run", unit: "tokens", window: "day", amount: 1 }, "unit must be queued for kind run"],
    [{ scope: "model", kind: "run", unit: "queued", amount: 1 }, "a queued run has no model yet"],
    [{ scope: "model", kind: "tool", unit: "calls", window: "day", amount: 1 }, "tools have no model"],
    [{ scope: "tenant", kind: "turn", unit: "tokens", amount: 1 }, "window must be minute, day or month"],
    [{ scope: "overall", value: "acme", kind: "turn", unit: "concurrent", amount: 1 }, "value must be absent for scope overall"],
    [{ scope: "tenant", kind: "turn", unit: "concurrent", amount: -1 }, "amount must be a whole number of at least 0"],
  ])("refuse what means nothing: %j", async (spec, says) => {
    const error = await quotas.set(spec as Parameters<QuotasClient["set"]>[0]).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(ArgumentError);
    expect((error as Error).message).toContain(says);
  });

  it("are read by workers without a restart, and a run says which of them it waits for", async () => {
    const model = scriptedModel(["said"], { name: "scripted:capped", by: "turn" });
    const capped = agent({ name: "capped", model: "scripted:capped", instructions: "Speak." });
    await using lab = await openLab(database.url, { agents: [capped], models: [model], settings: { lostJobMs: 500, sweepMs: 100 } });
    await quotas.set({ scope: "agent", value: "capped", kind: "turn", unit: "concurrent", amount: 0 });
    // Those that the worker takes up before its next sweep are not held back.
    let run = await lab.capstan.enqueue(capped, "go");
    const waiting = await until("a run to wait", async () => {
      const status = await run.status();
      if (status.state === "completed") run = await lab.capstan.enqueue(capped, "go");
      return status.state === "waiting" && status;
    });
    expect(waiting).toMatchObject({ wait_reason: "quota", waits_for: { kind: "quota", bucket: "turn/concurrent/none/agent/capped", until: waiting.wake_at } });
    await quotas.remove({ scope: "agent", value: "capped", kind: "turn", unit: "concurrent" });
    expect(await run.result({ timeoutMs: 30_000 })).toBe("said");
    expect(typesOf(await lab.events(run.id)).filter((type) => type === "run.parked")).toHaveLength(1);
    expect((await run.status()).waits_for).toBeUndefined();
  });

  it("a run before its concurrency key says who holds it", async () => {
    const holder = await bench.enqueue({ tenant: "keys", concurrency: { key: "door" } });
    const next = await bench.enqueue({ tenant: "keys", concurrency: { key: "door" } });
    const { rows } = await db.query<{ status: { waits_for: unknown } }>("select capstan.run_status($1) as status", [next]);
    expect(rows[0]?.status.waits_for).toEqual({ kind: "concurrency_key", key: "door", scope: "agent", limit: 1, held_by: [holder] });
  });
});
