/**
 * Waits for the ends of runs: one query for all waiters of a process, however many there are (two thousand waiters on a
 * pool of ten connections must not starve heartbeats). Survives a database that is away.
 */
import type { JsonObject, JsonValue } from "../domain/json.ts";
import { isConnectionError } from "../store/pg-errors.ts";
import { ArgumentError, fromPostgres, UnknownRunError } from "./errors.ts";
import type { Tx } from "./transaction.ts";
import { queryTx } from "./transaction.ts";

export interface RunEnd {
  readonly state: "completed" | "failed" | "cancelled";
  readonly output: JsonValue;
  readonly error: { readonly code: string; readonly message: string; readonly details?: JsonObject } | undefined;
}

const FIRST_POLL_MS = 20;
const MAX_POLL_MS = 500;

/** A run may be waited for before the transaction that enqueues it commits; one that is missing for longer does not exist. */
const MISSING_AFTER_MS = 2_000;

const ENDS = "select id, state, payload from capstan.run_ends($1::uuid[])";

const uuid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

interface Waiter {
  readonly sinceMs: number;
  resolve(end: RunEnd | undefined): void;
  reject(error: Error): void;
}

interface EndRow {
  readonly id: string;
  readonly state: RunEnd["state"] | null;
  readonly payload: { readonly output?: JsonValue; readonly error?: RunEnd["error"]; readonly reason?: string } | null;
}

export class ResultPoller {
  readonly #db: Tx;
  readonly #sql: string;
  readonly #waiters = new Map<string, Set<Waiter>>();
  #polling = false;
  #pauseMs = FIRST_POLL_MS;
  #wake: () => void = () => {};

  constructor(db: Tx, named: (text: string) => string) {
    this.#db = db;
    this.#sql = named(ENDS);
  }

  /** Resolves at the run's end, or with undefined when the signal fires first. Rejects with UnknownRunError, ArgumentError. */
  wait(runId: string, signal: AbortSignal | undefined): Promise<RunEnd | undefined> {
    // One bad id would spoil the statement that all waiters share.
    if (!uuid.test(runId)) return Promise.reject(new ArgumentError(`${JSON.stringify(runId)} is not a run id (a UUID)`));
    if (signal?.aborted === true) return Promise.resolve(undefined);
    const id = runId.toLowerCase();
    return new Promise((resolve, reject) => {
      const waiters = this.#waiters.get(id) ?? new Set();
      this.#waiters.set(id, waiters);
      const leave = (): void => {
        waiters.delete(waiter);
        if (waiters.size === 0) this.#waiters.delete(id);
        signal?.removeEventListener("abort", stop);
      };
      const waiter: Waiter = {
        sinceMs: performance.now(),
        resolve(end) {
          leave();
          resolve(end);
        },
        reject(error) {
          leave();
          reject(error);
        },
      };
      const stop = (): void => waiter.resolve(undefined);
      waiters.add(waiter);
      signal?.addEventListener("abort", stop, { once: true });
      this.#pauseMs = FIRST_POLL_MS;
      this.#wake();
      if (!this.#polling) void this.#poll();
    });
  }

  async #poll(): Promise<void> {
    this.#polling = true;
    while (this.#waiters.size > 0) {
      try {
        for (const row of await queryTx<EndRow>(this.#db, this.#sql, [[...this.#waiters.keys()]])) this.#tell(row);
      } catch (error) {
        // While the database is away the waiters' own deadlines decide how long that may last.
        if (isConnectionError(error)) this.#pauseMs = MAX_POLL_MS;
        else for (const waiter of [...this.#waiters.values()].flatMap((waiters) => [...waiters])) waiter.reject(fromPostgres(error) as Error);
      }
      if (this.#waiters.size === 0) break;
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, this.#pauseMs);
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
      this.#pauseMs = Math.min(MAX_POLL_MS, this.#pauseMs * 1.5);
    }
    this.#polling = false;
  }

  #tell({ id, state, payload }: EndRow): void {
    for (const waiter of this.#waiters.get(id) ?? []) {
      if (state === null) {
        if (performance.now() - waiter.sinceMs > MISSING_AFTER_MS) waiter.reject(new UnknownRunError(`no run ${id}`));
        continue;
      }
      const error = state === "cancelled" ? { code: "RUN_CANCELLED", message: payload?.reason ?? "cancelled" } : payload?.error;
      waiter.resolve({ state, output: payload?.output ?? null, error });
    }
  }
}
