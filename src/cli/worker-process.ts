/** One worker in this process, with its log and traces: what `worker` and `up` share. */
import { readConfig, type WorkerSettings } from "../config.ts";
import type { Log } from "../engine/ports.ts";
import { createCapstan } from "../main.ts";
import { migrationStatus } from "../store/migrate.ts";
import { SUMMARIZE_POOL } from "../queue/task-names.ts";
import { CompactionMeter } from "../telemetry/compaction-meter.ts";
import { EffectMeter } from "../telemetry/effect-meter.ts";
import { createLog, prettyStream } from "../telemetry/log.ts";
import { startTelemetry, type Telemetry } from "../telemetry/otel.ts";
import { loadAgents } from "./agents-module.ts";
import { builtInAgents } from "./built-in.ts";
import { CliError, exitCodes } from "./exit.ts";
import type { Output } from "./output.ts";

export interface WorkerFlags {
  readonly agents: readonly string[];
  readonly pool: string;
  readonly slots?: number;
  readonly stickyTurns?: number;
  /** Absent or true: summaries are made in this process too. */
  readonly summarize?: boolean;
  readonly promote?: boolean;
  readonly pretty?: boolean;
}

export interface WorkerProcessOptions {
  readonly url: string;
  readonly directUrl: string;
  readonly flags: WorkerFlags;
  /** Whether the built-in agents are there beside the user's; otherwise only when there are none of the user's. */
  readonly alwaysBuiltIn: boolean;
}

export interface WorkerProcess {
  readonly workerId: string;
  readonly agents: readonly string[];
  readonly pool: string;
  readonly slots: number;
  readonly log: Log;
  /** Lets turns finish within the grace period, then aborts them at a recorded boundary; sends what telemetry holds. */
  stop(): Promise<void>;
}

export async function startWorkerProcess(out: Output, options: WorkerProcessOptions): Promise<WorkerProcess> {
  const { url, directUrl, flags } = options;
  const config = readConfig(process.env);
  const own = await loadAgents(flags.agents);
  const agents =
    own.agents.length === 0 || options.alwaysBuiltIn
      ? [...builtInAgents(config, process.env).filter((each) => own.agents.every((agent) => agent.name !== each.name)), ...own.agents]
      : own.agents;
  const settings: Partial<WorkerSettings> = {
    ...(flags.slots === undefined ? {} : { slots: flags.slots }),
    ...(flags.stickyTurns === undefined
      ? {}
      : { stickyTurns: flags.stickyTurns === 0 ? undefined : { turns: flags.stickyTurns, ms: config.worker.stickyTurns?.ms ?? DEFAULT_STICKY_MS } }),
  };

  let telemetry: Telemetry | undefined;
  const stream = flags.pretty === true ? await prettyStream(process.stderr.fd) : undefined;
  if (flags.pretty === true && stream === undefined) out.note("--pretty needs the package pino-pretty; logging JSON");
  const log = createLog({ level: config.logLevel, ...(stream === undefined ? {} : { stream }), traceOf: (runId) => telemetry?.traceOf(runId) });
  await refuseOldSchema(directUrl, config.names, log);
  telemetry = await startTelemetry({ log });

  const capstan = createCapstan({
    connectionString: url,
    directConnectionString: directUrl,
    agents,
    models: { models: own.models, env: process.env },
    mcp: own.mcp,
    worker: settings,
    observability: { log, tracing: telemetry.tracing, meter: new EffectMeter(log).record, countCompaction: new CompactionMeter(log).record },
  });
  const stop = async (): Promise<void> => {
    await capstan.close();
    await telemetry.shutdown();
  };
  try {
    const worker = await capstan.startWorker({
      pool: flags.pool,
      promote: flags.promote === true,
      ...(flags.summarize === false ? { summarize: false } : flags.pool === SUMMARIZE_POOL ? {} : { summarize: true }),
    });
    return { workerId: worker.id, agents: agents.map((agent) => agent.name), pool: flags.pool, slots: settings.slots ?? config.worker.slots, log, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** As CAPSTAN_STICKY_MS has it. */
const DEFAULT_STICKY_MS = 10_000;

async function refuseOldSchema(directUrl: string, names: { readonly schema: string; readonly workerSchema: string }, log: Log): Promise<void> {
  const { applied, known } = await migrationStatus({ connectionString: directUrl, names });
  if (applied < known) throw new CliError("NOT_MIGRATED", `the schema is behind (${applied} of ${known} migrations); run: capstan migrate`, { exitCode: exitCodes.notMigrated });
  // Expand, then contract: a newer schema still serves the version before it.
  if (applied > known) log.warn({ applied, known }, "the schema is newer than this worker; replace the worker soon");
}
