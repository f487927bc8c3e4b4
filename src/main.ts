/** The composition root: the only place, with worker.ts, that knows every room. */
import type pg from "pg";
import type { Agent, AnyAgent } from "./agents/agent.ts";
import { ConfigError } from "./agents/config-error.ts";
import { createAgents, type Agents } from "./client/agents.ts";
import { DeltaListener } from "./client/delta-listener.ts";
import { RunsClient } from "./client/bulk.ts";
import { Conversation, ConversationsClient } from "./client/conversations.ts";
import { EnqueueGroups } from "./client/enqueue-group.ts";
import { DefinitionPins, enqueueRun, type EnqueueOptions } from "./client/enqueue.ts";
import { RunHandle } from "./client/handle.ts";
import { ResultPoller } from "./client/result-poller.ts";
import { PauseClient } from "./client/pauses.ts";
import { ErasureClient } from "./client/erasure.ts";
import { QuotasClient } from "./client/quotas.ts";
import { RetentionClient } from "./client/retention.ts";
import { ScheduleClient } from "./client/schedules.ts";
import { UsageClient } from "./client/usage.ts";
import { AuditClient } from "./client/audit.ts";
import { uploadBlob, type PutBlobOptions } from "./client/put-blob.ts";
import type { FilePart } from "./domain/transcript/message.ts";
import { WaitClient } from "./client/waits.ts";
import { WebhooksClient } from "./client/webhooks.ts";
import type { Guard } from "./capabilities/guard.ts";
import type { SummarizerEffect } from "./compaction/effect.ts";
import { OutgoingGuard } from "./capabilities/outgoing.ts";
import { redactedLog } from "./capabilities/redact-telemetry.ts";
import { readConfig, type Config, type WorkerSettings } from "./config.ts";
import { compactsItself } from "./domain/definition.ts";
import { redactIssues, type RedactOptions } from "./domain/redact/options.ts";
import { Redactor } from "./domain/redact/redactor.ts";
import { parseLimits, type QuotaLimit, type QuotaLimitSpec } from "./domain/quota.ts";
import type { ModelCatalogue } from "./engine/model-port.ts";
import type { CompactionReport, Effect, EffectReport, Log, Tracing, WarnSink } from "./engine/ports.ts";
import { PostgresBlobStore } from "./store/blobs.ts";
import { definitionSha, PostgresDefinitionStore } from "./store/definitions.ts";
import { putRedactionRules } from "./store/redaction-rules.ts";
import { migrate, type MigrateReport } from "./store/migrate.ts";
import { defaultNames, namedSql, type SchemaNames } from "./store/names.ts";
import { createPool } from "./store/pool.ts";
import { untilConnected } from "./store/until-connected.ts";
import { SUMMARIZE_POOL } from "./queue/task-names.ts";
import { startWorker, type RunningWorker } from "./worker.ts";
import { createModelCatalogue, type ModelCatalogueOptions } from "./providers/catalogue.ts";
import { parseServers, type McpServerSpec } from "./mcp/client/spec.ts";
import { McpRuntime } from "./mcp-runtime.ts";
import { noTracing } from "./telemetry/no-tracing.ts";
import { problemLog } from "./telemetry/log.ts";
import { exportRun } from "./transfer/export.ts";
import { importRun, type ImportOptions, type ImportReport } from "./transfer/import.ts";
import { warnOfModels, warnOfPolicies, warnOfUnpromoted } from "./telemetry/start-warnings.ts";

