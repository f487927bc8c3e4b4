/** A worker whose slots are all in slow calls keeps no job that another could begin. */
import { expect, it, onTestFinished } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import type { Model, ModelOutcome } from "../../src/engine/model-port.ts";
import { pause } from "../../src/engine/model-step.ts";
import { catalogueOf } from "../chaos/model.ts";
import { quickSettings, startTestWorker } from "../chaos/start-worker.ts";
import { until } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { queueBench } from "./queue-bench.ts";

const database = await createTestDatabase();
const { db } = queueBench(database.url);

it("gives jobs that it fetched ahead back to workers with free slots", { timeout: 120_000 }, async () => {
  const begun: string[] = [];
  const model: Model = {
    name: "slow:model",
    structuredOutput: false,
    window: { tokens: undefined, source: "unknown" },
    async call(_call, { signal, runId }): Promise<ModelOutcome> {
      begun.push(runId);
      await pause(600_000, signal);
      return { kind: "aborted" };
    },
  };
  const slow = agent({ name: "slow", model: model.name, instructions: "Take your time." });
  // The search for lost jobs, which would find them in the end, does not come round.
  const settings = { ...quickSettings, lostJobMs: 3_600_000 };
  const start = async (slots: number) => {
    const worker = await startTestWorker({ url: database.url, agents: [slow], models: catalogueOf(model), settings: { ...settings, slots } });
    onTestFinished(() => worker.stop({ graceMs: 0 }));
    return worker;
  };
  const full = await start(2);
  await db.query("select count(capstan.enqueue_run(agent => 'slow', input => to_jsonb(n))) from generate_series(1, 4) n");
  await until("the first is full, and has fetched ahead", async () => {
    const { rows } = await db.query("select from graphile_worker.jobs where locked_at is not null");
    return begun.length === 2 && rows.length > 2;
  });
  const free = await start(5);
  await until("the others have begun", () => Promise.resolve(begun.length === 4));
  const { rows } = await db.query("select worker_id, count(*)::int as n from capstan.runs where worker_id is not null group by 1 order by 2, 1");
  expect(new Map(rows.map(({ worker_id: id, n }: { worker_id: string; n: number }) => [id, n]))).toEqual(
    new Map([
      [full.id, 2],
      [free.id, 2],
    ]),
  );
});
