/** What happens to a run, and to its view, while a summary of it is in the making. */
import { describe, expect, it } from "vitest";
import { createTestDatabase } from "../support/database.ts";
import { compactionBench, heldSummarizer } from "./compaction-bench.ts";
import { openTasks, tasksOf } from "./compaction-checks.ts";
import { eventually, readJournal, runFacts } from "./journal.ts";

const database = await createTestDatabase();
const bench = compactionBench(database.url);
const { db } = bench;
const timeout = 240_000;

/** A prune by hand, as a holder of the lease would write it: the view has another epoch from here on. */
async function raiseEpoch(runId: string): Promise<void> {
  const size = { tokens: 1, scale: "estimate", bytes: 1 };
  const payload = JSON.stringify({ excerpts: [], before: size, after: size, reason: "irreducible" });
  await db.query(
    `with r as (
       update capstan.runs set next_seq = next_seq + 1, view_epoch = view_epoch + 1, fencing_token = fencing_token + 1 where id = $1 and worker_id is null
       returning id, next_seq - 1 as seq, turn, fencing_token, view_epoch - 1 as epoch)
     insert into capstan.events (run_id, at, append_id, seq, turn, fencing_token, view_epoch, size, version, attempt, type, payload)
     select id, now(), 1, seq, turn, fencing_token, epoch, octet_length($2), 1, 0, 'context.pruned', $2::json from r`,
    [runId, payload],
  );
}