export interface CapstanOptions {
  readonly connectionString?: string;
  readonly directConnectionString?: string;
  readonly agents?: readonly AnyAgent[];
  readonly models?: ModelCatalogue | ModelCatalogueOptions;
  readonly names?: SchemaNames;
  readonly worker?: Partial<WorkerSettings>;
  readonly observability?: {
    readonly onWarn?: WarnSink;
    /** Without one, warnings and errors go to standard error, a line each. */
    readonly log?: Log;
    readonly tracing?: Tracing;
    readonly meter?: (effect: Effect, report: EffectReport) => void;
    /** What became of compactions, as the journal says it. */
    readonly countCompaction?: (report: CompactionReport) => void;
  };
  /** Asked before every model call, summary and tool; what it does not allow is not done. */
  readonly guard?: Guard;
  /** Limits of calls that all workers share. Those of the database add to them, and stand in place of those of the same scope, value, kind, unit and window (docs/quotas.md). */
  readonly quotas?: readonly QuotaLimitSpec[];
  /** Summarizers by the name that a policy's `summarizer` gives; see createSummarizerEffect. */
  readonly summarizers?: { readonly [name: string]: SummarizerEffect };
  /** MCP servers by the name that agents give them (`agent({ mcp: ["github"] })`). A worker starts those that its agents name. */
  readonly mcp?: { readonly [server: string]: McpServerSpec };
  /** Keeps secrets out of what is stored, logged, traced and summarized (docs/security.md). Default: CAPSTAN_REDACT, else nothing is looked for. */
  readonly redact?: RedactOptions;
  /** Private addresses that webhooks may have: networks, addresses, host names. Adds to CAPSTAN_OUTGOING_ALLOW. */
  readonly outgoing?: { readonly allow?: readonly string[] };
  /** Secrets for tools, by name and tenant. Default: environment variables CAPSTAN_SECRET_<NAME>. */
  readonly secret?: (name: string, tenant: string) => string | undefined;
  readonly env?: NodeJS.ProcessEnv;
}

export interface Capstan {
  migrate(): Promise<MigrateReport>;
  /** Stores the agents' definitions; promotes an agent's first, and others with `promote`. Gives name to sha. */
  register(options?: { readonly promote?: boolean }): Promise<Map<string, string>>;
  enqueue<Input, Output>(agent: Agent<Input, Output>, input: NoInfer<Input>, options?: EnqueueOptions): Promise<RunHandle<Output>>;
  enqueue(agent: string, input: unknown, options?: EnqueueOptions): Promise<RunHandle>;
  run<Output = unknown>(id: string): RunHandle<Output>;
  /** Many runs at once: retry, cancel, count failures. */
  readonly runs: RunsClient;
  /** Threads of several runs. */
  readonly conversations: ConversationsClient;
  /** A conversation from its id alone; asks nothing of the database. */
  conversation(id: string): Conversation;
  /** Definitions in the database: fork, promote, compare, retire. */
  readonly agents: Agents;
  /** Runs by the clock: every worker starts what is due, each tick once. */
  readonly schedules: ScheduleClient;
  /** Calls that wait for a person or something else outside. */
  readonly waits: WaitClient;
  /** A tenant, or everything, stands still. */
  readonly pauses: PauseClient;
  /** Ended runs go after a while; holds. */
  readonly retention: RetentionClient;
  /** Everything of a tenant or a subject goes. */
  readonly erasure: ErasureClient;
  /** Limits in the database: they stand in place of those of `quotas` that measure the same. */
  readonly quotas: QuotasClient;
  /** What runs have used. */
  readonly usage: UsageClient;
  /** Where completion is told to the outside. */
  readonly webhooks: WebhooksClient;
  /** Media for an input: stays for a day, and as long as a run whose input names it. */
  putBlob(content: Uint8Array, options: PutBlobOptions): Promise<FilePart>;
  /** Who did what. */
  readonly audit: AuditClient;
  /**
   * A worker of pool `turn`, or of another. Beside it in this process a small one of pool `summarize`, if an agent here has
   * a compaction policy or the `context` tool; `summarize` says otherwise. Pool `summarize` starts that one alone.
   * Registers the agents first, as `register` does. Warns of models that cannot be used here, and of definitions that are
   * not the promoted ones.
   */
  startWorker(options?: { readonly pool?: string; readonly summarize?: boolean; readonly promote?: boolean }): Promise<RunningWorker>;
  /**
   * A run as lines of text for another database, as it rests at a boundary; see docs/moving.md. Throws ExportBusyError
   * (RUN_BUSY) in the middle of a turn.
   */
  exportRun(runId: string): AsyncGenerator<string>;
  /** The other side: the run goes on here, under its own id. Throws ImportRefusedError; then nothing was written. */
  importRun(lines: AsyncIterable<string>, options?: ImportOptions): Promise<ImportReport>;
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
  const redactor = redactorOf(options.redact ?? config.redact);
  const given = options.observability?.log ?? problemLog(config.logLevel);
  const log = redactor === undefined ? given : redactedLog(given, redactor);
  const db = createPool({ connectionString, max: config.worker.poolMax, applicationName: "capstan client", log });
  const definitions = new PostgresDefinitionStore(db, named);
  const poller = new ResultPoller(db, named);
  const listener = new DeltaListener({ connection: { connectionString: directConnectionString }, db, named });
  const blobs = new PostgresBlobStore(db, named, { log, signal: new AbortController().signal });
  const agents = new Map<string, AnyAgent>();
  for (const agent of options.agents ?? []) {
    if (agents.has(agent.name)) throw new ConfigError("createCapstan", [{ path: "agents", message: `has two agents named ${agent.name}` }]);
    agents.set(agent.name, agent);
  }
  const models = isCatalogue(options.models)
    ? options.models
    : createModelCatalogue({ loadMedia: ({ sha256 }, tenant) => blobs.get(tenant, sha256), ...options.models, env: options.env ?? process.env });
  const quotas = parseQuotas(options.quotas ?? []);
  const outgoing = guardOf([...config.outgoingAllow, ...(options.outgoing?.allow ?? [])]);
  const tenants = isCatalogue(options.models) ? [] : Object.keys(options.models?.keysByTenant ?? {});
  const mcp = new McpRuntime({ servers: parseServers(options.mcp ?? {}), agents, definitions, db, named, log, outgoing });
  const pins = new DefinitionPins(definitionSha);
  const groups = new EnqueueGroups(db, named);
  const workers: RunningWorker[] = [];
  const closed = new AbortController();
  let closing: Promise<void> | undefined;
  let areModelsChecked = false;

