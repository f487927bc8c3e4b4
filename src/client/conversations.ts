/** Threads of several runs: each message starts the next run, which begins with the view of the one before. */
import type { Budget } from "../domain/budget.ts";
import type { CompactionPolicy } from "../domain/compaction/policy.ts";
import type { JsonObject, JsonValue } from "../domain/json.ts";
import type { Message } from "../domain/transcript/message.ts";
import { uuidV7 } from "../store/uuid.ts";
import type { EnqueueAgent } from "./enqueue.ts";
import { ConversationUnknownError, fromPostgres } from "./errors.ts";
import { RunHandle, type HandleContext, type RunStatusView } from "./handle.ts";
import { derive, deriveJson, keptInput, mergedPolicy, stateAt, storeDefinition, type DeriveOptions } from "./lineage.ts";
import { settingJson } from "./run-settings.ts";
import { queryTx, type Tx } from "./transaction.ts";

export interface ConversationBudget {
  /** From when on the thread is carried by a rolling summary; at least 512. */
  readonly max_tokens: number;
  /** Name of a registered summarizer; default: the built-in one. */
  readonly summarizer?: string;
}

export interface CreateConversationOptions {
  /** An agent's name; its runs get the definition that is promoted when they start. */
  readonly agent: string;
  readonly tenant?: string;
  readonly subject?: string;
  readonly title?: string;
  readonly budget?: ConversationBudget;
  readonly metadata?: JsonObject;
  readonly tx?: Tx;
}

export interface SendOptions extends DeriveOptions {
  /** Sent again with the same key it is the same message. */
  readonly idempotencyKey?: string;
  /** A definition in code: this run is pinned to it. Default: the promoted one. */
  readonly agent?: EnqueueAgent;
  readonly compaction?: CompactionPolicy;
  /** What the run that answers may take; the conversation's own budget is another one. */
  readonly runBudget?: Budget;
  readonly interactive?: boolean;
}

export interface ConversationView {
  readonly id: string;
  readonly tenant: string;
  readonly agent: string;
  readonly subject?: string;
  readonly title?: string;
  readonly budget?: ConversationBudget;
  readonly metadata?: JsonObject;
  readonly created_at: string;
  readonly updated_at: string;
  readonly runs: number;
  readonly last_run_id?: string;
  readonly last_state?: RunStatusView["state"];
  readonly last_wait_reason?: string;
}

export interface ConversationTranscript {
  readonly conversation_id: string;
  readonly run_id: string | null;
  /** What the last run's model sees: all messages, or those behind a summary of the earlier ones. */
  readonly messages: readonly Message[];
}

export interface ListConversationsOptions {
  readonly tenant?: string;
  readonly agent?: string;
  readonly subject?: string;
  /** Conversations older than this one. */
  readonly before?: string;
  readonly limit?: number;
}

const CREATE_SQL = "select capstan.create_conversation(agent => $1, tenant => $2, subject => $3, title => $4, budget => $5::jsonb, metadata => $6::jsonb) as id";
const SEND_SQL = `select capstan.continue_conversation(conversation_id => $1::uuid, input => $2::jsonb, idempotency_key => $3, definition_sha => $4, compaction => $5::jsonb,
  interactive => $6::boolean, options => $7::jsonb, actor => $8, run_id => $9::uuid, budget => $10::jsonb) as id`;
const VIEW = `jsonb_strip_nulls(jsonb_build_object('id', c.id, 'tenant', c.tenant, 'agent', c.agent, 'subject', c.subject, 'title', c.title, 'budget', c.budget, 'metadata', c.metadata,
  'created_at', c.created_at, 'updated_at', c.updated_at, 'runs', (select count(*) from capstan.runs n where n.conversation_id = c.id), 'last_run_id', c.last_run_id,
  'last_state', r.state, 'last_wait_reason', r.wait_reason)) as view
from capstan.conversations c left join capstan.runs r on r.id = c.last_run_id`;

export class ConversationsClient {
  readonly #context: HandleContext;

  constructor(context: HandleContext) {
    this.#context = context;
  }

