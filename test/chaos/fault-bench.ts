/** What a file of fault tests works with: a pool of connections to look through, a file of effects, agents and runs. */
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { afterAll } from "vitest";
import type { Agent } from "../../src/agents/agent.ts";
import { DefinitionPins, enqueueRun, type EnqueueOptions } from "../../src/client/enqueue.ts";
import { definitionSha } from "../../src/store/definitions.ts";
import { killChildrenAfterAll, startChild, type ChildOptions, type ChildWorker } from "./child-worker.ts";
import { effectNoter, readEffects, type EffectLine } from "./effects.ts";
import { faultAgents, faultScripts } from "./fault-agents.ts";
import { breaches } from "./invariants.ts";
import { describeRun, eventually, runFacts, type RunFacts } from "./journal.ts";
import { catalogueOf, chaosModel } from "./model.ts";
import { quickSettings, same, startTestWorker, type TestWorkerOptions } from "./start-worker.ts";
import type { RunningWorker } from "../../src/worker.ts";

export interface FaultBench {
  readonly db: pg.Pool;
  readonly effectsFile: string;
  agent(name: string): Agent;
  enqueue(name: string, options?: EnqueueOptions): Promise<string>;
  /** A worker process. Each test has a pool of its own, or it would meet the runs of others. */
  child(pool: string, more?: Partial<ChildOptions>): Promise<ChildWorker>;
  /** A worker in this process; stopped after the file if a test did not. */
  worker(pool: string, more?: Partial<TestWorkerOptions>): Promise<RunningWorker>;
  effects(runId: string): EffectLine[];
  breaches(runId: string): Promise<string[]>;
  /** Waits until the run's row fits. */
  until(runId: string, what: string, fits: (facts: RunFacts) => boolean, withinMs?: number): Promise<RunFacts>;
  untilEffect(runId: string, key: string, withinMs?: number): Promise<EffectLine>;
}

export function faultBench(url: string): FaultBench {
  killChildrenAfterAll();
  const effectsFile = join(mkdtempSync(join(tmpdir(), "capstan-faults-")), "effects.jsonl");
  const note = effectNoter(effectsFile);
  const db = new pg.Pool({ connectionString: url, max: 4 });
  db.on("error", () => {});
  const agents = new Map(faultAgents(note).map((known) => [known.name, known]));
  const workers: RunningWorker[] = [];
  afterAll(async () => {
    await Promise.all(workers.map((worker) => worker.stop({ graceMs: 0 })));
    await db.end();
  });
  const effects = (runId: string): EffectLine[] => readEffects(effectsFile).filter(({ run }) => run === runId);
  const agentNamed = (name: string): Agent => {
    const found = agents.get(name);
    if (found === undefined) throw new Error(`no agent ${name}`);
    return found;
  };
  return {
    db,
    effectsFile,
    agent: agentNamed,
    enqueue: (name, options = {}) => enqueueRun(db, same, agentNamed(name), "begin", options, new DefinitionPins(definitionSha)),
    child: (pool, more = {}) => startChild({ url, effects: effectsFile, pool, ...more }),
    async worker(pool, more = {}) {
      const worker = await startTestWorker({ url, pool, agents: [...agents.values()], models: catalogueOf(chaosModel(faultScripts, note)), settings: quickSettings, ...more });
      workers.push(worker);
      return worker;
    },
    effects,
    breaches: (runId) => breaches(db, runId, readEffects(effectsFile)),
    until(runId, what, fits, withinMs = 60_000) {
      return eventually(
        what,
        async () => {
          const facts = await runFacts(db, runId);
          return fits(facts) && facts;
        },
        { withinMs, describe: () => describeRun(db, runId) },
      );
    },
    untilEffect(runId, key, withinMs = 60_000) {
      return eventually(`effect ${key}`, () => effects(runId).find((line) => line.key === key), { withinMs, describe: () => describeRun(db, runId) });
    },
  };
}

export const ended = ({ state }: RunFacts): boolean => ["completed", "failed", "cancelled"].includes(state);