  const register = async ({ promote = false }: { readonly promote?: boolean } = {}): Promise<Map<string, string>> => {
    const shas = new Map<string, string>();
    for (const [name, agent] of agents) {
      const { isComplete, definition } = mcp.complete(agent);
      if (isComplete !== false) shas.set(name, await definitions.register(definition, { promote }));
    }
    return shas;
  };

  const startHere = async ({
    pool = "turn",
    summarize = pool !== SUMMARIZE_POOL && ([...agents.values()].some(({ definition }) => compactsItself(definition)) || Object.keys(options.summarizers ?? {}).length > 0),
    promote = false,
  }: NonNullable<Parameters<Capstan["startWorker"]>[0]>): Promise<RunningWorker> => {
    // Said once, however many workers this process has.
    if (!areModelsChecked) warnOfModels({ definitions: [...agents.values()].map(({ definition }) => definition), models, tenants, log: options.observability?.log });
    if (!areModelsChecked)
      warnOfPolicies(
        [...agents.values()].map(({ definition }) => definition),
        options.observability?.log,
      );
    areModelsChecked = true;
    // As the worker itself: a database that is away for a moment is waited for.
    await untilConnected({ log, signal: closed.signal }, "registering definitions", async () => {
      if (redactor !== undefined) await putRedactionRules(db, named, redactor.sqlRules());
      const shas = await register({ promote });
      warnOfUnpromoted(shas, await definitions.list(), log);
    });
    const settings = { ...config.worker, ...options.worker };
    const common = {
      connectionString,
      directConnectionString,
      names,
      named,
      definitions,
      agents: new Map([...agents].map(([name, agent]) => [name, mcp.codeOf(agent)])),
      models,
      summarizers: new Map(Object.entries(options.summarizers ?? {})),
      tracing: options.observability?.tracing ?? noTracing,
      log,
      meter: options.observability?.meter ?? (() => {}),
      onWarn: options.observability?.onWarn,
      countCompaction: options.observability?.countCompaction,
      guard: options.guard,
      quotas,
      redactor,
      outgoing,
      secret: options.secret ?? ((name) => (options.env ?? process.env)[`CAPSTAN_SECRET_${name.toUpperCase()}`]),
    };
    const worker = await startWorker({ ...common, pool, settings });
    workers.push(worker);
    if (!summarize) return worker;
    const beside = await startWorker({ ...common, pool: SUMMARIZE_POOL, settings: { ...settings, slots: config.summarizeSlots, poolMax: Math.min(4, settings.poolMax) } });
    workers.push(beside);
    return {
      get id() {
        return worker.id;
      },
      stop: async (stopOptions) => {
        await Promise.all([worker.stop(stopOptions), beside.stop(stopOptions)]);
      },
    };
  };

