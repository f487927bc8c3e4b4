/** Runs that pass from one worker to another: at a stop, at a deploy, for want of an agent, between versions. */
import { expect, it } from "vitest";
import { z } from "zod";
import { agent, type Agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import { createTestDatabase } from "../support/database.ts";
import { ended, faultBench } from "./fault-bench.ts";
import { eventually, readJournal, runFacts } from "./journal.ts";
import { CHAOS_MODEL } from "./model.ts";

const database = await createTestDatabase();
const bench = faultBench(database.url);
const { db } = bench;
const types = async (runId: string) => (await readJournal(db, runId)).map(({ event }) => event.type);

it("a stop lets turns finish, and the next worker goes on at once", { timeout: 120_000 }, async () => {
  const pool = "stop";
  const runs = await Promise.all(Array.from({ length: 3 }, () => bench.enqueue("long", { pool })));
  const first = await bench.worker(pool);
  for (const runId of runs) await bench.untilEffect(runId, "c2_0");
  await first.stop();
  for (const runId of runs) expect(await runFacts(db, runId)).toMatchObject({ state: "running", worker_id: null, crash_count: 0 });
  const second = await bench.worker(pool);
  for (const runId of runs) {
    await bench.until(runId, "the run ends", ended);
    const rows = await readJournal(db, runId);
    expect(rows.filter(({ event }) => ["model.failed", "tool.interrupted"].includes(event.type))).toEqual([]);
    expect(rows.filter(({ event }) => event.type === "model.requested" && event.payload.again !== undefined)).toEqual([]);
    expect(await bench.breaches(runId)).toEqual([]);
  }
  await second.stop();
});

it("a stop aborts a long model call at a recorded boundary, uncounted, and gives the run back", { timeout: 120_000 }, async () => {
  const pool = "stop-model";
  const runId = await bench.enqueue("slow-answer", { pool });
  const first = await bench.worker(pool);
  await bench.untilEffect(runId, "m1");
  const stoppedAt = performance.now();
  await first.stop({ graceMs: 100 });
  expect(performance.now() - stoppedAt).toBeLessThan(3_500);
  expect(await runFacts(db, runId)).toMatchObject({ state: "running", worker_id: null, crash_count: 0 });
  const failed = (await readJournal(db, runId)).at(-1)?.event;
  expect(failed).toMatchObject({ type: "model.failed", payload: { error: { code: "INTERRUPTED" }, counts: false, retryable: true } });
  const second = await bench.worker(pool);
  await bench.until(runId, "the run ends", ended);
  const requests = (await readJournal(db, runId)).flatMap(({ event }) => (event.type === "model.requested" ? [event] : []));
  expect(requests.map(({ attempt, payload }) => [attempt, payload.again])).toEqual([
    [1, undefined],
    [2, "interrupted"],
    [1, undefined],
  ]);
  // The same request again: the same bytes.
  expect(requests[1]?.payload.hash).toBe(requests[0]?.payload.hash);
  expect(await bench.breaches(runId)).toEqual([]);
  await second.stop();
});

it("a stop interrupts a tool with side effects and says so; one that may be repeated is repeated elsewhere", { timeout: 120_000 }, async () => {
  const pool = "stop-tools";
  const [once, read] = [await bench.enqueue("slow-once", { pool }), await bench.enqueue("slow-read", { pool })];
  const first = await bench.worker(pool);
  await bench.untilEffect(once, "c0_0");
  await bench.untilEffect(read, "c0_0");
  await first.stop({ graceMs: 50 });
  expect((await readJournal(db, once)).at(-1)?.event).toMatchObject({ type: "tool.interrupted", payload: { reason: "aborted" } });
  expect(await types(read)).toEqual(["run.created", "model.requested", "model.responded"]);
  for (const runId of [once, read]) expect(await runFacts(db, runId)).toMatchObject({ state: "running", worker_id: null });
  const second = await bench.worker(pool);
  await bench.until(once, "the run ends", ended);
  await eventually("the read runs again", () => bench.effects(read).filter(({ key }) => key === "c0_0").length === 2);
  expect(bench.effects(once).filter(({ key }) => key === "c0_0")).toHaveLength(1);
  await db.query("select capstan.cancel_run($1)", [read]);
  expect(await bench.breaches(once)).toEqual([]);
  await second.stop({ graceMs: 50 });
});

it("a run whose agent no worker has is visible, not failed, and starts when a worker with it comes", { timeout: 60_000 }, async () => {
  const pool = "no-agent";
  const runId = await bench.enqueue("one-tool", { pool });
  const other = await bench.worker(pool, { agents: [bench.agent("long")] });
  const proof = await bench.enqueue("long", { pool });
  await bench.until(proof, "the worker works", ended);
  expect(await runFacts(db, runId)).toMatchObject({ state: "queued", worker_id: null, next_seq: 2 });
  expect((await db.query("select ready from capstan.wishes where run_id = $1", [runId])).rows).toEqual([{ ready: true }]);
  const fitting = await bench.worker(pool);
  await bench.until(runId, "the run ends", ended, 10_000);
  await Promise.all([other.stop(), fitting.stop()]);
});

/** The agent `one-tool` as other code has it. */
function variant(change: "without the tool" | "another effect" | "another input"): Agent {
  const note = tool({
    name: "note",
    description: "note",
    input: change === "another input" ? z.object({ more: z.string() }) : z.object({}),
    effect: change === "another effect" ? "once" : "idempotent",
    execute: () => "x",
  });
  return agent({ name: "one-tool", model: CHAOS_MODEL, instructions: "one-tool", tools: change === "without the tool" ? [] : [note] }) as Agent;
}

it.each([
  ["without the tool", "tool note is missing"],
  ["another effect", "tool note is once in code, idempotent in the definition"],
  ["another input", "tool note takes another input in code than in the definition"],
] as const)("code %s parks the run with the difference named; a fitting worker that starts takes it up", { timeout: 60_000 }, async (change, difference) => {
  const pool = `park ${change}`.replaceAll(" ", "-");
  const runId = await bench.enqueue("one-tool", { pool });
  const unfit = await bench.worker(pool, { agents: [variant(change)] });
  await bench.until(runId, "the run is parked", ({ state }) => state === "waiting");
  expect(await runFacts(db, runId)).toMatchObject({ wait_reason: "agent_missing", worker_id: null });
  expect((await readJournal(db, runId)).at(-1)?.event).toMatchObject({ type: "run.parked", payload: { reason: "agent_missing", detail: { missing: difference } } });
  await unfit.stop();
  const fitting = await bench.worker(pool);
  await bench.until(runId, "the run ends", ended);
  expect(await bench.breaches(runId)).toEqual([]);
  await fitting.stop();
});

it("a run that old code parked while a fitting worker was there already is taken up by that worker (a rolling deploy)", { timeout: 150_000 }, async () => {
  const pool = "rolling";
  const unfit = await bench.worker(pool, { agents: [variant("without the tool")] });
  const runId = await bench.enqueue("one-tool", { pool });
  await bench.until(runId, "the run is parked", ({ state }) => state === "waiting");
  const fitting = await bench.worker(pool);
  await bench.until(runId, "the run ends though the old worker is still there", ended);
  // And one that it parks from now on, when no worker starts any more.
  const late = await Promise.all(Array.from({ length: 4 }, () => bench.enqueue("one-tool", { pool })));
  for (const id of late) await bench.until(id, "a later run ends", ended, 45_000);
  for (const id of [runId, ...late]) expect(await bench.breaches(id)).toEqual([]);
  await Promise.all([unfit.stop(), fitting.stop()]);
});

it("an older worker leaves a run with an event that it does not know, and says EVENT_UNKNOWN; others go on", { timeout: 60_000 }, async () => {
  const pool = "unknown";
  const newer = await bench.enqueue("long", { pool });
  const asOfTomorrow = await bench.enqueue("long", { pool });
  await db.query(
    "insert into capstan.events (run_id, at, append_id, seq, turn, fencing_token, view_epoch, size, version, attempt, type, payload) values ($1, now(), 1, 2, 0, 0, 0, 2, 1, 0, 'run.enchanted', '{}')",
    [newer],
  );
  await db.query("update capstan.runs set next_seq = 3 where id = $1", [newer]);
  await db.query(
    "insert into capstan.events (run_id, at, append_id, seq, turn, fencing_token, view_epoch, size, version, attempt, type, payload) values ($1, now(), 1, 2, 0, 0, 0, 2, 9, 0, 'input.applied', '{}')",
    [asOfTomorrow],
  );
  await db.query("update capstan.runs set next_seq = 3 where id = $1", [asOfTomorrow]);
  const lines: string[] = [];
  const quiet = (): void => {};
  const worker = await bench.worker(pool, {
    log: { debug: quiet, info: quiet, warn: quiet, error: (fields) => lines.push(`${(fields as { runId?: string }).runId} ${(fields as { err?: { code?: string } }).err?.code}`) },
  });
  const others = await Promise.all(Array.from({ length: 3 }, () => bench.enqueue("long", { pool })));
  for (const runId of others) await bench.until(runId, "another run ends", ended);
  await eventually("both are reported", () => [newer, asOfTomorrow].every((runId) => lines.includes(`${runId} EVENT_UNKNOWN`)));
  for (const runId of [newer, asOfTomorrow]) expect(await runFacts(db, runId)).toMatchObject({ state: "queued", worker_id: null, next_seq: 3, fencing_token: 0 });
  await worker.stop();
});

it("steering that comes while a call is lost or retried is applied at the next boundary, exactly once", { timeout: 60_000 }, async () => {
  const pool = "steered";
  const runId = await bench.enqueue("slow-answer", { pool });
  const child = await bench.child(pool);
  await bench.untilEffect(runId, "m1");
  child.kill("SIGKILL");
  await child.ended;
  // The request is in the journal, its answer is not: the turn has begun and the input must wait for its end.
  await db.query("select capstan.send(run_id => $1, payload => '\"quick\"')", [runId]);
  const heir = await bench.worker(pool);
  await bench.until(runId, "the run ends", ended, 30_000);
  const all = await types(runId);
  expect(all.filter((type) => type === "input.applied")).toHaveLength(1);
  expect(all.indexOf("input.applied")).toBeGreaterThan(all.indexOf("tool.completed"));
  expect(await bench.breaches(runId)).toEqual([]);
  await heir.stop();
});
