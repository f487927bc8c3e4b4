/** `capstan/client`: for services that enqueue and follow runs. Imports pg and zod, never worker code (test/house proves it). */
export { AgentUnknownError, DefinitionAmbiguousError, DefinitionInvalidError, DefinitionUnknownError } from "./agent-errors.ts";
export type { Agents, DefinitionCheck, ForkedDefinition, HistoryEntry } from "./agents.ts";
export { createClient, type CapstanClient, type ClientOptions } from "./client.ts";
export type { EnqueueAgent, EnqueueOptions } from "./enqueue.ts";
export {
  ArgumentError,
  ConversationBusyError,
  ConversationUnknownError,
  DatabaseUnavailableError,
  ForkPointError,
  IdempotencyConflictError,
  InboxFullError,
  InputInvalidError,
  NotInteractiveError,
  NotMidTurnError,
  ResultTimeoutError,
  RunEndedError,
  RunFailedError,
  RunNotFailedError,
  ScheduleExistsError,
  ScheduleInvalidError,
  ScheduleUnknownError,
  TooLargeError,
  UnknownRunError,
  WaitDecidedError,
  WaitExpiredError,
  WaitUnknownError,
} from "./errors.ts";
export type { FollowItem } from "./follow.ts";
export { RunHandle, type RunEvent, type RunStatusView } from "./handle.ts";
export type { BulkCount, BulkFilter, BulkOptions, BulkPreview, BulkRefusal, BulkResult, FailureCount, FailureFilter, RunsClient } from "./bulk.ts";
export type {
  Conversation,
  ConversationBudget,
  ConversationsClient,
  ConversationTranscript,
  ConversationView,
  CreateConversationOptions,
  ListConversationsOptions,
  SendOptions,
} from "./conversations.ts";
export type { ForkOptions, RetryOptions, RunStateView } from "./lineage.ts";
export type { PauseView } from "./pauses.ts";
export type { CreateScheduleOptions, ScheduleClient, ScheduleDetail, ScheduleRef, ScheduleView } from "./schedules.ts";
export type { DefinitionChange } from "../domain/definition-diff.ts";
export type { RunDelta } from "../domain/delta.ts";
export type { DefinitionOverlay } from "../domain/overlay.ts";
export type { Tx } from "./transaction.ts";
export type { WaitFilter, WaitView } from "./waits.ts";