  return {
    db,
    migrate: () => migrate({ connectionString: directConnectionString, names, log: (line) => log.info({}, line) }),
    async register(registerOptions) {
      const release = await mcp.use();
      try {
        return await register(registerOptions);
      } finally {
        await release();
      }
    },
    async enqueue(agent: AnyAgent | string, input: unknown, enqueueOptions: EnqueueOptions = {}) {
      const id = await enqueueRun(db, named, typeof agent === "string" ? agent : mcp.complete(agent), input, enqueueOptions, pins, groups, redactor);
      return new RunHandle<never>(id, { db, named, poller, listener, redactor });
    },
    run: (id) => new RunHandle(id, { db, named, poller, listener, redactor }),
    runs: new RunsClient({ db, named, poller, listener, redactor }),
    conversations: new ConversationsClient({ db, named, poller, listener, redactor }),
    conversation: (id) => new Conversation(id, { db, named, poller, listener, redactor }),
    agents: createAgents(db, named),
    schedules: new ScheduleClient(db, named),
    waits: new WaitClient(db, named, redactor),
    exportRun: (runId) => exportRun(db, named, runId),
    importRun: (lines, importOptions) => importRun(db, named, lines, importOptions),
    pauses: new PauseClient(db, named),
    retention: new RetentionClient(db, named),
    erasure: new ErasureClient(db, named),
    quotas: new QuotasClient(db, named),
    usage: new UsageClient(db, named),
    webhooks: new WebhooksClient(db, named, (url) => outgoing.addressesOf(url, { httpsOnly: true })),
    audit: new AuditClient(db, named),
    putBlob: (content, blobOptions) => uploadBlob(db, named, content, blobOptions, redactor),
    async startWorker(workerOptions = {}) {
      const release = workerOptions.pool === SUMMARIZE_POOL ? async () => {} : await mcp.use(workerOptions);
      try {
        const worker = await startHere(workerOptions);
        return {
          get id() {
            return worker.id;
          },
          async stop(stopOptions) {
            await worker.stop(stopOptions);
            await release();
          },
        };
      } catch (error) {
        await release();
        throw error;
      }
    },
    close() {
      closed.abort();
      closing ??= Promise.all(workers.map((worker) => worker.stop()))
        .then(() => Promise.all([listener.close(), mcp.close()]))
        .then(() => db.end());
      return closing;
    },
  };
}

function guardOf(allow: readonly string[]): OutgoingGuard {
  try {
    return new OutgoingGuard({ allow });
  } catch (error) {
    throw new ConfigError("createCapstan", [{ path: "outgoing.allow (CAPSTAN_OUTGOING_ALLOW)", message: error instanceof Error ? error.message : String(error) }]);
  }
}

function redactorOf(options: RedactOptions | undefined): Redactor | undefined {
  if (options === undefined) return undefined;
  const issues = redactIssues(options);
  if (issues.length > 0) throw new ConfigError("createCapstan", issues);
  return new Redactor(options);
}

function parseQuotas(specs: readonly QuotaLimitSpec[]): QuotaLimit[] {
  const parsed = parseLimits(specs);
  if (!parsed.ok) throw new ConfigError("createCapstan", parsed.issues);
  return parsed.limits;
}

function isCatalogue(models: CapstanOptions["models"]): models is ModelCatalogue {
  return models !== undefined && "resolve" in models && "costUsdMicros" in models;
}
