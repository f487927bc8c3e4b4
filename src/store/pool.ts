/** Connection pools that survive their database. */
import pg from "pg";
import type { Log } from "../engine/ports.ts";

export interface PoolOptions {
  readonly connectionString: string;
  readonly max: number;
  readonly applicationName: string;
  readonly log?: Log;
  /**
   * Plan each prepared statement once. Postgres otherwise plans the append anew each time, since it can estimate the
   * arrays it is given and finds that cheaper: measured at several ms of planning for a statement of 0.3 ms.
   */
  readonly genericPlans?: boolean;
}

/** An unhandled `error` of an idle client would end the process (pg-boss #365): pool and every client get a handler. */
export function createPool({ connectionString, max, applicationName, log, genericPlans = false }: PoolOptions): pg.Pool {
  const lost = (error: Error): void => log?.debug({ err: error }, "a database connection was lost");
  const pool = new pg.Pool({
    connectionString,
    max,
    application_name: applicationName,
    keepAlive: true,
    keepAliveInitialDelayMillis: 10_000,
    connectionTimeoutMillis: 10_000,
    // Through a pooler the setting may reach another session: harmless there.
    ...(genericPlans ? { onConnect: async (client: pg.ClientBase) => void (await client.query("set plan_cache_mode = force_generic_plan")) } : {}),
  });
  pool.on("error", lost);
  pool.on("connect", (client) => client.on("error", lost));
  return pool;
}
