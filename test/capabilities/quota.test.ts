/** Quotas hold over several workers, whoever of them dies and whenever. */
import { setImmediate } from "node:timers/promises";
import { expect, it, onTestFinished, vi } from "vitest";
import type { QuotaLimitSpec } from "../../src/domain/quota.ts";
import { createTestDatabase } from "../support/database.ts";
import { queueBench } from "../queue/queue-bench.ts";
import { effectOf, estimate, openGate, tryReserve, type TestGate } from "./quota-bench.ts";

const database = await createTestDatabase();
const bench = queueBench(database.url);
const { db } = bench;

/** Long windows: no test runs across the end of one by chance. */
const perMonth = (unit: "calls" | "tokens" | "cost_usd_micros", amount: number, over: Partial<QuotaLimitSpec> = {}): QuotaLimitSpec => ({
  scope: "overall",
  kind: "turn",
  unit,
  window: "month",
  amount,
  ...over,
});
const spent = (tokens: number) => ({ calls: 1, tokens, costUsdMicros: 0 });
const bucketRow = async (bucket: string) => (await db.query<{ leased: number }>("select leased::int from capstan.quota_buckets where bucket = $1", [bucket])).rows[0]?.leased;
const bury = (workerId: string, ago = "0 s") => db.query("update capstan.workers set ended_at = capstan.now() - $2::interval, end_reason = 'lost' where id = $1", [workerId, ago]);

/** Each test has the buckets for itself. */
async function fresh(): Promise<void> {
  await db.query("truncate capstan.quota_buckets, capstan.quota_slices, capstan.quota_reservations, capstan.quota_slots, capstan.quota_limits");
}

it("asks the database nothing while no limit applies to a call", async () => {
  await fresh();
  const { gate, pool } = await openGate(bench, [perMonth("calls", 5, { kind: "tool" }), perMonth("calls", 5, { scope: "tenant", value: "other" })]);
  const query = vi.spyOn(pool, "query");
  onTestFinished(() => query.mockRestore());
  expect(await gate.reserve(effectOf(), estimate())).toEqual({ kind: "granted", reservation: undefined });
  expect(await gate.exhaustedTenants("summary")).toEqual(new Set());
  expect(query).not.toHaveBeenCalled();
});

it("two workers that race never hold more slots than there are, and use all of them", async () => {
  await fresh();
  const limits: QuotaLimitSpec[] = [{ scope: "tenant", kind: "turn", unit: "concurrent", amount: 3 }];
  const gates = [await openGate(bench, limits), await openGate(bench, limits)];
  let inFlight = 0;
  let most = 0;
  let done = 0;
  const call = async (worker: TestGate): Promise<void> => {
    for (;;) {
      const reservation = await tryReserve(worker);
      if (reservation === undefined) continue;
      most = Math.max(most, ++inFlight);
      const { rows } = await db.query<{ n: number }>("select count(*)::int as n from capstan.quota_slots");
      expect(rows[0]?.n).toBeLessThanOrEqual(3);
      // The first ones keep their slots until all are in use, however slow the machine is.
      while (most < 3) await setImmediate();
      inFlight--;
      await worker.gate.settle(reservation, spent(10));
      done++;
      return;
    }
  };
  await Promise.all(gates.flatMap((worker) => Array.from({ length: 12 }, () => call(worker))));
  expect({ most, done }).toEqual({ most: 3, done: 24 });
  expect((await db.query("select from capstan.quota_slots")).rowCount).toBe(0);
});

it("a slot limit that was lowered holds at once", async () => {
  await fresh();
  const wide = await openGate(bench, [{ scope: "overall", kind: "turn", unit: "concurrent", amount: 4 }]);
  const narrow = await openGate(bench, [{ scope: "overall", kind: "turn", unit: "concurrent", amount: 2 }]);
  const held = [await tryReserve(wide), await tryReserve(wide), await tryReserve(wide)];
  expect(await tryReserve(narrow)).toBeUndefined();
  for (const reservation of held.slice(0, 2)) if (reservation) await wide.gate.settle(reservation, spent(1));
  expect(await tryReserve(narrow)).toBeDefined();
  expect(await tryReserve(narrow)).toBeUndefined();
});

it("what two workers grant together is at most the limit, and most of it", async () => {
  await fresh();
  const limits = [perMonth("calls", 60), perMonth("tokens", 45_000, { scope: "tenant" })];
  const gates = [await openGate(bench, limits), await openGate(bench, limits)];
  const granted = (await Promise.all(gates.flatMap((worker) => Array.from({ length: 50 }, () => tryReserve(worker))))).filter((reservation) => reservation !== undefined);
  expect(granted.length).toBeLessThanOrEqual(45);
  expect(granted.length).toBeGreaterThanOrEqual(40);
  expect(await bucketRow("turn/tokens/month/tenant/acme")).toBeLessThanOrEqual(45_000);
  expect(await bucketRow("turn/calls/month/overall/*")).toBeLessThanOrEqual(60);
});

