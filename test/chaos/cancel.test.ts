/** Cancelling from another process: what is in flight stops within a second, and nothing follows in the journal. */
import { expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { createCapstan } from "../../src/main.ts";
import { startModelServer } from "../../src/testing/model-server/index.ts";
import { createTestDatabase } from "../support/database.ts";
import { ended, faultBench } from "./fault-bench.ts";
import { eventually, readJournal } from "./journal.ts";

const database = await createTestDatabase();
const bench = faultBench(database.url);
const { db } = bench;

const ledger = async (runId: string) =>
  (
    await db.query<{ kind: string; outcome: string; turn: number; attempt: number; estimated: boolean }>(
      "select kind, outcome, turn, attempt, estimated from capstan.usage_ledger where run_id = $1",
      [runId],
    )
  ).rows;

it("closes the model's connection within 1 s, and the ledger tells of the call (dbos-inc/dbos-transact-golang #443)", { timeout: 60_000 }, async () => {
  await using server = await startModelServer({ respond: () => ({ text: "never", hang: 2 }) });
  const asking = agent({ name: "asking", model: "anthropic:test-model", instructions: "wait" });
  const capstan = createCapstan({
    connectionString: database.url,
    agents: [asking],
    env: { ANTHROPIC_API_KEY: "test" },
    models: { baseUrls: { anthropic: server.anthropicBaseUrl } },
  });
  try {
    await capstan.startWorker({ pool: "asking" });
    const handle = await capstan.enqueue(asking, "go", { pool: "asking" });
    const request = await eventually("the server sees the request", () => server.requests[0], {
      describe: async () => JSON.stringify([server.refused, await handle.status(), (await readJournal(db, handle.id)).map(({ event }) => event)]),
    });
    // The commit of the request lies before the call, so the run is held and its journal has two events by now.
    const cancelledAt = performance.now();
    expect(await capstan.run(handle.id).cancel("not needed")).toBe(true);
    expect(await request.closed).toBe("aborted");
    console.log(`the model call was aborted ${(performance.now() - cancelledAt).toFixed(0)} ms after the cancel (promised: 1,000)`);
    expect(request.sawAbort).toBe(true);
    const lost = await eventually("the ledger's row", async () => (await ledger(handle.id))[0]);
    expect(lost).toEqual({ kind: "turn", outcome: "aborted", turn: 1, attempt: 1, estimated: true });
    expect((await readJournal(db, handle.id)).map(({ event }) => event.type)).toEqual(["run.created", "model.requested", "run.cancelled"]);
    expect(await capstan.run(handle.id).cancel()).toBe(false);
  } finally {
    await capstan.close();
  }
});

it.each(["slow-read", "slow-once"])("fires the AbortSignal of a tool of %s within 1 s and appends nothing more (graphile/worker #546)", { timeout: 60_000 }, async (name) => {
  const pool = `cancel-${name}`;
  const runId = await bench.enqueue(name, { pool });
  const child = await bench.child(pool);
  const started = await bench.untilEffect(runId, "c0_0");
  const cancelledAt = Date.now();
  await db.query("select capstan.cancel_run($1, 'no more')", [runId]);
  const aborted = await bench.untilEffect(runId, "c0_0:aborted", 20_000);
  console.log(`the tool was aborted ${aborted.atMs - cancelledAt} ms after the cancel (promised: 1,000)`);
  expect(aborted.pid).toBe(started.pid);
  // Whatever the worker still meant to write would be written before it has room for another run.
  const next = await bench.enqueue("long", { pool });
  await bench.until(next, "the worker does another run", ended);
  expect((await readJournal(db, runId)).at(-1)?.event).toMatchObject({ type: "run.cancelled", payload: { reason: "no more" } });
  expect(await bench.breaches(runId)).toEqual([`${started.kind} c0_0 by ${started.pid} is in no journal`]);
  await child.stop();
});
