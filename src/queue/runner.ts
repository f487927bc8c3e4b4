/**
 * graphile-worker's runner, kept alive: in 0.18 a batched completion that cannot be written ends the runner at its first
 * error, so a lost connection would leave a worker that does nothing. It is built again, with back-off, until stopped.
 */
import { run, type Runner, type TaskList } from "graphile-worker";
import { EventEmitter } from "node:events";
import type pg from "pg";
import type { Log } from "../engine/ports.ts";
import { backoffMs } from "../domain/retry.ts";
import { isConnectionError } from "../store/pg-errors.ts";
import { queueLogger } from "./queue-logger.ts";

export interface RunnerOptions {
  readonly pool: pg.Pool;
  readonly schema: string;
  readonly tasks: TaskList;
  readonly concurrency: number;
  readonly log: Log;
  /** A new queue pool was made: its id is what locks carry, and what a sweep must unlock. */
  onPool(poolId: string): void;
}

/**
 * A job that was fetched ahead and found no slot within this time goes back to where other workers find it: one that
 * is full of slow calls would keep it until the search for lost jobs comes round. Lower returns more often what a slot
 * would have taken soon: one statement for up to `concurrency` jobs each time.
 */
const FETCHED_AHEAD_FOR_MS = 1_000;

/** Notifications wake the queue; this is for when they fail. */
const POLL_INTERVAL_MS = 1_000;

export class SupervisedRunner {
  readonly #options: RunnerOptions;
  #runner: Runner | undefined;
  #supervision: Promise<void> | undefined;
  #stopping = false;
  #everBuilt = false;
  #wake: () => void = () => {};
  /** How often it had to be built again. */
  rebuilt = 0;

  constructor(options: RunnerOptions) {
    this.#options = options;
  }

  async start(): Promise<void> {
    await new Promise<void>((resolve, reject) => {
      this.#supervision = this.#supervise(resolve, reject);
    });
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    this.#wake();
    await this.#runner?.stop().catch((error: unknown) => this.#options.log.debug({ err: error }, "the queue's runner had stopped already"));
    await this.#supervision;
  }

  async #supervise(started: () => void, failed: (error: unknown) => void): Promise<void> {
    for (let failures = 0; !this.#stopping;) {
      const sinceMs = performance.now();
      try {
        this.#runner = await this.#build();
        started();
        // Stopped while it was being built: the stop that was asked for reached only its predecessor.
        if (this.#stopping) return await this.#runner.stop();
        this.#everBuilt = true;
        await this.#brokenOrEnded(this.#runner);
        if (this.#stopping) return;
        // Not to be stopped once more: that would wait for what never ends.
        this.#runner = undefined;
        this.#options.log.warn({}, "the queue's runner ended by itself");
      } catch (error) {
        if (this.#stopping) return;
        this.#options.log.warn({ err: error, failures }, "the queue's runner failed");
        // A schema that is missing or refused does not mend itself; a database that is away does.
        if (!this.#everBuilt && failures >= 5 && !isConnectionError(error)) return failed(error);
      }
      failures = performance.now() - sinceMs > 30_000 ? 1 : failures + 1;
      if (this.#everBuilt) this.rebuilt++;
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, backoffMs(failures, Math.random(), { firstMs: 100, maxMs: 5_000 }));
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }

  /**
   * A runner that cannot write a completion shuts itself down "gracefully": it fetches nothing more while its jobs go on
   * for minutes, and in 0.18 it may wait for ever for a batch that it has given up. So the beginning of that is taken for
   * its end; jobs of its that are at work finish beside the next one.
   */
  async #brokenOrEnded(runner: Runner): Promise<void> {
    await Promise.race([runner.promise, this.#broken]);
    runner.promise.catch((error: unknown) => this.#options.log.debug({ err: error }, "a runner that had been replaced failed"));
  }

  #broken: Promise<void> = Promise.resolve();

  async #build(): Promise<Runner> {
    const { pool, schema, tasks, concurrency, log, onPool } = this.#options;
    const events = new EventEmitter();
    this.#broken = new Promise((resolve) => events.once("pool:gracefulShutdown", () => resolve()));
    events.on("pool:create", ({ workerPool }: { workerPool: { id: string } }) => onPool(workerPool.id));
    return await run({
      pgPool: pool,
      schema,
      taskList: tasks,
      concurrency,
      pollInterval: POLL_INTERVAL_MS,
      noHandleSignals: true,
      parsedCronItems: [],
      events,
      logger: queueLogger(log),
      preset: { worker: { localQueue: { size: concurrency + 1, ttl: FETCHED_AHEAD_FOR_MS }, completeJobBatchDelay: 0, gracefulShutdownAbortTimeout: 60_000 } },
    });
  }
}
