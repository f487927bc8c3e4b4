/** What tests of a run's life (waits, children, stops, pauses) work with: agents, runs, worker processes, and what must hold of every run afterwards. */
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { afterAll, expect } from "vitest";
import type { Agent } from "../../src/agents/agent.ts";
import { DefinitionPins, enqueueRun, type EnqueueOptions } from "../../src/client/enqueue.ts";
import type { CapstanEvent, EventOf, EventType } from "../../src/domain/event.ts";
import { definitionSha } from "../../src/store/definitions.ts";
import type { RunningWorker } from "../../src/worker.ts";
import { killChildrenAfterAll, quickEnv, startChild, type ChildOptions, type ChildWorker } from "./child-worker.ts";
import { effectNoter, readEffects, type EffectLine } from "./effects.ts";
import { breaches } from "./invariants.ts";
import { describeRun, eventually, readJournal, runFacts, type RunFacts } from "./journal.ts";
import { lifeAgents, lifeScripts } from "./life-agents.ts";
import { catalogueOf, chaosModel } from "./model.ts";
import { quickSettings, same, startTestWorker, type TestWorkerOptions } from "./start-worker.ts";

export const isFull = process.env["CAPSTAN_CHAOS"] === "full";

export interface LifeBench {
  readonly db: pg.Pool;
  enqueue(agent: string, options?: EnqueueOptions): Promise<string>;
  /** A worker process. Each test has a pool of its own, or it would meet the runs of others. */
  child(pool: string, more?: Partial<ChildOptions>): Promise<ChildWorker>;
  /** A worker in this process; stopped after the file if a test did not. */
  worker(pool: string, more?: Partial<TestWorkerOptions>): Promise<RunningWorker>;
  agents(names: readonly string[]): Agent[];
  effects(runId: string): EffectLine[];
  events(runId: string): Promise<CapstanEvent[]>;
  of<T extends EventType>(runId: string, type: T): Promise<EventOf<T>[]>;
  /** Waits until the run's row fits. */
  until(runId: string, what: string, fits: (facts: RunFacts) => boolean): Promise<RunFacts>;
  waits(runId: string): Promise<WaitRow[]>;
  /** Throws unless all invariants hold for each of the runs. A cancel cuts tools off: `cut` allows for executions that no journal tells of. */
  intact(runIds: readonly string[], options?: { readonly cut?: boolean }): Promise<void>;
  tree(rootId: string): Promise<TreeRow[]>;
}

export interface WaitRow {
  readonly id: string;
  readonly kind: string;
  readonly answered_at: Date | null;
  readonly settled_at: Date | null;
}

export interface TreeRow {
  readonly id: string;
  readonly agent: string;
  readonly state: string;
  readonly depth: number;
  readonly child_index: number | null;
}

/** Whoever is to live: a lease as short as a victim's would run out on a busy machine, and the heartbeat would end this very process. */
const PATIENT_LEASE_MS = 5_000;
const patientSettings = { ...quickSettings, leaseMs: PATIENT_LEASE_MS };
const patientEnv = { CAPSTAN_LEASE_MS: String(PATIENT_LEASE_MS) };

export const ended = ({ state }: RunFacts): boolean => ["completed", "failed", "cancelled"].includes(state);
export const waitsFor =
  (reason: string) =>
  ({ state, wait_reason: why, inbox_pending: pending }: RunFacts): boolean =>
    state === "waiting" && why === reason && (reason !== "input" || pending === 0);

export function lifeBench(url: string): LifeBench {
  killChildrenAfterAll();
  const effectsFile = join(mkdtempSync(join(tmpdir(), "capstan-life-")), "effects.jsonl");
  const note = effectNoter(effectsFile);
  const db = new pg.Pool({ connectionString: url, max: 12 });
  db.on("error", () => {});
  db.on("connect", (client) => client.on("error", () => {}));
  const agents = lifeAgents(note);
  const workers: RunningWorker[] = [];
  afterAll(async () => {
    await Promise.all(workers.map((worker) => worker.stop({ graceMs: 0 })));
    await db.end();
  });
  const pins = new DefinitionPins(definitionSha);
  const bench: LifeBench = {
    db,
    async enqueue(name, options = {}) {
      const found = agents.find((known) => known.name === name);
      if (found === undefined) throw new Error(`no agent ${name}`);
      return await enqueueRun(db, same, found, "begin", options, pins);
    },
    child: (pool, more = {}) =>
      startChild({ url, effects: effectsFile, program: "life-worker.ts", pool, ...more, env: { ...quickEnv, ...(more.failpoint === undefined ? patientEnv : {}), ...more.env } }),
    async worker(pool, more = {}) {
      const worker = await startTestWorker({ url, pool, agents, models: catalogueOf(chaosModel(lifeScripts, note)), settings: patientSettings, ...more });
      workers.push(worker);
      return worker;
    },
    agents: (names) => agents.filter(({ name }) => names.includes(name)),
    effects: (runId) => readEffects(effectsFile).filter(({ run }) => run === runId),
    events: async (runId) => (await readJournal(db, runId)).map(({ event }) => event),
    of: async (runId, type) => (await bench.events(runId)).filter((event) => event.type === type) as unknown as EventOf<typeof type>[],
    until: (runId, what, fits) =>
      eventually(
        what,
        async () => {
          const facts = await runFacts(db, runId);
          return facts !== undefined && fits(facts) && facts;
        },
        { withinMs: 90_000, describe: () => describeRun(db, runId) },
      ),
    waits: async (runId) => (await db.query<WaitRow>("select id, kind, answered_at, settled_at from capstan.waits where run_id = $1 order by requested_at", [runId])).rows,
    async intact(runIds, { cut = false } = {}) {
      const told = readEffects(effectsFile);
      const problems: string[] = [];
      for (const runId of runIds) for (const problem of await breaches(db, runId, told)) if (!cut || !problem.endsWith("is in no journal")) problems.push(`${runId}: ${problem}`);
      expect(problems.join("\n")).toBe("");
    },
    tree: async (rootId) =>
      (
        await db.query<TreeRow>("select id, agent, state, depth, child_index from capstan.runs where id = $1 or root_run_id = $1 order by depth, parent_run_id, child_index", [
          rootId,
        ])
      ).rows,
  };
  return bench;
}

/** What everybody did and got: deadlocks that Postgres has found in this database so far. */
export async function deadlocks(db: pg.Pool): Promise<number> {
  // Backends report now and then, and at the latest when they end.
  const { rows } = await db.query<{ deadlocks: number }>("select deadlocks::int from pg_stat_database where datname = current_database()");
  return rows[0]?.deadlocks ?? 0;
}
