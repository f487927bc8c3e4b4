/** One worker in this process, with its log and traces: what `worker` and `up` share. */
import { readConfig, type WorkerSettings } from "../config.ts";
import type { Log } from "../engine/ports.ts";
import { createCapstan, type Capstan } from "../main.ts";
import { definitionSha } from "../store/definitions.ts";
import { migrationStatus } from "../store/migrate.ts";
import { listAgents } from "../store/agent-list.ts";
import { namedSql } from "../store/names.ts";
import { EffectMeter } from "../telemetry/effect-meter.ts";
import { createLog, prettyStream } from "../telemetry/log.ts";
import { startTelemetry, type Telemetry } from "../telemetry/otel.ts";
import type { Agent } from "../agents/agent.ts";
import { loadAgents } from "./agents-module.ts";
import { builtInAgents } from "./built-in.ts";
import { CliError, exitCodes } from "./exit.ts";
import type { Output } from "./output.ts";

export interface WorkerFlags {
  readonly agents: readonly string[];
  readonly pool: string;
  readonly slots?: number;
  readonly stickyTurns?: number;
  readonly promote?: boolean;
  readonly pretty?: boolean;
}

export interface WorkerProcessOptions {
  readonly url: string;
  readonly directUrl: string;
  readonly flags: WorkerFlags;
  /** Whether the built-in agents are there beside the user's; otherwise only when there are none of the user's. */
  readonly alwaysBuiltIn: boolean;
  readonly logLevel: string;
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
  const log = createLog({ level: options.logLevel, ...(stream === undefined ? {} : { stream }), traceOf: (runId) => telemetry?.traceOf(runId) });
  await refuseOldSchema(directUrl, config.names, log);
  telemetry = await startTelemetry({ log });

  const capstan = createCapstan({
    connectionString: url,
    directConnectionString: directUrl,
    agents,
    models: { models: own.models, env: process.env },
    worker: settings,
    observability: { log, tracing: telemetry.tracing, meter: new EffectMeter(log).record },
  });
  const stop = async (): Promise<void> => {
    await capstan.close();
    await telemetry.shutdown();
  };
  try {
    await capstan.register({ promote: flags.promote === true });
    await sayUnpromoted(out, capstan, agents);
    const worker = await capstan.startWorker({ pool: flags.pool });
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

/** New code does not change what new runs get until somebody promotes it; whoever has just edited an agent should know. */
async function sayUnpromoted(out: Output, capstan: Capstan, agents: readonly Agent[]): Promise<void> {
  const promoted = new Map((await listAgents(capstan.db, namedSql(readConfig(process.env).names))).map((agent) => [agent.name, agent]));
  for (const { name, definition } of agents) {
    const there = promoted.get(name);
    if (there !== undefined && there.promoted_sha !== definitionSha(definition)) {
      out.note(
        `agent ${name}: the definition in this code is not the promoted one (${there.promoted_sha.slice(0, 19)}); runs enqueued by name get the promoted one until you pass --promote`,
      );
    }
  }
}
