/** Connection pools that survive their database. */
import pg from "pg";
import { parseJsonText } from "../domain/json-text.ts";
import type { Log } from "../engine/ports.ts";

export interface PoolOptions {
  readonly connectionString: string;
  readonly max: number;
  readonly applicationName: string;
  readonly log?: Log;
  /**
   * For statements whose plans are known: each is planned once, by index and nested loop. Postgres otherwise plans the
   * append anew each time, since it can estimate the arrays it is given and finds that cheaper: several ms of planning
   * for a statement of 0.3 ms. And a plan made while a table was small (a sequential scan of `runs`) would be kept
   * until the next ANALYZE.
   */
  readonly pinnedPlans?: boolean;
  /**
   * For what is a hint and no fact: jobs and their locks. Commits do not wait for the disk. A crash of the server may take
   * back the last of them, whole: then a wish is there again, or a job comes twice, and both are harmless. The journal
   * is never written through such a pool.
   */
  readonly hintsOnly?: boolean;
}

/** An unhandled `error` of an idle client would end the process (pg-boss #365): pool and every client get a handler. */
export function createPool({ connectionString, max, applicationName, log, pinnedPlans = false, hintsOnly = false }: PoolOptions): pg.Pool {
  const lost = (error: Error): void => log?.debug({ err: error }, "a database connection was lost");
  // pg awaits what onConnect returns before it hands the client out, though its type says void.
  const settings = [...(pinnedPlans ? PIN_PLANS : []), ...(hintsOnly ? ["set synchronous_commit = off"] : [])].join("; ");
  const pool = new pg.Pool({
    connectionString,
    max,
    application_name: applicationName,
    types: exactTypes,
    keepAlive: true,
    keepAliveInitialDelayMillis: 10_000,
    connectionTimeoutMillis: 10_000,
    // Through a pooler a setting may reach another session: harmless there.
    ...(settings === "" ? {} : { onConnect: (client: pg.ClientBase) => client.query(settings) as unknown as void }),
  });
  pool.on("error", lost);
  pool.on("connect", (client) => client.on("error", lost));
  return pool;
}

const JSON_OIDS: readonly number[] = [114, 3802];

/** json and jsonb through our own reader; all else as the driver does it. */
const exactTypes: pg.CustomTypesConfig = {
  getTypeParser: (oid, format) => (JSON_OIDS.includes(oid) && format !== "binary" ? parseJsonText : pg.types.getTypeParser(oid, format)),
};

const PIN_PLANS = ["set plan_cache_mode = force_generic_plan", "set enable_seqscan = off", "set enable_hashjoin = off", "set enable_mergejoin = off"];