describe("while a summary is in the making", () => {
  it("what is appended meanwhile is simply the tail (C40)", { timeout }, async () => {
    const pool = "tail";
    const held = heldSummarizer();
    const turns = await bench.worker(pool);
    const summaries = await bench.summarizer(held.summarizer);
    const runId = await bench.enqueue("bytes", { pool });
    await eventually("the summarizer works", () => held.calls() === 1, { withinMs: 60_000 });
    const turnThen = (await runFacts(db, runId)).turn;
    await bench.until(runId, "two more turns", ({ turn, state }) => turn >= turnThen + 2 || state === "completed");
    held.release();
    await bench.rests(runId);
    const events = await bench.events(runId);
    const [marker] = await bench.of(runId, "context.compacted");
    const [requested] = await bench.of(runId, "compaction.requested");
    if (marker === undefined || requested === undefined) throw new Error("not compacted");
    const meanwhile = events.filter(({ seq, type }) => seq > requested.seq && seq < marker.seq && type === "tool.completed");
    expect(meanwhile.length).toBeGreaterThanOrEqual(2);
    expect(marker.payload.cut).toMatchObject({ first_kept_seq: requested.payload.cut.first_kept_seq });
    // The next request's hash is over head and tail: verify folds it again, and the checks rebuild it at every event.
    expect(await bench.breaches(runId)).toEqual([]);
    await Promise.all([turns.stop(), summaries.stop()]);
  });

  it("a view that has become another one meanwhile is left alone: superseded, and the next compaction works", { timeout }, async () => {
    const pool = "epoch";
    const held = heldSummarizer();
    const turns = await bench.worker(pool);
    const summaries = await bench.summarizer(held.summarizer);
    const runId = await bench.parkedAndAsked(pool);
    await eventually("the summarizer works", () => held.calls() === 1, { withinMs: 60_000 });
    await raiseEpoch(runId);
    held.release();
    await bench.rests(runId);
    expect((await tasksOf(db, runId)).map(({ state }) => state)).toEqual(["superseded"]);
    expect((await bench.of(runId, "compaction.failed")).map(({ payload }) => payload.reason)).toEqual(["superseded"]);
    expect(await bench.of(runId, "context.compacted")).toEqual([]);
    expect(await runFacts(db, runId)).toMatchObject({ state: "waiting", wait_reason: "input", turn: 14 });
    await db.query("select capstan.compact_run($1)", [runId]);
    await bench.until(runId, "the next compaction", async () => (await bench.of(runId, "context.compacted")).length === 1);
    await bench.rests(runId);
    expect(held.calls()).toBe(2);
    expect(await bench.breaches(runId)).toEqual([]);
    await Promise.all([turns.stop(), summaries.stop()]);
  });

  it("a view that was another one before anybody began costs no call", { timeout }, async () => {
    const pool = "epoch-before";
    const turns = await bench.worker(pool);
    const runId = await bench.parkedAndAsked(pool);
    await bench.untilTask(runId, "the task waits", ({ state }) => state === "requested");
    await bench.until(runId, "the run is let go", ({ worker_id: holder, inbox_pending: pending }) => holder === null && pending === 0);
    await raiseEpoch(runId);
    const held = heldSummarizer();
    const summaries = await bench.summarizer(held.summarizer);
    await bench.rests(runId);
    expect(held.calls()).toBe(0);
    expect((await tasksOf(db, runId)).map(({ state }) => state)).toEqual(["superseded"]);
    expect(await bench.breaches(runId)).toEqual([]);
    await Promise.all([turns.stop(), summaries.stop()]);
  });

  it("a run that is cancelled takes nothing more; an answer that comes later changes nothing", { timeout }, async () => {
    const pool = "cancelled";
    const held = heldSummarizer();
    const turns = await bench.worker(pool);
    const summaries = await bench.summarizer(held.summarizer);
    const runId = await bench.parkedAndAsked(pool);
    await eventually("the summarizer works", () => held.calls() === 1, { withinMs: 60_000 });
    await db.query("select capstan.cancel_run($1)", [runId]);
    const journal = await readJournal(db, runId);
    held.release();
    await eventually("the task is settled", async () => (await openTasks(db, [runId])) === 0, { withinMs: 60_000 });
    expect((await tasksOf(db, runId)).map(({ state }) => state)).toEqual(["superseded"]);
    expect(await readJournal(db, runId)).toEqual(journal);
    expect(held.calls()).toBe(1);
    expect(await bench.breaches(runId)).toEqual([]);
    await Promise.all([turns.stop(), summaries.stop()]);
  });

  it("a summary that the store has lost parts of is told, not applied, and costs one call (C58)", { timeout }, async () => {
    const pool = "lost-marker";
    const asking = await bench.worker(pool);
    const runId = await bench.parkedAndAsked(pool);
    await bench.untilTask(runId, "the task waits", ({ state }) => state === "requested");
    // Nobody applies while the row is changed.
    await asking.stop();
    const held = heldSummarizer();
    held.release();
    const summaries = await bench.summarizer(held.summarizer);
    await bench.untilTask(runId, "the summary is there", ({ state }) => state === "ready");
    await db.query("update capstan.compaction_tasks set result = result - 'head' where run_id = $1", [runId]);
    const turns = await bench.worker(pool);
    await bench.rests(runId);
    expect((await bench.of(runId, "compaction.failed")).map(({ payload }) => payload.reason)).toEqual(["marker_lost"]);
    expect(await bench.of(runId, "context.compacted")).toEqual([]);
    expect(held.calls()).toBe(1);
    expect((await tasksOf(db, runId)).map(({ state }) => state)).toEqual(["failed"]);
    expect(await bench.breaches(runId)).toEqual([]);
    // The run takes its next input as if nothing had been.
    await db.query("select capstan.send(run_id => $1, payload => '\"go on\"')", [runId]);
    await bench.until(runId, "the next answer", ({ state, turn }) => state === "waiting" && turn === 21);
    expect(await bench.breaches(runId)).toEqual([]);
    await Promise.all([turns.stop(), summaries.stop()]);
  });

  it("a job that comes by twice, or long after, finds a compacted run as it waits and asks nobody", { timeout }, async () => {
    const pool = "stray";
    const turns = await bench.worker(pool);
    const summaries = await bench.summarizer();
    const runId = await bench.enqueue("whole", { pool });
    await bench.rests(runId);
    await db.query("select capstan.send(run_id => $1, payload => '\"go on\"')", [runId]);
    await bench.until(runId, "the second answer", ({ state, turn }) => state === "waiting" && turn === 14);
    await db.query("select capstan.compact_run($1)", [runId]);
    await bench.until(runId, "the marker", async () => (await bench.of(runId, "context.compacted")).length === 1);
    await bench.rests(runId);
    const journal = await readJournal(db, runId);
    await db.query("select graphile_worker.add_job($1, json_build_object('runId', $2::text))", [`capstan/${pool}/whole`, runId]);
    await eventually("the job is done", async () => (await db.query("select from graphile_worker.jobs where task_identifier = $1", [`capstan/${pool}/whole`])).rowCount === 0);
    expect(await readJournal(db, runId)).toEqual(journal);
    expect(await runFacts(db, runId)).toMatchObject({ state: "waiting", wait_reason: "input", worker_id: null });
    await Promise.all([turns.stop(), summaries.stop()]);
  });
});
