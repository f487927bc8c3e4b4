/** Answers that come at the same time, or at the very moment at which nobody is waited for any more: exactly one counts, and it is the one that was acknowledged. */
import pg from "pg";
import { expect, it, onTestFinished } from "vitest";
import { createTestDatabase } from "../support/database.ts";
import { eventually } from "./journal.ts";
import { ended, isFull, lifeBench, waitsFor } from "./life-bench.ts";

const database = await createTestDatabase();
const bench = lifeBench(database.url);
const { db } = bench;

async function client(): Promise<pg.Client> {
  const own = new pg.Client({ connectionString: database.url });
  await own.connect();
  onTestFinished(() => own.end());
  return own;
}

it("a decision that is committed after the expiry it was made before counts alone", { timeout: 60_000 }, async () => {
  const pool = "held-decision";
  const worker = await bench.worker(pool);
  const runId = await bench.enqueue("expires", { pool });
  await bench.until(runId, "the run waits", waitsFor("approval"));
  const [wait] = await bench.waits(runId);
  const decider = await client();
  // In time by the clock, and held in the caller's transaction until the worker has taken the wait for expired.
  await decider.query("begin");
  await decider.query("select capstan.decide($1, 'approve', actor => 'ann')", [wait?.id]);
  await eventually(
    "nobody is waited for any more",
    async () => (await db.query("select from capstan.waits where id = $1 and expires_at < capstan.now()", [wait?.id])).rows.length > 0,
  );
  // A job that was in the queue before: the wish for the next one is in the decider's hands.
  await db.query("select graphile_worker.add_job($1, json_build_object('runId', $2::text))", [`capstan/${pool}/expires`, runId]);
  const { rows } = await decider.query<{ pid: number }>("select pg_backend_pid() as pid");
  const isBlocked = async () => (await db.query("select from pg_stat_activity where $1::int = any(pg_blocking_pids(pid))", [rows[0]?.pid])).rows.length > 0;
  await eventually("the worker wants to write the expiry", isBlocked);
  await decider.query("commit");
  await bench.until(runId, "the run ends", ended);
  expect((await bench.of(runId, "approval.decided")).map(({ payload, actor }) => ({ decision: payload.decision, expired: payload.expired, actor }))).toEqual([
    { decision: "approve", expired: undefined, actor: "ann" },
  ]);
  expect(bench.effects(runId).filter(({ kind }) => kind === "once")).toHaveLength(1);
  await bench.intact([runId]);
  await worker.stop();
});

it("of two processes that decide at once one is acknowledged, round for round, and its word is the journal's", { timeout: 180_000 }, async () => {
  const pool = "two-deciders";
  const [first, second] = await Promise.all([bench.child(pool), bench.child(pool)]);
  const deciders = [await client(), await client()];
  const rounds = isFull ? 100 : 12;
  const runs = await Promise.all(Array.from({ length: rounds }, () => bench.enqueue("asks", { pool })));
  const acknowledged = new Map<string, string[]>();
  for (const [n, runId] of runs.entries()) {
    await bench.until(runId, "the run waits", waitsFor("approval"));
    const [wait] = await bench.waits(runId);
    const answers = await Promise.allSettled(
      deciders.map((decider, d) => decider.query("select capstan.decide($1, $2, actor => $3)", [wait?.id, (n + d) % 2 === 0 ? "approve" : "deny", `decider ${d}`])),
    );
    for (const answer of answers) if (answer.status === "rejected") expect(answer.reason).toMatchObject({ code: "KC017" });
    acknowledged.set(
      runId,
      answers.flatMap((answer, d) => (answer.status === "fulfilled" ? [`${(n + d) % 2 === 0 ? "approve" : "deny"} by decider ${d}`] : [])),
    );
  }
  for (const runId of runs) {
    await bench.until(runId, "the run ends", ended);
    const decided = (await bench.of(runId, "approval.decided")).map(({ payload, actor }) => `${payload.decision} by ${actor}`);
    expect(decided).toEqual(acknowledged.get(runId));
    expect(decided).toHaveLength(1);
    expect(bench.effects(runId).filter(({ kind }) => kind === "once")).toHaveLength(decided[0]?.startsWith("approve") === true ? 1 : 0);
  }
  await bench.intact(runs);
  await Promise.all([first.stop(), second.stop()]);
});

const offsetsMs = [-200, -50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10];

it("a decision at the moment of expiry counts or is refused, and the journal says the same", { timeout: 180_000 }, async () => {
  const pool = "at-expiry";
  const worker = await bench.child(pool);
  const runs = await Promise.all(Array.from({ length: isFull ? 60 : 12 }, () => bench.enqueue("expires", { pool })));
  for (const runId of runs) await bench.until(runId, "the run waits", waitsFor("approval"));
  // Each is decided by the database's clock as near to its expiry as a connection can.
  const outcomes = await Promise.all(
    runs.map(async (runId, n) => {
      const [wait] = await bench.waits(runId);
      try {
        await db.query(
          `do $$ begin
             perform pg_sleep(greatest(0, extract(epoch from (select w.expires_at from capstan.waits w where w.id = '${wait?.id}') - capstan.now()) + ${offsetsMs[n % offsetsMs.length]} * 0.001));
             perform capstan.decide('${wait?.id}', 'approve', actor => 'late');
           end $$`,
        );
        return "counted";
      } catch (error) {
        expect(["KC011", "KC017"]).toContain((error as { code?: string }).code);
        return "refused";
      }
    }),
  );
  for (const [n, runId] of runs.entries()) {
    await bench.until(runId, "the run ends", ended);
    const decided = (await bench.of(runId, "approval.decided")).map(({ payload, actor }) => (payload.expired === true ? "expired" : `by ${actor}`));
    expect(decided).toEqual([outcomes[n] === "counted" ? "by late" : "expired"]);
    expect(bench.effects(runId).filter(({ kind }) => kind === "once")).toHaveLength(outcomes[n] === "counted" ? 1 : 0);
  }
  console.log(`at the moment of expiry: ${outcomes.filter((outcome) => outcome === "counted").length} of ${outcomes.length} counted`);
  await bench.intact(runs);
  await worker.stop();
});
