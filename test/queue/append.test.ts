/** The journal's guards: every refusal has its name, a neighbour's trouble is its own, and a lost answer is looked up. */
import { expect, it } from "vitest";
import { LeaseLostError, RunFinishedError, RunMissingError, SeqConflictError } from "../../src/domain/append-error.ts";
import { createTestDatabase } from "../support/database.ts";
import { claim, held, patch, queueBench, someEvent, untilBlocked, WORKER_NAME } from "./queue-bench.ts";

const database = await createTestDatabase();
const bench = queueBench(database.url);
const { db } = bench;

const events = async (runId: string) =>
  (await db.query<{ seq: number; type: string; fencing_token: number }>("select seq, type, fencing_token from capstan.events where run_id = $1 order by seq", [runId])).rows;
const row = async (runId: string) =>
  (await db.query("select worker_id, fencing_token, next_seq, state from capstan.runs where id = $1", [runId])).rows[0] as {
    worker_id: string | null;
    fencing_token: number;
    next_seq: number;
    state: string;
  };
const wishes = async (runId: string) => (await db.query("select ready from capstan.wishes where run_id = $1", [runId])).rows;

const sql = {
  cancel: "select capstan.cancel_run($1)",
  send: "select capstan.send(run_id => $1, payload => '\"hi\"')",
};

it("claims a free run once, and raises the fencing token", async () => {
  const [one, two] = [await bench.worker(), await bench.worker()];
  const runId = await bench.enqueue();
  const outcomes = await Promise.all([one.store.append(claim(runId)), two.store.append(claim(runId)).catch((error: unknown) => error)]);
  const won = outcomes.filter((outcome) => (outcome as { kind?: string }).kind === "appended");
  expect(won).toHaveLength(1);
  expect(won[0]).toMatchObject({ token: 1 });
  const lost = outcomes.find((outcome) => !won.includes(outcome as never));
  expect(lost).toEqual({ kind: "unclaimable", paused: false });
  expect((await events(runId)).map(({ seq }) => seq)).toEqual([1, 2]);
});

it("tells two claims of doubled jobs in one worker apart, also when they carry no event", async () => {
  const { store, id } = await bench.worker();
  const runId = await bench.enqueue();
  const empty = claim(runId, { events: [] });
  const outcomes = await Promise.all([store.append(empty), store.append(empty), store.append(empty)]);
  expect(outcomes.map(({ kind }) => kind).toSorted()).toEqual(["appended", "unclaimable", "unclaimable"]);
  expect(await row(runId)).toMatchObject({ worker_id: id, fencing_token: 1, next_seq: 2 });
});

it("refuses by name: lease lost, seq conflict, run finished, run missing", async () => {
  const { store } = await bench.worker();
  const other = await bench.worker();
  const runId = await bench.enqueue();
  await store.append(claim(runId));
  await expect(store.append(held(runId, 1, 1))).rejects.toThrow(SeqConflictError);
  await expect(store.append(held(runId, 1, 1))).rejects.toMatchObject({ code: "SEQ_CONFLICT", details: { expected_seq: 1, last_seq: 2 } });
  await expect(store.append(held(runId, 0, 2))).rejects.toThrow(LeaseLostError);
  // The right token in the wrong hands.
  await expect(other.store.append(held(runId, 1, 2))).rejects.toMatchObject({ code: "LEASE_LOST", details: { held_token: 1, current_token: 1 } });
  await db.query(sql.cancel, [runId]);
  await expect(store.append(held(runId, 1, 2))).rejects.toThrow(RunFinishedError);
  await expect(store.append(claim(runId, { expectedSeq: 3 }))).rejects.toMatchObject({ code: "RUN_FINISHED", details: { state: "cancelled" } });
  await expect(store.append(claim("00000000-0000-7000-8000-000000000000"))).rejects.toThrow(RunMissingError);
  expect((await events(runId)).map(({ type }) => type)).toEqual(["run.created", "input.applied", "run.cancelled"]);
});

it("refuses an end while input waits, and a claim of a run that is paused", async () => {
  const { store } = await bench.worker();
  const runId = await bench.enqueue();
  await store.append(claim(runId));
  await db.query(sql.send, [runId]);
  expect(await store.append(held(runId, 1, 2, { inboxAtMost: 0 }))).toEqual({ kind: "inbox" });
  // More items than wait: somebody else has applied them.
  expect(await store.append(held(runId, 1, 2, { applied: [1, 2].map((n) => ({ id: `00000000-0000-7000-8000-00000000000${n}`, seq: 3 })) }))).toEqual({ kind: "inbox" });
  const paused = await bench.enqueue();
  await db.query("update capstan.runs set paused = true where id = $1", [paused]);
  expect(await store.append(claim(paused))).toEqual({ kind: "unclaimable", paused: true });
});

it("does not let a worker that was buried claim anything, and says so", async () => {
  const { store, id } = await bench.worker();
  const runId = await bench.enqueue();
  await db.query("update capstan.workers set ended_at = now(), end_reason = 'lost' where id = $1", [id]);
  await expect(store.append(claim(runId))).rejects.toThrow(LeaseLostError);
  expect(await row(runId)).toMatchObject({ worker_id: null, fencing_token: 0 });
});