it("leases in slices: most calls do not touch the bucket's row", async () => {
  await fresh();
  const worker = await openGate(bench, [perMonth("calls", 200)]);
  const query = vi.spyOn(worker.pool, "query");
  onTestFinished(() => query.mockRestore());
  for (let i = 0; i < 20; i++) expect(await tryReserve(worker)).toBeDefined();
  const named = query.mock.calls.map(([config]) => (config as unknown as { name: string }).name);
  expect(named.filter((name) => name === "capstan-quota-lease")).toHaveLength(2);
  expect(named.filter((name) => name === "capstan-quota-reserve")).toHaveLength(20);
});

it("reserves the largest possible amount and gives back what the call did not take", async () => {
  await fresh();
  const worker = await openGate(bench, [perMonth("tokens", 2_500)]);
  const first = await tryReserve(worker);
  const second = await tryReserve(worker);
  expect(await tryReserve(worker)).toBeUndefined();
  if (first) await worker.gate.settle(first, spent(100));
  if (second) await worker.gate.settle(second, "reserved");
  // 100 + 1,000 are spent: one more of at most 1,000 fits, a second does not.
  const third = await tryReserve(worker);
  expect(third).toBeDefined();
  expect(await tryReserve(worker)).toBeUndefined();
  // A call that took more than it had reserved is paid for by those that follow.
  if (third) await worker.gate.settle(third, spent(1_300));
  expect(await tryReserve(worker, effectOf(), estimate({ inputTokens: 101, maxOutputTokens: 0 }))).toBeUndefined();
  expect(await tryReserve(worker, effectOf(), estimate({ inputTokens: 100, maxOutputTokens: 0 }))).toBeDefined();
});

it("refuses before the call what its budget cannot hold (C36)", async () => {
  await fresh();
  const worker = await openGate(bench, [perMonth("tokens", 50_000, { kind: "summary" })]);
  const summary = effectOf({ kind: "summary" });
  const spentBefore = await tryReserve(worker, summary, estimate({ inputTokens: 49_000, maxOutputTokens: 0 }));
  if (spentBefore) await worker.gate.settle(spentBefore, spent(49_000));
  const refused = await worker.gate.reserve(summary, estimate({ inputTokens: 49_000, maxOutputTokens: 1_000 }));
  expect(refused).toMatchObject({ kind: "exhausted", bucket: "summary/tokens/month/overall/*" });
  expect(await worker.gate.exhaustedTenants("summary")).toEqual(new Set());
  // Turns have quotas of their own.
  expect(await worker.gate.reserve(effectOf(), estimate({ inputTokens: 1e9 }))).toMatchObject({ kind: "granted" });
  expect(await worker.gate.reserve(summary, estimate({ inputTokens: 60_000 }))).toMatchObject({ neverFits: { needed: 60_400, limit: 50_000 } });
});

it("settles at the reserved amount what a dead worker left open, and frees its slots", async () => {
  await fresh();
  const limits: QuotaLimitSpec[] = [perMonth("tokens", 100_000), { scope: "overall", kind: "turn", unit: "concurrent", amount: 1 }];
  const [dying, living] = [await openGate(bench, limits), await openGate(bench, limits)];
  const reservation = await tryReserve(dying);
  expect(reservation).toBeDefined();
  expect(await tryReserve(living)).toBeUndefined();
  await living.gate.round();
  expect(await tryReserve(living)).toBeUndefined();

  await bury(dying.workerId);
  await living.gate.round();
  const open = await db.query("select settled_amount::int, amount::int from capstan.quota_reservations where id = $1", [reservation?.id]);
  expect(open.rows).toEqual([{ settled_amount: 1_000, amount: 1_000 }]);
  expect(await tryReserve(living)).toBeDefined();
  // The dead worker's answer comes late: it was settled and stays so.
  if (reservation) await dying.gate.settle(reservation, spent(3));
  expect((await db.query("select settled_amount::int from capstan.quota_reservations where id = $1", [reservation?.id])).rows).toEqual([{ settled_amount: 1_000 }]);
});

it("what a dead worker had leased and not used goes back to the bucket, what it used does not", async () => {
  await fresh();
  const limits = [perMonth("tokens", 100_000)];
  const [dying, living] = [await openGate(bench, limits), await openGate(bench, limits)];
  await tryReserve(dying);
  const settled = await tryReserve(dying);
  if (settled) await dying.gate.settle(settled, spent(200));
  expect(await bucketRow("turn/tokens/month/overall/*")).toBe(5_000);
  await bury(dying.workerId);
  await living.gate.round();
  // Not yet: a reservation that was under way may still arrive.
  expect(await bucketRow("turn/tokens/month/overall/*")).toBe(5_000);
  await bury(dying.workerId, "1 minute");
  await living.gate.round();
  expect(await bucketRow("turn/tokens/month/overall/*")).toBe(1_200);
  await living.gate.round();
  expect(await bucketRow("turn/tokens/month/overall/*")).toBe(1_200);
});

