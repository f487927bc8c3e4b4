/** The growth warning across deaths (G6): whoever takes a run over above the threshold speaks; an ordinary hand-over is silent. */
import { expect, it } from "vitest";
import { createTestDatabase } from "../support/database.ts";
import type { ChildWorker } from "./child-worker.ts";
import { ended, faultBench } from "./fault-bench.ts";
import { eventually, readJournal } from "./journal.ts";

const database = await createTestDatabase();
const bench = faultBench(database.url);

const said = (runId: string, ...workers: readonly ChildWorker[]): string[] => workers.flatMap(({ warnings }) => warnings.filter((text) => text.includes(runId)));
const turnOf = (warning: string | undefined): number => Number(/at turn (\d+)/.exec(warning ?? "")?.[1]);

it("killed after the crossing commit and before the warning: the worker that takes over warns, once", { timeout: 90_000 }, async () => {
  const pool = "crossed";
  const runId = await bench.enqueue("growing", { pool });
  const victim = await bench.child(pool, { failpoint: "growth.before_warning:1" });
  expect(await victim.ended).toBe("SIGKILL");
  const heir = await bench.child(pool);
  await bench.until(runId, "the run ends", ended);
  await heir.stop();
  expect(said(runId, victim)).toEqual([]);
  expect(said(runId, heir)).toHaveLength(1);
  expect(await bench.breaches(runId)).toEqual([]);
});

it("killed before the crossing: one warning in total, by the worker that crosses", { timeout: 90_000 }, async () => {
  const pool = "before";
  const runId = await bench.enqueue("growing", { pool });
  const victim = await bench.child(pool, { failpoint: "response.committed:2" });
  expect(await victim.ended).toBe("SIGKILL");
  const heir = await bench.child(pool);
  await bench.until(runId, "the run ends", ended);
  await heir.stop();
  expect(said(runId, victim)).toEqual([]);
  expect(said(runId, heir)).toHaveLength(1);
  expect(turnOf(said(runId, heir)[0])).toBeGreaterThan(2);
});

it("an ordinary hand-over between turns is silent: one warning in total from two workers that take turns", { timeout: 90_000 }, async () => {
  const pool = "turns";
  const runs = await Promise.all(Array.from({ length: 6 }, () => bench.enqueue("growing", { pool })));
  // Leases that do not run out on a busy machine: a takeover would be another matter.
  const env = { CAPSTAN_POOL_MAX: "4" };
  const workers = await Promise.all([bench.child(pool, { env }), bench.child(pool, { env })]);
  for (const runId of runs) await bench.until(runId, "the run ends", ended);
  await Promise.all(workers.map((worker) => worker.stop()));
  for (const runId of runs) expect(said(runId, ...workers)).toHaveLength(1);
  const shared = await eventually("a run that both had a hand in", () => runs.find((runId) => new Set(bench.effects(runId).map(({ pid }) => pid)).size === 2), { withinMs: 0 });
  // Tokens rose by claims alone.
  expect((await readJournal(bench.db, shared)).filter(({ event }) => event.type === "model.requested" && event.payload.again !== undefined)).toEqual([]);
});