it("a run whose row somebody else holds does not keep its neighbours waiting, and is written in the end", async () => {
  const { store } = await bench.worker();
  const runs = await Promise.all(Array.from({ length: 5 }, () => bench.enqueue()));
  const blocked = runs[2] as string;
  const blocker = await bench.connection();
  await blocker.query("begin");
  await blocker.query("select from capstan.runs where id = $1 for update", [blocked]);
  const appends = runs.map((runId) => store.append(claim(runId)));
  const neighbours = await Promise.all(appends.filter((_, i) => i !== 2));
  expect(neighbours.map(({ kind }) => kind)).toEqual(["appended", "appended", "appended", "appended"]);
  // For longer than any time-out of one statement.
  await new Promise((resolve) => setTimeout(resolve, 1_500));
  expect(await events(blocked)).toHaveLength(1);
  await blocker.query("rollback");
  expect(await appends[2]).toMatchObject({ kind: "appended", token: 1 });
});

it("a row that breaks a constraint fails alone", async () => {
  const { store } = await bench.worker();
  const runs = await Promise.all(Array.from({ length: 4 }, () => bench.enqueue()));
  const appends = runs.map((runId, i) => store.append(i === 1 ? claim(runId, { patch: { ...patch, status: "waiting" } }) : claim(runId)));
  const outcomes = await Promise.allSettled(appends);
  expect(outcomes.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled", "fulfilled"]);
  expect((outcomes[1] as PromiseRejectedResult).reason).toMatchObject({ code: "23514", constraint: "runs_waiting_has_reason" });
  expect(await events(runs[1] as string)).toHaveLength(1);
  expect(await row(runs[1] as string)).toMatchObject({ worker_id: null, next_seq: 2 });
});

it("a step that was recorded is not recorded again", async () => {
  const { store } = await bench.worker();
  const runId = await bench.enqueue();
  const step = { ...someEvent("step"), stepKey: "m1" };
  await store.append(claim(runId, { events: [step] }));
  await expect(store.append(held(runId, 1, 2, { events: [step] }))).rejects.toMatchObject({ code: "23505" });
  expect(await events(runId)).toHaveLength(2);
});

it("an append whose answer was lost is found by its id and not written twice", async () => {
  const { store } = await bench.worker();
  const runId = await bench.enqueue();
  await store.append(claim(runId));
  // The commit waits for a lock that only its last part needs, and its connection dies while it waits.
  const blocker = await bench.connection();
  await blocker.query("begin");
  await blocker.query("select from capstan.runs where id = $1 for update", [runId]);
  const append = store.append(held(runId, 1, 2));
  const pid = await untilBlocked(db, WORKER_NAME);
  await db.query("select pg_terminate_backend($1)", [pid]);
  await blocker.query("rollback");
  expect(await append).toMatchObject({ kind: "appended", token: 1 });
  expect((await events(runId)).map(({ seq }) => seq)).toEqual([1, 2, 3]);
});

it.each([
  ["with events", [someEvent("claimed")]],
  ["without events", []],
])("a claim %s that arrived though its connection died leaves no run that nobody works on", async (_, claimed) => {
  const worker = await bench.worker();
  const runId = await bench.enqueue();
  await db.query("delete from capstan.wishes where run_id = $1", [runId]);
  // The answer is thrown away after the commit: what a connection that dies on the way back does.
  const query = worker.pool.query.bind(worker.pool) as (...args: unknown[]) => Promise<unknown>;
  let dropped = 0;
  worker.pool.query = (async (...args: unknown[]) => {
    const result = await query(...args);
    if (String((args[0] as { name?: string }).name).startsWith("capstan-append") && dropped++ === 0) throw new Error("Connection terminated unexpectedly");
    return result;
  }) as never;
  const outcome = await worker.store.append(claim(runId, { events: claimed }));
  expect(dropped).toBeGreaterThan(1);
  expect(await events(runId)).toHaveLength(1 + claimed.length);
  if (outcome.kind === "appended") expect(await row(runId)).toMatchObject({ worker_id: worker.id, fencing_token: outcome.token });
  else {
    expect(await row(runId)).toMatchObject({ worker_id: null });
    expect(await wishes(runId)).toEqual([{ ready: true }]);
  }
});

it("a run is given back though the database is away at that moment", async () => {
  const worker = await bench.worker();
  const runId = await bench.enqueue();
  await worker.store.append(claim(runId));
  await db.query("delete from capstan.wishes where run_id = $1", [runId]);
  const blocker = await bench.connection();
  await blocker.query("begin");
  await blocker.query("select from capstan.runs where id = $1 for update", [runId]);
  const given = worker.store.giveBack(runId, 1, "now");
  const pid = await untilBlocked(db, WORKER_NAME);
  await db.query("select pg_terminate_backend($1)", [pid]);
  await blocker.query("rollback");
  await given;
  expect(await row(runId)).toMatchObject({ worker_id: null, fencing_token: 1 });
  expect(await wishes(runId)).toEqual([{ ready: true }]);
});
