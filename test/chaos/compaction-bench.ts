/** What tests of a single fault around a compaction work with: agents, runs, workers here and in processes, and a summarizer that the test holds. */
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { afterAll } from "vitest";
import { DefinitionPins, enqueueRun, type EnqueueOptions } from "../../src/client/enqueue.ts";
import type { SummarizerEffect } from "../../src/compaction/effect.ts";
import type { CapstanEvent, EventOf, EventType } from "../../src/domain/event.ts";
import { definitionSha } from "../../src/store/definitions.ts";
import type { RunningWorker } from "../../src/worker.ts";
import { killChildrenAfterAll, quickEnv, startChild, type ChildOptions, type ChildWorker } from "./child-worker.ts";
import { compactionBreaches, openTasks, tasksOf, type TaskRow } from "./compaction-checks.ts";
import { compactionModels, compactionScenarios, compactionSummarizers, SUMMARY, summariesOf, type SummaryCall } from "./compaction-scenarios.ts";
import { effectNoter, readEffects, type EffectLine } from "./effects.ts";
import { breaches } from "./invariants.ts";
import { describeRun, eventually, readJournal, runFacts, type RunFacts } from "./journal.ts";
import { catalogueOf, chaosModel } from "./model.ts";
import { quickSettings, same, startTestWorker, type TestWorkerOptions } from "./start-worker.ts";

export interface CompactionBench {
  readonly db: pg.Pool;
  enqueue(scenario: string, options?: EnqueueOptions): Promise<string>;
  /** Enqueues an interactive run, takes it to its second answer, and asks for a compaction. */
  parkedAndAsked(pool: string, scenario?: string): Promise<string>;
  worker(pool: string, more?: Partial<TestWorkerOptions>, summary?: SummaryCall): Promise<RunningWorker>;
  summarizer(summarizer?: SummarizerEffect): Promise<RunningWorker>;
  child(pool: string, options?: Partial<ChildOptions>): Promise<ChildWorker>;
  until(runId: string, what: string, fits: (facts: RunFacts) => boolean | Promise<boolean>): Promise<RunFacts>;
  untilTask(runId: string, what: string, fits: (task: TaskRow) => boolean): Promise<TaskRow>;
  /** Until the run has ended or waits for input, and no task of it is open. */
  rests(runId: string): Promise<RunFacts>;
  events(runId: string): Promise<CapstanEvent[]>;
  of<T extends EventType>(runId: string, type: T): Promise<EventOf<T>[]>;
  /** Summaries that were called for. */
  summaries(runId: string): EffectLine[];
  /** All invariants, of runs and of compactions. */
  breaches(runId: string): Promise<string[]>;
}

export function compactionBench(url: string): CompactionBench {
  killChildrenAfterAll();
  const effects = join(mkdtempSync(join(tmpdir(), "capstan-compaction-")), "effects.jsonl");
  const note = effectNoter(effects);
  const known = compactionScenarios(note);
  const db = new pg.Pool({ connectionString: url, max: 6 });
  db.on("error", () => {});
  const workers: RunningWorker[] = [];
  afterAll(async () => {
    await Promise.all(workers.map((worker) => worker.stop({ graceMs: 0 })));
    await db.end();
  });
  const bench: CompactionBench = {
    db,
    async enqueue(scenario, options = {}) {
      const found = known[scenario];
      if (found === undefined) throw new Error(`no scenario ${scenario}`);
      return await enqueueRun(db, same, found.agent, "Look all pages up.", options, new DefinitionPins(definitionSha));
    },
    async parkedAndAsked(pool, scenario = "manual") {
      const runId = await bench.enqueue(scenario, { pool });
      await bench.rests(runId);
      await db.query("select capstan.send(run_id => $1, payload => '\"go on\"')", [runId]);
      await bench.until(runId, "the second answer", ({ state, turn }) => state === "waiting" && turn === 14);
      await db.query("select capstan.compact_run($1)", [runId]);
      return runId;
    },
    async worker(pool, more = {}, summary = 100) {
      const worker = await startTestWorker({
        url,
        pool,
        agents: Object.values(known).map(({ agent }) => agent),
        models: catalogueOf(chaosModel({}, note), compactionModels(note, summary)),
        summarizers: compactionSummarizers(note, summary),
        settings: quickSettings,
        ...more,
      });
      workers.push(worker);
      return worker;
    },
    summarizer: (summarizer) => bench.worker("summarize", summarizer === undefined ? {} : { summarizers: { note: summarizer } }),
    child: (pool, options = {}) => startChild({ url, effects, pool, ...options, env: { ...quickEnv, ...options.env } }),
    until(runId, what, fits) {
      return eventually(
        what,
        async () => {
          const facts = await runFacts(db, runId);
          return (await fits(facts)) && facts;
        },
        { withinMs: 90_000, describe: () => describeRun(db, runId) },
      );
    },
    untilTask(runId, what, fits) {
      return eventually(what, async () => (await tasksOf(db, runId)).find(fits), { withinMs: 90_000, describe: () => describeRun(db, runId) });
    },
    rests: (runId) =>
      bench.until(runId, "the run rests", async ({ state, wait_reason: reason, inbox_pending: pending }) => {
        const isQuiet = ["completed", "failed", "cancelled"].includes(state) || (state === "waiting" && reason === "input" && pending === 0);
        return isQuiet && (await openTasks(db, [runId])) === 0;
      }),
    events: async (runId) => (await readJournal(db, runId)).map(({ event }) => event),
    of: async (runId, type) => (await bench.events(runId)).filter((event) => event.type === type) as unknown as EventOf<typeof type>[],
    summaries: (runId) => readEffects(effects).filter(({ run }) => run === summariesOf(runId)),
    breaches: async (runId) => [...(await breaches(db, runId, readEffects(effects))), ...(await compactionBreaches(db, runId))],
  };
  return bench;
}

/** A summarizer that answers when the test lets it. It heeds no signal, like much of users' code. */
export function heldSummarizer(): { readonly summarizer: SummarizerEffect; readonly calls: () => number; release: () => void } {
  let calls = 0;
  let release: () => void = () => {};
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  return {
    async summarizer() {
      calls++;
      await released;
      return { summary: SUMMARY };
    },
    calls: () => calls,
    release: () => release(),
  };
}
