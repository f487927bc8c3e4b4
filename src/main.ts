/** The composition root: the only place, with worker.ts, that knows every room. */
import type pg from "pg";
import type { Agent, AnyAgent } from "./agents/agent.ts";
import { ConfigError } from "./agents/config-error.ts";
import { EnqueueGroups } from "./client/enqueue-group.ts";
import { DefinitionPins, enqueueRun, type EnqueueOptions } from "./client/enqueue.ts";
import { RunHandle } from "./client/handle.ts";
import { ResultPoller } from "./client/result-poller.ts";
import { readConfig, type Config, type WorkerSettings } from "./config.ts";
import type { ModelCatalogue } from "./engine/model-port.ts";
import type { Effect, EffectReport, Log, Tracing, WarnSink } from "./engine/ports.ts";
import { PostgresBlobStore } from "./store/blobs.ts";
import { definitionSha, PostgresDefinitionStore } from "./store/definitions.ts";
import { migrate, type MigrateReport } from "./store/migrate.ts";
import { defaultNames, namedSql, type SchemaNames } from "./store/names.ts";
import { createPool } from "./store/pool.ts";
import { untilConnected } from "./store/until-connected.ts";
import { startWorker, type RunningWorker } from "./worker.ts";
import { createModelCatalogue, type ModelCatalogueOptions } from "./providers/catalogue.ts";
import { noTracing } from "./telemetry/no-tracing.ts";
import { silentLog } from "./telemetry/log.ts";

export interface CapstanOptions {
  readonly connectionString?: string;
  readonly directConnectionString?: string;
  readonly agents?: readonly AnyAgent[];
  readonly models?: ModelCatalogue | ModelCatalogueOptions;
  readonly names?: SchemaNames;
  readonly worker?: Partial<WorkerSettings>;
  readonly observability?: {
    readonly onWarn?: WarnSink;
    readonly log?: Log;
    readonly tracing?: Tracing;
    readonly meter?: (effect: Effect, report: EffectReport) => void;
  };
  /** Secrets for tools, by name and tenant. Default: environment variables CAPSTAN_SECRET_<NAME>. */
  readonly secret?: (name: string, tenant: string) => string | undefined;
  readonly env?: NodeJS.ProcessEnv;
}

export interface Capstan {
  migrate(): Promise<MigrateReport>;
  /** Stores the agents' definitions; promotes an agent's first, and others with `promote`. Gives name to sha. */
  register(options?: { readonly promote?: boolean }): Promise<Map<string, string>>;
  enqueue<Input, Output>(agent: Agent<Input, Output>, input: Input, options?: EnqueueOptions): Promise<RunHandle<Output>>;
  enqueue(agent: string, input: unknown, options?: EnqueueOptions): Promise<RunHandle>;
  run<Output = unknown>(id: string): RunHandle<Output>;
  startWorker(options?: { readonly pool?: string }): Promise<RunningWorker>;
  /** Stops workers that were started here and closes connections. May be called twice. */
  close(): Promise<void>;
  readonly db: pg.Pool;
}

export function createCapstan(options: CapstanOptions = {}): Capstan {
  const config: Config = readConfig(options.env ?? process.env);
  const connectionString = options.connectionString ?? config.databaseUrl;
  if (connectionString === undefined) throw new ConfigError("createCapstan", [{ path: "connectionString", message: "is not set and neither is DATABASE_URL" }]);
  const directConnectionString = options.directConnectionString ?? config.directDatabaseUrl ?? connectionString;
  const names = options.names ?? config.names ?? defaultNames;
  const named = namedSql(names);
  const log = options.observability?.log ?? silentLog;
  const db = createPool({ connectionString, max: config.worker.poolMax, applicationName: "capstan client", log });
  const definitions = new PostgresDefinitionStore(db, named);
  const poller = new ResultPoller(db, named);
  const blobs = new PostgresBlobStore(db, named, { log, signal: new AbortController().signal });
  const agents = new Map<string, AnyAgent>();
  for (const agent of options.agents ?? []) {
    if (agents.has(agent.name)) throw new ConfigError("createCapstan", [{ path: "agents", message: `has two agents named ${agent.name}` }]);
    agents.set(agent.name, agent);
  }
  const models = isCatalogue(options.models)
    ? options.models
    : createModelCatalogue({ loadMedia: ({ sha256 }, tenant) => blobs.get(tenant, sha256), ...options.models, env: options.env ?? process.env });
  const pins = new DefinitionPins(definitionSha);
  const groups = new EnqueueGroups(db, named);
  const workers: RunningWorker[] = [];
  const closed = new AbortController();
  let closing: Promise<void> | undefined;

  const register = async ({ promote = false }: { readonly promote?: boolean } = {}): Promise<Map<string, string>> => {
    const shas = new Map<string, string>();
    for (const [name, { definition }] of agents) shas.set(name, await definitions.register(definition, { promote }));
    return shas;
  };

  return {
    db,
    migrate: () => migrate({ connectionString: directConnectionString, names, log: (line) => log.info({}, line) }),
    register,
    async enqueue(agent: AnyAgent | string, input: unknown, enqueueOptions: EnqueueOptions = {}) {
      const id = await enqueueRun(db, named, agent, input, enqueueOptions, pins, groups);
      return new RunHandle<never>(id, { db, named, poller });
    },
    run: (id) => new RunHandle(id, { db, named, poller }),
    async startWorker({ pool = "turn" } = {}) {
      // As the worker itself: a database that is away for a moment is waited for.
      await untilConnected({ log, signal: closed.signal }, "registering definitions", register);
      const worker = await startWorker({
        connectionString,
        directConnectionString,
        names,
        named,
        definitions,
        agents: new Map([...agents].map(([name, agent]) => [name, agent.code])),
        models,
        settings: { ...config.worker, ...options.worker },
        pool,
        tracing: options.observability?.tracing ?? noTracing,
        log,
        meter: options.observability?.meter ?? (() => {}),
        onWarn: options.observability?.onWarn,
        secret: options.secret ?? ((name) => (options.env ?? process.env)[`CAPSTAN_SECRET_${name.toUpperCase()}`]),
      });
      workers.push(worker);
      return worker;
    },
    close() {
      closed.abort();
      closing ??= Promise.all(workers.map((worker) => worker.stop())).then(() => db.end());
      return closing;
    },
  };
}

function isCatalogue(models: CapstanOptions["models"]): models is ModelCatalogue {
  return models !== undefined && "resolve" in models && "costUsdMicros" in models;
}
