/** What a service needs that only enqueues and follows runs: a few connections, no worker code. */
import type pg from "pg";
import { createAgents, type Agents } from "./agents.ts";
import type { CapstanApi } from "./api.ts";
import type { TypedAgent } from "./agent-contract.ts";
import { enqueueMany, targetOf } from "./enqueue-many.ts";
import { createHttpClient } from "./http/http-client.ts";
import type { ApiOptions } from "./http/api-requests.ts";
import { ArgumentError } from "./errors.ts";
import { connectionOf, DeltaListener } from "./delta-listener.ts";
import { EnqueueGroups } from "./enqueue-group.ts";
import { DefinitionPins, enqueueRun, type EnqueueOptions } from "./enqueue.ts";
import { RunsClient } from "./bulk.ts";
import { Conversation, ConversationsClient } from "./conversations.ts";
import { ErasureClient } from "./erasure.ts";
import { RunHandle } from "./handle.ts";
import { ResultPoller } from "./result-poller.ts";
import { PauseClient } from "./pauses.ts";
import { QuotasClient } from "./quotas.ts";
import { RetentionClient } from "./retention.ts";
import { ScheduleClient } from "./schedules.ts";
import { UsageClient } from "./usage.ts";
import { WaitClient } from "./waits.ts";
import { AuditClient } from "./audit.ts";
import { uploadBlob, type PutBlobOptions } from "./put-blob.ts";
import type { FilePart } from "../domain/transcript/message.ts";
import { WebhooksClient } from "./webhooks.ts";
import { redactIssues, type RedactOptions } from "../domain/redact/options.ts";
import { Redactor } from "../domain/redact/redactor.ts";
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
  /** Keeps secrets out of what is sent (docs/security.md). */
  readonly redact?: RedactOptions;
}

/** Over Postgres there is more than an API gives: everything is its caller's own. */
export interface CapstanClient extends CapstanApi {
  /** Many runs at once: retry, cancel, count failures. */
  readonly runs: RunsClient;
  readonly conversations: ConversationsClient;
  conversation(id: string): Conversation;
  readonly agents: Agents;
  readonly schedules: ScheduleClient;
  /** Calls that wait for a person or something else outside. */
  readonly waits: WaitClient;
  /** A tenant, or everything, stands still. */
  readonly pauses: PauseClient;
  /** What tenants, agents and models may use. */
  readonly quotas: QuotasClient;
  /** What they have used. */
  readonly usage: UsageClient;
  /** Where completion is told to the outside. Addresses are judged by the workers, at every send. */
  readonly webhooks: WebhooksClient;
  /** Media for an input: stays for a day, and as long as a run whose input names it. */
  putBlob(content: Uint8Array, options: PutBlobOptions): Promise<FilePart>;
  /** Who did what. */
  readonly audit: AuditClient;
  /** Ended runs go after a while; holds. */
  readonly retention: RetentionClient;
  /** Everything of a tenant or a subject goes. */
  readonly erasure: ErasureClient;
  close(): Promise<void>;
}

/** To a database, or with `baseUrl` to an API. Throws ArgumentError unless exactly one way is given. */
export function createClient(options: ApiOptions): CapstanApi;
export function createClient(options: ClientOptions): CapstanClient;
export function createClient(options: ClientOptions | ApiOptions): CapstanApi {
  if (!("baseUrl" in options)) return createPostgresClient(options);
  const { connectionString, pool } = options as ClientOptions;
  if (connectionString !== undefined || pool !== undefined) throw new ArgumentError("createClient needs one of baseUrl, connectionString and pool, and not several");
  return createHttpClient(options);
}

function createPostgresClient({ connectionString, directConnectionString, pool, poolMax = 5, names = defaultNames, redact }: ClientOptions): CapstanClient {
  if ((connectionString === undefined) === (pool === undefined)) throw new ArgumentError("createClient needs either connectionString or pool, and not both, or a baseUrl");
  const db = pool ?? createPool({ connectionString: connectionString as string, max: poolMax, applicationName: "capstan client" });
  const named = namedSql(names);
  const [issue] = redact === undefined ? [] : redactIssues(redact);
  if (issue !== undefined) throw new ArgumentError(`${issue.path} ${issue.message}`);
  const redactor = redact && new Redactor(redact);
  const pins = new DefinitionPins(definitionSha);
  const groups = new EnqueueGroups(db, named);
  const listener = new DeltaListener({ connection: directConnectionString === undefined ? connectionOf(db) : { connectionString: directConnectionString }, db, named });
  const context = { db, named, poller: new ResultPoller(db, named), listener, redactor };
  return {
    async enqueue(agent: TypedAgent | string, input: unknown, options: EnqueueOptions = {}) {
      const [target, checked] = targetOf(agent, input);
      return new RunHandle<never>(await enqueueRun(db, named, target, checked, options, pins, groups, redactor), context);
    },
    async enqueueMany(items, { tx } = {}) {
      return (await enqueueMany(db, named, items, { tx, pins, redactor })).map((id) => new RunHandle(id, context));
    },
    run: (id) => new RunHandle(id, context),
    runs: new RunsClient(context),
    conversations: new ConversationsClient(context),
    conversation: (id) => new Conversation(id, context),
    agents: createAgents(db, named),
    schedules: new ScheduleClient(db, named),
    waits: new WaitClient(db, named, redactor),
    pauses: new PauseClient(db, named),
    retention: new RetentionClient(db, named),
    erasure: new ErasureClient(db, named),
    quotas: new QuotasClient(db, named),
    usage: new UsageClient(db, named),
    webhooks: new WebhooksClient(db, named),
    audit: new AuditClient(db, named),
    putBlob: (content, blobOptions) => uploadBlob(db, named, content, blobOptions, redactor),
    async close() {
      await listener.close();
      if (pool === undefined) await db.end();
    },
  };
}
