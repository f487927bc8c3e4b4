/** Puts one worker process together: store, engine, queue, heartbeat. Part of the composition root, with main.ts. */
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import type { TaskList } from "graphile-worker";
import type { Guard } from "./capabilities/guard.ts";
import { redactedModels } from "./capabilities/redact-models.ts";
import { knownSecrets, redactedAgent, redactedBlobs, redactedStore } from "./capabilities/redact-ports.ts";
import { redactedTracing } from "./capabilities/redact-telemetry.ts";
import { OutgoingGuard } from "./capabilities/outgoing.ts";
import { outgoingPost } from "./capabilities/outgoing-fetch.ts";
import { createRing, type Meter } from "./capabilities/ring.ts";
import { signWebhook } from "./client/webhook-signature.ts";
import type { SummarizerEffect } from "./compaction/effect.ts";
import type { WorkerSettings } from "./config.ts";
import { eventVersions } from "./domain/event.ts";
import type { QuotaLimit } from "./domain/quota.ts";
import { redactedPayload } from "./domain/redact/event.ts";
import type { Redactor } from "./domain/redact/redactor.ts";
import type { AgentCode } from "./engine/code.ts";
import type { EngineDeps } from "./engine/deps.ts";
import { hitFailpoint } from "./engine/failpoints.ts";
import { Frames } from "./engine/frames.ts";
import { InFlight } from "./engine/in-flight.ts";
import type { ModelCatalogue } from "./engine/model-port.ts";
import type { CompactionReport, Log, Tracing, WarnSink } from "./engine/ports.ts";
import { RunCache } from "./engine/run-memory.ts";
import { advanceRun } from "./engine/turn.ts";
import { uuidV7 } from "./store/uuid.ts";
import { DeltaSender } from "./queue/delta-sender.ts";
import { Heartbeat } from "./queue/heartbeat.ts";
import { HeldWatch } from "./queue/held-watch.ts";
import type { JobSource } from "./queue/job-source.ts";
import { Relay } from "./queue/relay.ts";
import { Schedules } from "./queue/schedules.ts";
import { HELD_HERE_SQL } from "./queue/sql/sweep.ts";
import { SupervisedRunner } from "./queue/runner.ts";
import { Sweep } from "./queue/sweep.ts";
import { findModel } from "./providers/models.ts";
import { SUMMARIZE_POOL, taskName } from "./queue/task-names.ts";
import { Webhooks } from "./queue/webhooks.ts";
import { WishListener } from "./queue/wish-listener.ts";
import { PostgresBlobStore } from "./store/blobs.ts";
import { PostgresCompactionTasks } from "./store/compaction-tasks.ts";
import type { PostgresDefinitionStore } from "./store/definitions.ts";
import { PostgresJournalStore } from "./store/journal-store.ts";
import { JournalWriter } from "./store/journal-writer.ts";
import type { SchemaNames } from "./store/names.ts";
import { createPool } from "./store/pool.ts";
import { PostgresQuotaGate } from "./store/quota.ts";
import { untilConnected } from "./store/until-connected.ts";
import { PostgresUsageLedger } from "./store/usage-ledger.ts";
import { BEAT_SQL, END_BLOCKED_SQL, WorkerStore } from "./store/workers.ts";
import { isConnectionError } from "./store/pg-errors.ts";
import { summarizePool } from "./summarize-pool.ts";
import { VERSION } from "./version.ts";

export interface WorkerOptions {
  readonly connectionString: string;
  /** For LISTEN: must not go through a pooler in transaction mode. */
  readonly directConnectionString: string;
  readonly names: SchemaNames;
  readonly named: (text: string) => string;
  readonly definitions: PostgresDefinitionStore;
  readonly agents: ReadonlyMap<string, AgentCode>;
  readonly models: ModelCatalogue;
  /** Registered summarizers by name. */
  readonly summarizers: ReadonlyMap<string, SummarizerEffect>;
  readonly settings: WorkerSettings;
  readonly pool: string;
  readonly tracing: Tracing;
  readonly log: Log;
  readonly meter: Meter;
  readonly onWarn: WarnSink | undefined;
  readonly countCompaction?: ((report: CompactionReport) => void) | undefined;
  readonly guard?: Guard | undefined;
  /** Limits of the configuration; those of table quota_limits come on top. */
  readonly quotas?: readonly QuotaLimit[];
  /** Keeps secrets out of all that is stored and traced; `log` is redacted where it comes from. */
  readonly redactor?: Redactor | undefined;
  /** Judges the addresses of webhooks; by default none that is private. */
  readonly outgoing?: OutgoingGuard;
  secret(name: string, tenant: string): string | undefined;
}

