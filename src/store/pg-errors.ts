/** What an error from the driver means for the statement that met it. */

/** SQLSTATE classes after which the outcome of a statement in flight is unknown: connection exceptions, and a server that stops or restarts. */
const unknownOutcomeCodes = /^(08|57P0[1-5]|53300)/;

export function sqlState(error: unknown): string | undefined {
  const code = (error as { code?: unknown } | undefined)?.code;
  return typeof code === "string" && /^[0-9A-Z]{5}$/.test(code) ? code : undefined;
}

/** The connection died, or could not be made: what was sent may or may not have happened. */
export function isConnectionError(error: unknown): boolean {
  const state = sqlState(error);
  // 55000 has many meanings; this one is a database that an administrator has closed for a while.
  if (state === "55000") return /not currently accepting connections/.test((error as Error).message);
  if (state !== undefined) return unknownOutcomeCodes.test(state) || state === "25006";
  if (!(error instanceof Error)) return false;
  const code = (error as { code?: string }).code ?? "";
  if (/^(ECONN|EPIPE|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|EAI_AGAIN|ENOTFOUND|ENOENT)/.test(code)) return true;
  return /Connection terminated|timeout exceeded when trying to connect|Client has encountered a connection error|not queryable|the database system is/i.test(error.message);
}

/** Deadlock, serialization failure, or a lock held by somebody for too long: the statement did not happen and may simply be made again. */
export function isRetryableConflict(error: unknown): boolean {
  const state = sqlState(error);
  return state === "40P01" || state === "40001" || state === "55P03";
}
