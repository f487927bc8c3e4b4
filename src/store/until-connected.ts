/** Repeats work that must not be given up because the database is away for a while. Only for work that may safely be repeated. */
import type { Log } from "../engine/ports.ts";
import { isConnectionError } from "./pg-errors.ts";

export interface Outage {
  readonly log: Log;
  /** Ends the waiting: the last error is thrown. */
  readonly signal: AbortSignal;
}

const PAUSE_MS = 300;
/** A line at the first failure and about every fifteen seconds. */
const LOG_EVERY = 50;

export async function untilConnected<T>({ log, signal }: Outage, what: string, work: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await work();
    } catch (error) {
      if (!isConnectionError(error) || signal.aborted) throw error;
      if (attempt % LOG_EVERY === 1) log.warn({ err: error, attempt, what }, "the database cannot be reached, trying again");
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  }
}