  /** Throws ArgumentError. */
  async create({ agent, tenant, subject, title, budget, metadata, tx }: CreateConversationOptions): Promise<Conversation> {
    const json = (value: unknown): string | null => (value === undefined ? null : JSON.stringify(value));
    const id = await derive(CREATE_SQL, [agent, tenant ?? "default", subject ?? null, title ?? null, json(budget), json(metadata)], this.#context, tx);
    return new Conversation(id, this.#context);
  }

  /** A conversation from its id alone; asks nothing of the database. */
  open(id: string): Conversation {
    return new Conversation(id, this.#context);
  }

  /** Newest first. */
  async list({ tenant, agent, subject, before, limit = 50 }: ListConversationsOptions = {}): Promise<ConversationView[]> {
    const rows = await query<{ view: ConversationView }>(
      this.#context,
      `select ${VIEW} where ($1::text is null or c.tenant = $1) and ($2::text is null or c.agent = $2) and ($3::text is null or c.subject = $3) and ($4::uuid is null or c.id < $4)
       order by c.id desc limit $5`,
      [tenant ?? null, agent ?? null, subject ?? null, before ?? null, limit],
    );
    return rows.map(({ view }) => view);
  }
}

export class Conversation {
  readonly id: string;
  readonly #context: HandleContext;

  constructor(id: string, context: HandleContext) {
    this.id = id;
    this.#context = context;
  }

  /** Throws ConversationUnknownError. */
  async get({ tx }: { readonly tx?: Tx } = {}): Promise<ConversationView> {
    const [row] = await query<{ view: ConversationView }>(this.#context, `select ${VIEW} where c.id = $1::uuid`, [this.id], tx);
    if (row === undefined) throw new ConversationUnknownError(`no conversation ${this.id}`);
    return row.view;
  }

  /**
   * The next message. Gives the run that answers it: a new one, or the interactive one that waits for it. Throws
   * ConversationBusyError while the last run is at work.
   */
  async send<Output = JsonValue>(input: unknown, options: SendOptions = {}): Promise<RunHandle<Output>> {
    const { agent, compaction, interactive, idempotencyKey, actor, tx } = options;
    const { tenant, agent: name } = await this.get(tx === undefined ? {} : { tx });
    const sha = agent === undefined || agent.isComplete === false ? null : await storeDefinition(agent.definition, this.#context, tx);
    const policy =
      compaction === undefined
        ? undefined
        : mergedPolicy(agent === undefined || agent.isComplete === false ? await this.#promotedPolicy(name, tx) : agent.definition.compaction, compaction);
    // The run's id before the run: what goes to a blob is noted as its own.
    const runId = uuidV7(Date.now());
    const kept = await keptInput(name, input, { tenant, runId, context: this.#context, tx });
    const values = [
      this.id,
      JSON.stringify(kept),
      idempotencyKey ?? null,
      sha,
      policy === undefined ? null : JSON.stringify(policy),
      interactive ?? null,
      deriveJson(options),
      actor ?? null,
      runId,
      settingJson("budget", options.runBudget),
    ];
    return new RunHandle(await derive(SEND_SQL, values, this.#context, tx), this.#context);
  }

  /** Its runs, oldest first. */
  async runs(): Promise<RunHandle[]> {
    const rows = await query<{ id: string }>(this.#context, "select r.id from capstan.runs r where r.conversation_id = $1::uuid order by r.id", [this.id]);
    return rows.map(({ id }) => new RunHandle(id, this.#context));
  }

  async transcript(): Promise<ConversationTranscript> {
    const { last_run_id: runId } = await this.get();
    if (runId === undefined) return { conversation_id: this.id, run_id: null, messages: [] };
    const { last_seq: lastSeq } = await new RunHandle(runId, this.#context).status();
    const { messages } = await stateAt(runId, lastSeq, this.#context);
    return { conversation_id: this.id, run_id: runId, messages };
  }

  async #promotedPolicy(name: string, tx: Tx | undefined): Promise<CompactionPolicy | undefined> {
    const [row] = await query<{ compaction: CompactionPolicy | null }>(
      this.#context,
      "select d.definition -> 'compaction' as compaction from capstan.agents a join capstan.agent_definitions d on d.sha = a.promoted_sha where a.name = $1",
      [name],
      tx,
    );
    return row?.compaction ?? undefined;
  }
}

async function query<Row extends object>({ db, named }: HandleContext, text: string, values: readonly unknown[], tx?: Tx): Promise<Row[]> {
  try {
    return await queryTx<Row & Record<string, unknown>>(tx ?? db, named(text), values);
  } catch (error) {
    throw fromPostgres(error);
  }
}