it("a worker that was taken for dead reserves nothing more", async () => {
  await fresh();
  const worker = await openGate(bench, [perMonth("calls", 100), { scope: "overall", kind: "tool", unit: "concurrent", amount: 5 }]);
  expect(await tryReserve(worker)).toBeDefined();
  await bury(worker.workerId);
  expect(await worker.gate.reserve(effectOf(), estimate())).toMatchObject({ kind: "exhausted" });
  expect(await worker.gate.reserve(effectOf({ kind: "tool", name: "t" }), estimate())).toMatchObject({ kind: "exhausted" });
  expect((await db.query("select from capstan.quota_slots")).rowCount).toBe(0);
});

it("gives back what it leased when it stops, and what lies idle after a while", async () => {
  await fresh();
  const limits = [perMonth("tokens", 100_000)];
  const [idle, stopping] = [await openGate(bench, limits), await openGate(bench, limits)];
  for (const worker of [idle, stopping]) {
    const reservation = await tryReserve(worker);
    if (reservation) await worker.gate.settle(reservation, spent(300));
  }
  expect(await bucketRow("turn/tokens/month/overall/*")).toBe(10_000);
  await stopping.gate.release();
  expect(await bucketRow("turn/tokens/month/overall/*")).toBe(5_300);
  for (let i = 0; i < 7; i++) await idle.gate.round();
  expect(await bucketRow("turn/tokens/month/overall/*")).toBe(600);
});

it("folds settled calls into a sum, so that nothing grows with the number of turns", async () => {
  await fresh();
  const worker = await openGate(bench, [perMonth("calls", 1_000)]);
  for (let i = 0; i < 5; i++) {
    const reservation = await tryReserve(worker);
    if (reservation) await worker.gate.settle(reservation, spent(1));
  }
  const open = await tryReserve(worker);
  await db.query("update capstan.quota_reservations set settled_at = settled_at - interval '1 minute'");
  await worker.gate.round();
  expect((await db.query("select id from capstan.quota_reservations")).rows).toEqual([{ id: open?.id }]);
  expect((await db.query("select used::int, leased::int from capstan.quota_slices")).rows).toEqual([{ used: 5, leased: 50 }]);
  await bury(worker.workerId, "1 minute");
  const other = await openGate(bench, [perMonth("calls", 1_000)]);
  await other.gate.round();
  expect(await bucketRow("turn/calls/month/overall/*")).toBe(6);
});

it("starts over when the window turns, by the database's clock", async () => {
  await fresh();
  const limits: QuotaLimitSpec[] = [perMonth("calls", 1)];
  const before = await openGate(bench, limits);
  expect(await tryReserve(before)).toBeDefined();
  const refused = await before.gate.reserve(effectOf(), estimate());
  expect(refused).toMatchObject({ kind: "exhausted", retryAfterMs: 300_000 });
  await db.query(`alter database ${database.name} set capstan_clock."offset" = '32 days'`);
  onTestFinished(async () => void (await db.query(`alter database ${database.name} reset capstan_clock."offset"`)));
  const after = await openGate(bench, limits);
  expect(await tryReserve(after)).toBeDefined();
  expect(await tryReserve(after)).toBeUndefined();
  await after.gate.round();
  const { rows } = await db.query<{ n: number }>("select count(*)::int as n from capstan.quota_buckets");
  expect(rows[0]?.n).toBe(1);
});

it("a limit of one tenant takes the place of that for each, and rows of the table that of the configuration", async () => {
  await fresh();
  await db.query(
    `insert into capstan.quota_limits (scope, value, kind, unit, "window", amount) values ('tenant', 'big', 'turn', 'calls', 'month', 3), ('tenant', '*', 'turn', 'calls', 'month', 2)`,
  );
  const worker = await openGate(bench, [perMonth("calls", 1, { scope: "tenant" })]);
  const granted = async (tenant: string) => {
    let n = 0;
    while ((await tryReserve(worker, effectOf({ tenant }))) !== undefined) n++;
    return n;
  };
  expect([await granted("big"), await granted("small"), await granted("other")]).toEqual([3, 2, 2]);
  await db.query("update capstan.quota_limits set amount = 5 where value = 'big'");
  await worker.gate.round();
  expect(await granted("big")).toBe(2);
});

it("names the tenants whose summaries would be refused", async () => {
  await fresh();
  const limits = [perMonth("calls", 2, { kind: "summary", scope: "tenant" }), { scope: "tenant", kind: "summary", unit: "concurrent", amount: 1 } as const];
  const worker = await openGate(bench, limits);
  const summary = (tenant: string) => effectOf({ kind: "summary", tenant });
  for (let i = 0; i < 2; i++) {
    const reservation = await tryReserve(worker, summary("spent/up"));
    if (reservation) await worker.gate.settle(reservation, spent(1));
  }
  await tryReserve(worker, summary("busy"));
  const one = await tryReserve(worker, summary("fine"));
  if (one) await worker.gate.settle(one, spent(1));
  expect(await worker.gate.exhaustedTenants("summary")).toEqual(new Set(["spent/up", "busy"]));
  expect(await worker.gate.exhaustedTenants("turn")).toEqual(new Set());
});
