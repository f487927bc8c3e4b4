/** What makes a worker one of the summarize pool: its relay, its work, and the watch over what it has claimed. Part of the composition root. */
import type pg from "pg";
import { performTask, type TaskDeps } from "./compaction/task.ts";
import { redactedTasks } from "./capabilities/redact-ports.ts";
import type { SummarizerEffect } from "./compaction/effect.ts";
import { recordError } from "./domain/error.ts";
import type { Redactor } from "./domain/redact/redactor.ts";
import { EventUnknownError } from "./domain/upcast.ts";
import type { AbortReason } from "./engine/in-flight.ts";
import type { ModelCatalogue } from "./engine/model-port.ts";
import type { CompactionTask, DefinitionStore, EffectRing, JournalStore, Log, UsageLedger } from "./engine/ports.ts";
import { Loop } from "./queue/loop.ts";
import { SummarizeRelay, type SummarizeRelayOptions } from "./queue/summarize-relay.ts";
import { PostgresCompactionTasks } from "./store/compaction-tasks.ts";
import type { Outage } from "./store/until-connected.ts";

/** A task that was taken away, or whose run has ended, stops its call within this time and a round trip. */
const WATCH_MS = 500;

export interface SummarizePoolOptions {
  readonly relay: Omit<SummarizeRelayOptions, "exhaustedTenants">;
  readonly exhaustedTenants?: () => Promise<readonly string[]>;
  readonly db: pg.Pool;
  readonly named: (text: string) => string;
  readonly outage: Outage;
  readonly workerId: () => string;
  readonly store: JournalStore;
  readonly definitions: DefinitionStore;
  readonly ledger: UsageLedger;
  readonly ring: EffectRing;
  readonly models: ModelCatalogue;
  readonly summarizers: ReadonlyMap<string, SummarizerEffect>;
  readonly outputLimitOf?: (model: string) => number | undefined;
  readonly redactor?: Redactor | undefined;
  readonly log: Log;
  clockMs(): number;
}

export interface SummarizePool {
  readonly relay: SummarizeRelay;
  readonly watch: Loop;
  work(payload: unknown, stopping: boolean): Promise<void>;
  abortAll(reason: AbortReason): void;
}

export function summarizePool(options: SummarizePoolOptions): SummarizePool {
  const { log } = options;
  const tasks = new PostgresCompactionTasks(options.db, options.named, options.outage, options.workerId);
  const relay = new SummarizeRelay({ ...options.relay, exhaustedTenants: options.exhaustedTenants ?? (async () => []) });
  const claims = new Map<string, { readonly token: number; readonly controller: AbortController }>();
  const deps: Omit<TaskDeps, "claimed"> = {
    tasks: options.redactor === undefined ? tasks : redactedTasks(tasks, options.redactor),
    store: options.store,
    definitions: options.definitions,
    ledger: options.ledger,
    ring: options.ring,
    models: options.models,
    summarizers: options.summarizers,
    ...(options.outputLimitOf === undefined ? {} : { outputLimitOf: options.outputLimitOf }),
    log,
    random: Math.random,
    clockMs: options.clockMs,
  };
  let forgottenAtMs = 0;
  /** Not for ever: each try may have paid for a summary, and a run may be waiting. */
  const afterFault = async (task: CompactionTask, error: unknown): Promise<void> => {
    // A newer worker can read it.
    if (error instanceof EventUnknownError) await tasks.again(task, UNKNOWN_EVENT_PAUSE_MS, "retry");
    else if (task.attempts < MAX_FAULTS) await tasks.again(task, ENGINE_ERROR_PAUSE_MS * task.attempts, "retry");
    else await tasks.finish(task, { kind: "failed", reason: "interrupted", detail: { message: recordError(error, "ENGINE_ERROR").message, attempts: task.attempts } });
  };
  const watch = new Loop({
    name: "held tasks",
    log,
    everyMs: WATCH_MS,
    async round() {
      if (options.clockMs() >= forgottenAtMs) {
        forgottenAtMs = options.clockMs() + FORGOTTEN_EVERY_MS;
        for (const id of await tasks.releaseForgotten([...claims.keys()])) log.warn({ taskId: id }, "gave back a task that this worker held and did not work on");
      }
      if (claims.size === 0) return;
      const held = [...claims].map(([id, { token }]) => ({ id, token }));
      for (const id of await tasks.lost(held)) {
        const claim = claims.get(id);
        if (claim?.token === held.find((each) => each.id === id)?.token) claim?.controller.abort(new Error("the task was taken over, or its run has ended"));
      }
    },
  });
  return {
    relay,
    watch,
    async work(payload, stopping) {
      const { taskId } = payload as { taskId: string };
      relay.jobStarted(taskId);
      // The task stays requested, and the next look of any worker finds it.
      if (stopping)
        return await tasks
          .undispatch(taskId)
          .catch((error: unknown) => log.warn({ taskId, err: error }, "could not give a task back unbegun: it is dispatched again after a while"));
      let claimed: CompactionTask | undefined;
      try {
        await performTask(taskId, {
          ...deps,
          claimed(task) {
            claimed = task;
            const controller = new AbortController();
            claims.set(task.id, { token: task.fencingToken, controller });
            return controller.signal;
          },
        });
      } catch (error) {
        log.error({ taskId, err: error }, "a compaction's task failed inside the worker; it is tried again");
        if (claimed !== undefined)
          await afterFault(claimed, error).catch((cause: unknown) => log.warn({ taskId, err: cause }, "could not put the task back: it is found among those that were forgotten"));
      } finally {
        const claim = claims.get(taskId);
        if (claimed !== undefined && claim?.token === claimed.fencingToken) {
          claims.delete(taskId);
          if (claim.controller.signal.aborted) await tasks.again(claimed, 0, "retry").catch((cause: unknown) => log.debug({ taskId, err: cause }, "the task is somebody else's"));
        }
      }
    },
    abortAll(reason) {
      for (const { controller } of claims.values()) controller.abort(new Error(reason === "lost" ? "this worker was taken for dead" : "the worker is stopping"));
    },
  };
}

/** A database that refuses, or a defect of ours: not at once again. */
const ENGINE_ERROR_PAUSE_MS = 2_000;
/** Tries of one task, whatever they were for, until a fault in it is told to the run. */
const MAX_FAULTS = 6;
const UNKNOWN_EVENT_PAUSE_MS = 30_000;
const FORGOTTEN_EVERY_MS = 10_000;