export interface RunningWorker {
  readonly id: string;
  /** Lets turns finish within the grace period, aborts the rest at a recorded boundary, releases everything. May be called twice. */
  stop(options?: { readonly graceMs?: number }): Promise<void>;
}

/** Transcripts kept warm between turns. */
const CACHE_BYTES = 256 * 1024 * 1024;
const REWISH_AFTER_ERROR_MS = 1_000;
/** After the grace period: how long a stopping worker waits for a database that is away. */
const GIVE_UP_AFTER_MS = 10_000;

export async function startWorker(given: WorkerOptions): Promise<RunningWorker> {
  const options = given.redactor === undefined ? given : withoutSecrets(given, given.redactor);
  const { redactor } = options;
  const { settings, named, log, names, agents, pool: poolName } = options;
  const stopped = new AbortController();
  const db = createPool({ connectionString: options.connectionString, max: settings.poolMax, applicationName: "capstan worker", log, pinnedPlans: true });
  const queueDb = createPool({ connectionString: options.directConnectionString, max: Math.min(10, settings.poolMax), applicationName: "capstan queue", log, hintsOnly: true });
  const relayDb = createPool({ connectionString: options.connectionString, max: 2, applicationName: "capstan relay", log, pinnedPlans: true, hintsOnly: true });
  const workers = new WorkerStore(db, named);
  const facts = {
    pool: poolName,
    host: hostname(),
    pid: process.pid,
    version: VERSION,
    leaseMs: settings.leaseMs,
    slots: settings.slots,
    agents: [...agents.keys()],
    tools: Object.fromEntries([...agents].map(([name, code]) => [name, [...code.tools.keys()]])),
    eventVersions,
  };
  // A database that has no connection free just now, or is restarting, is no reason to give up (pg-boss #365).
  let workerId = await untilConnected({ log, signal: stopped.signal }, "registering the worker", () => workers.register(facts));

  const clockMs = (): number => performance.now();
  const deltas = new DeltaSender({ log, clockMs, send: (messages) => listener.tellFollowers(messages) });
  const writer = new JournalWriter({ pool: db, workerId: () => workerId, named, log, signal: stopped.signal, onAppended: (runId) => deltas.appended(runId) });
  const outage = { log, signal: stopped.signal };
  const store = new PostgresJournalStore(db, named, writer, outage);
  const inFlight = new InFlight();
  const ledger = new PostgresUsageLedger(db, named, outage);
  const quota = new PostgresQuotaGate({ pool: db, named, outage, configured: options.quotas ?? [], workerId: () => workerId, clockMs });
  // Before the first call: a worker that does not know the limits yet would keep none.
  await untilConnected(outage, "reading quotas", () => quota.refresh());
  const ring = createRing({ meter: options.meter, clockMs, quota, ...(options.guard === undefined ? {} : { guard: options.guard }) });
  const blobs = new PostgresBlobStore(db, named, outage);
  const deps: EngineDeps = {
    store: redactor === undefined ? store : redactedStore(store, redactor),
    definitions: options.definitions,
    blobs: redactor === undefined ? blobs : redactedBlobs(blobs, redactor),
    ledger,
    compactions: new PostgresCompactionTasks(db, named, outage, () => workerId),
    ring,
    deltas,
    models: options.models,
    agents,
    tracing: options.tracing,
    log,
    cache: new RunCache(CACHE_BYTES),
    frames: new Frames(),
    inFlight,
    sticky: settings.stickyTurns,
    onWarn: options.onWarn,
    countCompaction: options.countCompaction ?? (() => {}),
    othersWait: () => turnRelay.hasBacklog,
    secret: options.secret,
    ...(redactor === undefined ? {} : { redact: (type, payload) => redactedPayload(type, payload, redactor.text) }),
    random: Math.random,
    newId: randomUUID,
    newRunId: () => uuidV7(Date.now()),
    clockMs,
  };

  let running = 0;
  const common = { pool: relayDb, named, agents: facts.agents, slots: settings.slots, log, running: () => running };
  const turnRelay = new Relay({ ...common, poolName });
  const summaries =
    poolName === SUMMARIZE_POOL
      ? summarizePool({
          ...options,
          relay: { ...common, lostAfterMs: settings.lostJobMs },
          exhaustedTenants: async () => [...(await quota.exhaustedTenants("summary"))],
          db,
          store,
          ledger,
          ring,
          outage,
          workerId: () => workerId,
          clockMs,
          outputLimitOf: (model) => findModel(model)?.maxOutputTokens,
        })
      : undefined;
  const relay: JobSource = summaries?.relay ?? turnRelay;
  const advance = async (payload: unknown): Promise<void> => {
    const { runId } = payload as { runId: string };
    relay.jobStarted(runId);
    try {
      if (inFlight.stopping) await wishAgain(runId, 0);
      else await advanceRun(deps, runId);
    } catch (error) {
      log.error({ runId, err: error }, "a job failed before it could take its run");
      await wishAgain(runId, REWISH_AFTER_ERROR_MS);
    }
  };
  const task = async (payload: unknown): Promise<void> => {
    running++;
    try {
      await (summaries === undefined ? advance(payload) : summaries.work(payload, inFlight.stopping));
    } finally {
      running--;
      relay.poke();
      hitFailpoint("job.before_completion");
    }
  };
  /** The job is about to be deleted and its run is not held: without a wish it would stand until the search for lost jobs. */
  const wishAgain = async (runId: string, inMs: number): Promise<void> => {
    for (;;) {
      try {
        return await workers.wish(runId, inMs);
      } catch (error) {
        if (!isConnectionError(error) || stopped.signal.aborted) return log.error({ runId, err: error }, "could not wish for a job again");
        await new Promise((resolve) => setTimeout(resolve, 300));
      }
    }
  };
  const tasks: TaskList = Object.fromEntries(facts.agents.map((agent) => [taskName(poolName, agent), task]));
  const queuePools: string[] = [];
  const runner = new SupervisedRunner({
    pool: queueDb,
    schema: names.workerSchema,
    tasks,
    concurrency: settings.slots,
    log,
    onPool: (queuePool) => {
      const earlier = queuePools.splice(0);
      queuePools.push(queuePool);
      // What a runner that broke had fetched and not begun stays locked for hours otherwise (graphile/worker #254).
      if (earlier.length > 0) {
        untilConnected(outage, "unlocking jobs of a runner that ended", () => queueDb.query(`select ${names.workerSchema}.force_unlock_workers($1::text[])`, [earlier])).catch(
          (error: unknown) => log.warn({ err: error }, "could not unlock the jobs of a runner that ended: their runs wait until the search for lost jobs"),
        );
      }
      workers
        .addQueuePool(workerId, queuePool)
        .catch((error: unknown) => log.warn({ err: error }, "could not note the queue pool: its jobs would stay locked if this worker died"));
    },
  });

  let reviving: Promise<void> | undefined;
  const revive = (): void => {
    // Whatever was in flight belongs to others now; a new incarnation starts with nothing.
    log.warn({ workerId }, "this worker was taken for dead: dropping its runs and starting over under a new incarnation");
    inFlight.abortAll("lost");
    summaries?.abortAll("lost");
    reviving ??= (async () => {
      while (!stopped.signal.aborted) {
        try {
          workerId = await workers.register(facts);
          for (const queuePool of queuePools.slice(-1)) await workers.addQueuePool(workerId, queuePool);
          heartbeat.become(workerId);
          break;
        } catch (error) {
          log.debug({ err: error }, "could not register again yet");
          await new Promise((resolve) => setTimeout(resolve, 500));
        }
      }
      reviving = undefined;
    })();
  };
  const heartbeat = new Heartbeat({
    connectionString: options.directConnectionString,
    workerId,
    everyMs: settings.heartbeatMs,
    leaseMs: settings.leaseMs,
    beatSql: named(BEAT_SQL),
    endSql: named(END_BLOCKED_SQL),
    busy: () => running,
    onBuried: revive,
    onExit: (error) => log.error({ err: error }, "the heartbeat thread ended and is begun again"),
  });
  const sweep = new Sweep({
    pool: db,
    named,
    workerSchema: names.workerSchema,
    log,
    everyMs: settings.sweepMs,
    lostAfterMs: settings.lostJobMs,
    workerId: () => workerId,
    mayBury: () => heartbeat.isTrusted,
    onTaken: () => relay.poke(),
    settleQuotas: () => quota.round(),
    async releaseForgotten() {
      // A live worker's runs are never swept: one that a failed job left held would stand for ever.
      const { rows } = await db.query<{ id: string; fencing_token: number }>(named(HELD_HERE_SQL), [workerId, poolName]);
      for (const { id, fencing_token: token } of rows) {
        if (inFlight.has(id)) continue;
        log.warn({ runId: id, fencingToken: token }, "giving back a run that this worker holds and does not work on");
        await store.giveBack(id, token, "now");
      }
    },
  });
  // Not through `relayDb`: a run that was started must be on the disk.
  const schedules = poolName === SUMMARIZE_POOL ? undefined : new Schedules({ pool: db, named, log, clockMs });
  const webhooks =
    poolName === SUMMARIZE_POOL
      ? undefined
      : new Webhooks({
          pool: db,
          named,
          log,
          send: outgoingPost(options.outgoing ?? new OutgoingGuard()),
          sign: signWebhook,
          random: Math.random,
          userAgent: `capstan/${VERSION}`,
        });
  const watch = new HeldWatch(inFlight, store, log);
  const listener = new WishListener({
    connectionString: options.directConnectionString,
    named,
    poolName,
    log,
    onWish: () => relay.poke(),
    onFollow: poolName === SUMMARIZE_POOL ? undefined : (payload) => deltas.announced(payload),
  });

  try {
    await runner.start();
  } catch (error) {
    // Nobody gets a handle to stop: a heartbeat that went on would keep a worker alive that does nothing.
    stopped.abort();
    await workers.end(workerId, "stopped").catch((cause: unknown) => log.warn({ err: cause }, "could not sign off; the lease will run out"));
    await heartbeat.stop();
    await Promise.all([db.end(), queueDb.end(), relayDb.end()]);
    throw error;
  }
  relay.start();
  listener.start();
  watch.start();
  summaries?.watch.start();
  sweep.start();
  schedules?.start();
  webhooks?.start();
  log.info({ workerId, pool: poolName, slots: settings.slots, agents: facts.agents }, "worker started");

  let stopping: Promise<void> | undefined;
  const stop = async ({ graceMs = settings.graceMs }: { readonly graceMs?: number } = {}): Promise<void> => {
    log.info({ workerId, inFlight: inFlight.size }, "worker stopping");
    inFlight.stopStarting();
    await Promise.all([relay.stop(), sweep.stop(), schedules?.stop(), webhooks?.stop()]);
    const abortTimer = setTimeout(() => {
      inFlight.abortAll("shutdown");
      summaries?.abortAll("shutdown");
    }, graceMs);
    // If the database is away all this time, leases run out by themselves.
    const giveUpTimer = setTimeout(() => stopped.abort(), graceMs + GIVE_UP_AFTER_MS);
    // Waits for jobs in flight: they end by themselves, or by the abort.
    await runner.stop();
    // A runner that broke and was replaced no longer speaks for its jobs.
    while (running > 0 && !stopped.signal.aborted) await new Promise((resolve) => setTimeout(resolve, 20));
    clearTimeout(abortTimer);
    clearTimeout(giveUpTimer);
    // Only now: until here there was live text to be sent.
    const silenced = deltas.stop().then(() => listener.stop());
    await Promise.all([watch.stop(), summaries?.watch.stop()]);
    stopped.abort();
    await reviving;
    await quota.release().catch((error: unknown) => log.warn({ err: error }, "could not give leased quota back; the sweep will"));
    await workers.end(workerId, "stopped").catch((error: unknown) => log.warn({ err: error }, "could not sign off; the lease will run out"));
    await Promise.all([heartbeat.stop(), silenced]);
    await Promise.all([db.end(), queueDb.end(), relayDb.end()]);
    log.info({ workerId }, "worker stopped");
  };
  return {
    get id() {
      return workerId;
    },
    stop: (stopOptions) => (stopping ??= stop(stopOptions)),
  };
}

/** Everything by which a worker meets the outside, as redaction lets it through (capabilities/redact-ports.ts). */
function withoutSecrets(options: WorkerOptions, redactor: Redactor): WorkerOptions {
  return {
    ...options,
    agents: new Map([...options.agents].map(([name, code]) => [name, redactedAgent(code, redactor)])),
    models: redactedModels(options.models, redactor),
    tracing: redactedTracing(options.tracing, redactor),
    secret: knownSecrets((name, tenant) => options.secret(name, tenant), redactor),
  };
}
