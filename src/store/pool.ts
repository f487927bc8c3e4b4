/** Connection pools that survive their database. */
import pg from "pg";
import type { Log } from "../engine/ports.ts";

export interface PoolOptions {
  readonly connectionString: string;
  readonly max: number;
  readonly applicationName: string;
  readonly log?: Log;
}

/** An unhandled `error` of an idle client would end the process (pg-boss #365): pool and every client get a handler. */
export function createPool({ connectionString, max, applicationName, log }: PoolOptions): pg.Pool {
  const pool = new pg.Pool({ connectionString, max, application_name: applicationName, keepAlive: true, keepAliveInitialDelayMillis: 10_000, connectionTimeoutMillis: 10_000 });
  const lost = (error: Error): void => log?.debug({ err: error }, "a database connection was lost");
  pool.on("error", lost);
  pool.on("connect", (client) => client.on("error", lost));
  return pool;
}
