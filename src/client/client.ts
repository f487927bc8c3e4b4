/** What a service needs that only enqueues and follows runs: a few connections, no worker code. */
import type pg from "pg";
import { createAgents, type Agents } from "./agents.ts";
import { ArgumentError } from "./errors.ts";
import { connectionOf, DeltaListener } from "./delta-listener.ts";
import { EnqueueGroups } from "./enqueue-group.ts";
import { DefinitionPins, enqueueRun, type EnqueueAgent, type EnqueueOptions } from "./enqueue.ts";
import { RunsClient } from "./bulk.ts";
import { Conversation, ConversationsClient } from "./conversations.ts";
import { RunHandle } from "./handle.ts";
import { ResultPoller } from "./result-poller.ts";
import { PauseClient } from "./pauses.ts";
import { ScheduleClient } from "./schedules.ts";
import { WaitClient } from "./waits.ts";
import { definitionSha } from "../store/definitions.ts";
import { defaultNames, namedSql, type SchemaNames } from "../store/names.ts";
import { createPool } from "../store/pool.ts";

export interface ClientOptions {
  /** Exactly one of `connectionString` and `pool`. */
  readonly connectionString?: string;
  /** A pool of the caller's own; `close` leaves it open. Give it an `error` handler, or an idle connection's end is an unhandled error. */
  readonly pool?: pg.Pool;
  /** For the live text of `follow`, when the other way goes through a pooler in transaction mode: one more connection, while runs are followed. */
  readonly directConnectionString?: string;
  /** Connections of the client's own pool; default 5. */
  readonly poolMax?: number;
  readonly names?: SchemaNames;
}

export interface CapstanClient {
  enqueue(agent: EnqueueAgent | string, input: unknown, options?: EnqueueOptions): Promise<RunHandle>;
  /** A run's handle from its id alone; asks nothing of the database. */
  run<Output = unknown>(id: string): RunHandle<Output>;
  /** Many runs at once: retry, cancel, count failures. */
  readonly runs: RunsClient;
  /** Threads of several runs. */
  readonly conversations: ConversationsClient;
  /** A conversation from its id alone; asks nothing of the database. */
  conversation(id: string): Conversation;
  /** Definitions: fork, promote, compare, retire. */
  readonly agents: Agents;
  /** Runs by the clock. */
  readonly schedules: ScheduleClient;
  /** Calls that wait for a person or something else outside. */
  readonly waits: WaitClient;
  /** A tenant, or everything, stands still. */
  readonly pauses: PauseClient;
  close(): Promise<void>;
}

/** Throws ArgumentError unless exactly one way to the database is given. */
export function createClient({ connectionString, directConnectionString, pool, poolMax = 5, names = defaultNames }: ClientOptions): CapstanClient {
  if ((connectionString === undefined) === (pool === undefined)) throw new ArgumentError("createClient needs either connectionString or pool, and not both");
  const db = pool ?? createPool({ connectionString: connectionString as string, max: poolMax, applicationName: "capstan client" });
  const named = namedSql(names);
  const pins = new DefinitionPins(definitionSha);
  const groups = new EnqueueGroups(db, named);
  const listener = new DeltaListener({ connection: directConnectionString === undefined ? connectionOf(db) : { connectionString: directConnectionString }, db, named });
  const context = { db, named, poller: new ResultPoller(db, named), listener };
  return {
    async enqueue(agent, input, options = {}) {
      return new RunHandle(await enqueueRun(db, named, agent, input, options, pins, groups), context);
    },
    run: (id) => new RunHandle(id, context),
    runs: new RunsClient(context),
    conversations: new ConversationsClient(context),
    conversation: (id) => new Conversation(id, context),
    agents: createAgents(db, named),
    schedules: new ScheduleClient(db, named),
    waits: new WaitClient(db, named),
    pauses: new PauseClient(db, named),
    async close() {
      await listener.close();
      if (pool === undefined) await db.end();
    },
  };
}
