/**
 * Waits for the ends of runs: one query for all waiters of a process, however many there are (two thousand waiters on a
 * pool of ten connections must not starve heartbeats). Survives a database that is away.
 */
import type { JsonObject, JsonValue } from "../domain/json.ts";
import type { Tx } from "./transaction.ts";
import { queryTx } from "./transaction.ts";

export interface RunEnd {
  readonly state: "completed" | "failed" | "cancelled";
  readonly output: JsonValue;
  readonly error: { readonly code: string; readonly message: string; readonly details?: JsonObject } | undefined;
}

const FIRST_POLL_MS = 20;
const MAX_POLL_MS = 500;

const ENDS = `select r.id, r.state, e.payload from capstan.runs r join capstan.events e on e.run_id = r.id and e.seq = r.next_seq - 1
  where r.id = any($1::uuid[]) and r.finished_at is not null`;

export class ResultPoller {
  readonly #db: Tx;
  readonly #sql: string;
  readonly #waiters = new Map<string, Set<(end: RunEnd) => void>>();
  #polling = false;
  #pauseMs = FIRST_POLL_MS;
  #wake: () => void = () => {};

  constructor(db: Tx, named: (text: string) => string) {
    this.#db = db;
    this.#sql = named(ENDS);
  }

  /** Resolves at the run's end, or with undefined when the signal fires first. */
  wait(runId: string, signal: AbortSignal | undefined): Promise<RunEnd | undefined> {
    if (signal?.aborted === true) return Promise.resolve(undefined);
    return new Promise((resolve) => {
      const waiters = this.#waiters.get(runId) ?? new Set();
      this.#waiters.set(runId, waiters);
      const done = (end: RunEnd | undefined): void => {
        waiters.delete(done);
        if (waiters.size === 0) this.#waiters.delete(runId);
        signal?.removeEventListener("abort", stop);
        resolve(end);
      };
      const stop = (): void => done(undefined);
      waiters.add(done);
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
        const rows = await queryTx<{ id: string; state: RunEnd["state"]; payload: { output?: JsonValue; error?: RunEnd["error"]; reason?: string } }>(this.#db, this.#sql, [[...this.#waiters.keys()]]);
        for (const { id, state, payload } of rows) {
          const error = state === "cancelled" ? { code: "RUN_CANCELLED", message: payload.reason ?? "cancelled" } : payload.error;
          for (const done of this.#waiters.get(id) ?? []) done({ state, output: payload.output ?? null, error });
        }
      } catch {
        // The database is away; the waiters' own deadlines decide how long that may last.
        this.#pauseMs = MAX_POLL_MS;
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
}
