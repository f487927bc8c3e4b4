/** What a service does with runs, over Postgres and over HTTP alike. */
import type { Agents } from "./agents.ts";
import type { TypedAgent } from "./agent-contract.ts";
import type { ConversationsClient, ConversationTranscript, ConversationView, CreateConversationOptions, ListConversationsOptions, SendOptions } from "./conversations.ts";
import type { EnqueueItem } from "./enqueue-many.ts";
import type { EnqueueOptions } from "./enqueue.ts";
import type { RunHandle } from "./handle.ts";
import type { JsonValue } from "../domain/json.ts";
import type { ScheduleClient } from "./schedules.ts";
import type { Tx } from "./transaction.ts";

/** A class's face, without what is private to it. */
type Face<T> = { readonly [K in keyof T]: T[K] };

/** See Conversation. */
export interface ConversationApi {
  readonly id: string;
  get(): Promise<ConversationView>;
  send<Output = JsonValue>(input: unknown, options?: SendOptions): Promise<RunHandle<Output>>;
  runs(): Promise<RunHandle[]>;
  transcript(): Promise<ConversationTranscript>;
}

/** See ConversationsClient. */
export interface ConversationsApi extends Pick<Face<ConversationsClient>, "list"> {
  create(options: CreateConversationOptions): Promise<ConversationApi>;
  open(id: string): ConversationApi;
  list(options?: ListConversationsOptions): Promise<ConversationView[]>;
}

/** See Agents. */
export type AgentsApi = Pick<Agents, "list" | "get" | "fork" | "promote" | "history" | "diff" | "retire">;

/** See ScheduleClient. */
export type SchedulesApi = Face<ScheduleClient>;

export interface CapstanApi {
  /** Types flow from the agent, or from its contract, to input and result. */
  enqueue<Input, Output>(agent: TypedAgent<Input, Output>, input: NoInfer<Input>, options?: EnqueueOptions): Promise<RunHandle<Output>>;
  enqueue(agent: string, input: unknown, options?: EnqueueOptions): Promise<RunHandle>;
  /** All of them or none; handles in the order of the items. Up to 1,000. */
  enqueueMany(items: readonly EnqueueItem[], options?: { readonly tx?: Tx }): Promise<RunHandle[]>;
  /** A run's handle from its id alone; asks nothing. */
  run<Output = unknown>(id: string): RunHandle<Output>;
  /** Threads of several runs. */
  readonly conversations: ConversationsApi;
  /** A conversation from its id alone; asks nothing. */
  conversation(id: string): ConversationApi;
  /** Definitions: fork, promote, compare, retire. */
  readonly agents: AgentsApi;
  /** Runs by the clock. */
  readonly schedules: SchedulesApi;
  close(): Promise<void>;
}
