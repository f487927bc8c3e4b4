/** Stores, relays and runs for tests of the queue, without a worker around them. */
import pg from "pg";
import { afterAll } from "vitest";
import { z } from "zod";
import { agent, type Agent } from "../../src/agents/agent.ts";
import { DefinitionPins, enqueueRun, type EnqueueOptions } from "../../src/client/enqueue.ts";
import { newEvent, type NewEvent } from "../../src/domain/event.ts";
import { noUsage } from "../../src/domain/usage.ts";
import type { AppendRequest, Log, RunPatch } from "../../src/engine/ports.ts";
import { definitionSha } from "../../src/store/definitions.ts";
import { PostgresJournalStore } from "../../src/store/journal-store.ts";
import { JournalWriter } from "../../src/store/journal-writer.ts";
import { WorkerStore } from "../../src/store/workers.ts";
import { silentLog } from "../../src/telemetry/log.ts";

/** How a worker's connections are called, to find them in pg_stat_activity. */
export const WORKER_NAME = "queue test worker";

export const same = (text: string): string => text;
export const plain = agent({ name: "plain", model: "test:model", instructions: "x", output: z.string() }) as unknown as Agent;

export interface QueueBench {
  readonly db: pg.Pool;
  enqueue(options?: EnqueueOptions): Promise<string>;
  /** A store that writes as a worker of its own, over connections of its own. */
  worker(options?: { readonly log?: Log; readonly leaseMs?: number; readonly pool?: string }): Promise<{ id: string; store: PostgresJournalStore; pool: pg.Pool }>;
  /** A connection that a test blocks others with; released after the test file. */
  connection(): Promise<pg.PoolClient>;
}

export function queueBench(url: string): QueueBench {
  const db = new pg.Pool({ connectionString: url, max: 10 });
  const pools = [db];
  const stopped = new AbortController();
  const clients: pg.PoolClient[] = [];
  for (const pool of pools) pool.on("error", () => {});
  afterAll(async () => {
    stopped.abort();
    for (const client of clients) client.release(true);
    await Promise.all(pools.map((pool) => pool.end()));
  });
  return {
    db,
    enqueue: (options = {}) => enqueueRun(db, same, plain, "go", options, new DefinitionPins(definitionSha)),
    async worker({ log = silentLog, leaseMs = 60_000, pool: poolName = "turn" } = {}) {
      const pool = new pg.Pool({ connectionString: url, max: 4, application_name: WORKER_NAME });
      pool.on("error", () => {});
      pool.on("connect", (client) => client.on("error", () => {}));
      pools.push(pool);
      const facts = { pool: poolName, host: "test", pid: process.pid, version: "0", leaseMs, slots: 4, agents: ["plain"], tools: {}, eventVersions: {} };
      const id = await new WorkerStore(pool, same).register(facts);
      const outage = { log, signal: stopped.signal };
      const writer = new JournalWriter({ pool, workerId: () => id, named: same, ...outage });
      return { id, pool, store: new PostgresJournalStore(pool, same, writer, outage) };
    },
    async connection() {
      const client = await db.connect();
      client.on("error", () => {});
      clients.push(client);
      return client;
    },
  };
}

export const patch: RunPatch = {
  status: "running",
  waitReason: undefined,
  wakeAt: undefined,
  turn: 1,
  transcriptBytes: 0,
  viewEpoch: 0,
  viewMarker: undefined,
  contextTokens: undefined,
  contextScale: undefined,
  contextWindow: undefined,
  usage: noUsage,
  growthLevel: 0,
  budgetLevel: 0,
  retryCount: 0,
  errorCode: undefined,
  definitionSha: definitionSha(plain.definition),
  lastSpan: undefined,
  resetCrashes: false,
};

/** An input event: the shortest one that changes nothing else. */
export const someEvent = (text: string): NewEvent => newEvent("input.applied", { content: [{ type: "text", text }] }, { turn: 1, attempt: 0, epoch: 0 });

export function claim(runId: string, more: Partial<AppendRequest> = {}): AppendRequest {
  return { runId, expectedSeq: 1, guard: { kind: "claim" }, applied: [], events: [someEvent("claimed")], patch, release: false, wish: undefined, ...more };
}

export function held(runId: string, token: number, expectedSeq: number, more: Partial<AppendRequest> = {}): AppendRequest {
  return claim(runId, { guard: { kind: "held", token }, expectedSeq, events: [someEvent("held")], ...more });
}

/** Waits until a worker's backend (or one whose statement looks like this) waits for a lock. The server keeps only the beginning of long statements. */
export async function untilBlocked(db: pg.Pool, like: string): Promise<number> {
  for (const deadline = performance.now() + 15_000; ;) {
    const { rows } = await db.query<{ pid: number }>(
      "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and (query like $1 or application_name = $1) and pid <> pg_backend_pid()",
      [like],
    );
    if (rows[0] !== undefined) return rows[0].pid;
    if (performance.now() > deadline) throw new Error(`nothing like ${like} waits for a lock`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
