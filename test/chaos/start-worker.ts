/** Starts a worker on a test database from its parts: src/main.ts would bring every model provider, which costs a killed process seconds. */
import type { Agent } from "../../src/agents/agent.ts";
import type { SummarizerEffect } from "../../src/compaction/effect.ts";
import { readConfig, type WorkerSettings } from "../../src/config.ts";
import type { QuotaLimit } from "../../src/domain/quota.ts";
import type { ModelCatalogue } from "../../src/engine/model-port.ts";
import type { Log, WarnSink } from "../../src/engine/ports.ts";
import { PostgresDefinitionStore } from "../../src/store/definitions.ts";
import { defaultNames } from "../../src/store/names.ts";
import { createPool } from "../../src/store/pool.ts";
import { untilConnected } from "../../src/store/until-connected.ts";
import { silentLog } from "../../src/telemetry/log.ts";
import { noTracing } from "../../src/telemetry/no-tracing.ts";
import { startWorker, type RunningWorker } from "../../src/worker.ts";

export interface TestWorkerOptions {
  readonly url: string;
  readonly agents: readonly Agent[];
  readonly models: ModelCatalogue;
  readonly pool?: string;
  readonly settings?: Partial<WorkerSettings>;
  readonly log?: Log;
  readonly onWarn?: WarnSink;
  readonly summarizers?: Readonly<Record<string, SummarizerEffect>>;
  readonly quotas?: readonly QuotaLimit[];
}

export const same = (text: string): string => text;

/**
 * Sweeps several times a second, so that a test need not wait long for a takeover: how long a dead process is waited for is
 * its own lease (quickEnv). A worker in the test's process dies in no test, and one that a busy machine keeps from running
 * for twice its lease would end that process.
 */
export const quickSettings: Partial<WorkerSettings> = { leaseMs: 5_000, heartbeatMs: 300, sweepMs: 300, lostJobMs: 3_000, poolMax: 4 };

export async function startTestWorker({
  url,
  agents,
  models,
  pool = "turn",
  settings = quickSettings,
  log = silentLog,
  onWarn,
  summarizers = {},
  quotas = [],
}: TestWorkerOptions): Promise<RunningWorker> {
  const db = createPool({ connectionString: url, max: 1, applicationName: "capstan definitions", log });
  const definitions = new PostgresDefinitionStore(db, same);
  const outage = { log, signal: new AbortController().signal };
  await untilConnected(outage, "registering definitions", async () => {
    for (const { definition } of agents) await definitions.register(definition);
  });
  const worker = await startWorker({
    connectionString: url,
    directConnectionString: url,
    names: defaultNames,
    named: same,
    definitions,
    agents: new Map(agents.map(({ name, code }) => [name, code])),
    models,
    summarizers: new Map(Object.entries(summarizers)),
    quotas,
    settings: { ...readConfig({}).worker, ...settings },
    pool,
    tracing: noTracing,
    log,
    meter: () => {},
    onWarn,
    secret: () => undefined,
  });
  return {
    get id() {
      return worker.id;
    },
    async stop(options) {
      await worker.stop(options);
      if (!db.ended) await db.end();
    },
  };
}
