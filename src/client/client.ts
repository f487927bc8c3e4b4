/** What a service needs that only enqueues and follows runs: a few connections, no worker code. */
import type pg from "pg";
import { ArgumentError } from "./errors.ts";
import { EnqueueGroups } from "./enqueue-group.ts";
import { DefinitionPins, enqueueRun, type EnqueueAgent, type EnqueueOptions } from "./enqueue.ts";
import { RunHandle } from "./handle.ts";
import { ResultPoller } from "./result-poller.ts";
import { definitionSha } from "../store/definitions.ts";
import { defaultNames, namedSql, type SchemaNames } from "../store/names.ts";
import { createPool } from "../store/pool.ts";

export interface ClientOptions {
  /** Exactly one of `connectionString` and `pool`. */
  readonly connectionString?: string;
  /** A pool of the caller's own; `close` leaves it open. Give it an `error` handler, or an idle connection's end is an unhandled error. */
  readonly pool?: pg.Pool;
  /** Connections of the client's own pool; default 5. */
  readonly poolMax?: number;
  readonly names?: SchemaNames;
}

export interface CapstanClient {
  enqueue(agent: EnqueueAgent | string, input: unknown, options?: EnqueueOptions): Promise<RunHandle>;
  /** A run's handle from its id alone; asks nothing of the database. */
  run<Output = unknown>(id: string): RunHandle<Output>;
  close(): Promise<void>;
}

/** Throws ArgumentError unless exactly one way to the database is given. */
export function createClient({ connectionString, pool, poolMax = 5, names = defaultNames }: ClientOptions): CapstanClient {
  if ((connectionString === undefined) === (pool === undefined)) throw new ArgumentError("createClient needs either connectionString or pool, and not both");
  const db = pool ?? createPool({ connectionString: connectionString as string, max: poolMax, applicationName: "capstan client" });
  const named = namedSql(names);
  const pins = new DefinitionPins(definitionSha);
  const groups = new EnqueueGroups(db, named);
  const context = { db, named, poller: new ResultPoller(db, named) };
  return {
    async enqueue(agent, input, options = {}) {
      return new RunHandle(await enqueueRun(db, named, agent, input, options, pins, groups), context);
    },
    run: (id) => new RunHandle(id, context),
    async close() {
      if (pool === undefined) await db.end();
    },
  };
}
