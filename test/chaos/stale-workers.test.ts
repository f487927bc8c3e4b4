/** Workers that are suspended, blocked or dead, and what the others make of their runs. */
import { expect, it } from "vitest";
import { createTestDatabase } from "../support/database.ts";
import { ended, faultBench } from "./fault-bench.ts";
import { eventually, readJournal, runFacts } from "./journal.ts";

const database = await createTestDatabase();
const bench = faultBench(database.url);
const { db } = bench;

const workerRow = async (id: string) =>
  (await db.query<{ ended_at: Date | null; end_reason: string | null }>("select ended_at, end_reason from capstan.workers where id = $1", [id])).rows[0];

it("SIGSTOP for longer than the lease: the worker that wakes appends nothing and goes on under a new incarnation (earendil-works/absurd #144)", { timeout: 120_000 }, async () => {
  const pool = "stopped";
  const runId = await bench.enqueue("slow-answer", { pool });
  const stale = await bench.child(pool);
  await bench.untilEffect(runId, "m1");
  stale.kill("SIGSTOP");
  const fresh = await bench.child(pool);
  const taken = await bench.until(runId, "the other worker takes the run over", ({ fencing_token, worker_id }) => fencing_token >= 3 && worker_id === fresh.workerId);
  expect((await workerRow(stale.workerId))?.end_reason).toBe("lost");
  stale.kill("SIGCONT");
  // The old process learns that it was buried and comes back as somebody else.
  const again = await eventually("a new incarnation of the process that was suspended", async () => {
    const { rows } = await db.query<{ id: string }>("select id from capstan.workers where pid = $1 and id <> $2 and ended_at is null", [stale.pid, stale.workerId]);
    return rows[0]?.id;
  });
  expect(again).not.toBe(stale.workerId);
  expect(stale.isAlive()).toBe(true);
  await bench.until(runId, "the run ends", ended);
  const rows = await readJournal(db, runId);
  // Nothing under the old token after the new one was given out.
  const firstNew = rows.findIndex(({ fencingToken }) => fencingToken >= taken.fencing_token);
  expect(rows.slice(firstNew).filter(({ fencingToken }) => fencingToken < taken.fencing_token)).toEqual([]);
  expect(await bench.breaches(runId)).toEqual([]);
  // It is of use again: alone, it does a whole run.
  await fresh.stop();
  const next = await bench.enqueue("slow-answer", { pool });
  await bench.until(next, "the suspended worker's new incarnation does a run", ended);
  expect(new Set(bench.effects(next).map(({ pid }) => pid))).toEqual(new Set([stale.pid]));
  await stale.stop();
});

it("a tool that blocks the event loop ends its process; after three the run is parked as crash_loop and others are not affected", { timeout: 180_000 }, async () => {
  const pool = "blocked";
  const runId = await bench.enqueue("blocks", { pool });
  const victims = [];
  for (let n = 1; n <= 3; n++) {
    const victim = await bench.child(pool);
    victims.push(victim);
    await eventually(`victim ${n} executes the tool`, () => bench.effects(runId).some(({ pid, kind }) => pid === victim.pid && kind === "idempotent"));
    expect(await victim.ended).toBe("SIGKILL");
    expect(victim.log()).toContain("event loop");
    expect((await workerRow(victim.workerId))?.end_reason).toBe("blocked");
  }
  const healthy = await bench.child(pool);
  const others = await Promise.all(Array.from({ length: 3 }, () => bench.enqueue("long", { pool })));
  const parked = await bench.until(runId, "the run is parked", ({ state }) => state === "waiting");
  expect(parked).toMatchObject({ wait_reason: "crash_loop", worker_id: null });
  const last = (await readJournal(db, runId)).at(-1)?.event;
  expect(last).toMatchObject({ type: "run.parked", payload: { reason: "crash_loop", detail: { crashes: 3, phase: "calling" } } });
  for (const other of others) await bench.until(other, "another run ends", ended);
  expect(healthy.isAlive()).toBe(true);
  // Nobody touched it again.
  expect(
    bench
      .effects(runId)
      .filter(({ kind }) => kind === "idempotent")
      .map(({ pid }) => pid),
  ).toEqual(victims.map(({ pid }) => pid));
  for (const id of others) expect(await bench.breaches(id)).toEqual([]);
  // Its call stays open: nothing that was done is claimed to be known.
  expect(await bench.breaches(runId)).toEqual(victims.map(({ pid }) => `idempotent c0_0 by ${pid} is in no journal`));
  await healthy.stop();
});

it("a killed worker's run is taken over within 15 s with the default settings (graphile/worker #222)", { timeout: 120_000 }, async () => {
  const pool = "defaults";
  const runId = await bench.enqueue("slow-model", { pool });
  // No CAPSTAN_* at all: what a user gets.
  const first = await bench.child(pool, { env: {} });
  const second = await bench.child(pool, { env: {} });
  await bench.untilEffect(runId, "m1");
  const { worker_id: holder, fencing_token: token } = await runFacts(db, runId);
  const victim = holder === first.workerId ? first : second;
  const heir = victim === first ? second : first;
  victim.kill("SIGKILL");
  const killedAt = performance.now();
  await victim.ended;
  await bench.until(runId, "the other worker holds the run", ({ worker_id, fencing_token }) => worker_id === heir.workerId && fencing_token > token, 40_000);
  expect(performance.now() - killedAt).toBeLessThan(15_000);
  await db.query("select capstan.cancel_run($1)", [runId]);
  await heir.stop();
});

it("jobs lost from the queue and doubled in it do no harm (vercel/workflow: at-least-once delivery)", { timeout: 120_000 }, async () => {
  const pool = "jobs";
  const runs = await Promise.all(Array.from({ length: 4 }, () => bench.enqueue("long", { pool })));
  const worker = await bench.child(pool);
  const doubling = (async () => {
    // Every job is doubled while the runs are at work, and every waiting one is lost twice.
    for (let round = 0; round < 12; round++) {
      for (const runId of runs) await db.query("select graphile_worker.add_job($1, json_build_object('runId', $2::text))", [`capstan/${pool}/long`, runId]);
      if (round === 3 || round === 7) await db.query("delete from graphile_worker._private_jobs where locked_at is null");
      await new Promise((resolve) => setTimeout(resolve, 60));
    }
  })();
  await doubling;
  for (const runId of runs) {
    await bench.until(runId, "the run ends", ended, 90_000);
    expect(await bench.breaches(runId)).toEqual([]);
    // With one worker that never died, doubled jobs must not even repeat what may be repeated.
    const keys = bench.effects(runId).map(({ kind, key }) => `${kind} ${key}`);
    expect(keys.length).toBe(new Set(keys).size);
  }
  await worker.stop();
});
