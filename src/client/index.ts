/** `capstan/client`: for services that enqueue and follow runs. Imports pg and zod, never worker code (test/house proves it). */
export { AgentUnknownError, DefinitionAmbiguousError, DefinitionInvalidError, DefinitionUnknownError } from "./agent-errors.ts";
export { agentContract, type AgentContract, type TypedAgent } from "./agent-contract.ts";
export type { AgentsApi, CapstanApi, ConversationApi, ConversationsApi, SchedulesApi } from "./api.ts";
export type { EnqueueItem } from "./enqueue-many.ts";
export type { ApiOptions } from "./http/api-requests.ts";
export { ApiError, ApiUnavailableError } from "./http/errors.ts";
export type { Agents, DefinitionCheck, ForkedDefinition, HistoryEntry } from "./agents.ts";
export { createClient, type CapstanClient, type ClientOptions } from "./client.ts";
export type { ConcurrencyOptions, EnqueueAgent, EnqueueOptions } from "./enqueue.ts";
export {
  ArgumentError,
  ConcurrencyConflictError,
  ConversationBusyError,
  ConversationUnknownError,
  DatabaseUnavailableError,
  ForkPointError,
  IdempotencyConflictError,
  InboxFullError,
  InputInvalidError,
  NotInteractiveError,
  NotMidTurnError,
  PartitionKeptError,
  QueueFullError,
  ResultTimeoutError,
  RunEndedError,
  RunFailedError,
  RunNotFailedError,
  ScheduleExistsError,
  ScheduleInvalidError,
  ScheduleUnknownError,
  TenantDeniedError,
  TooLargeError,
  UnknownRunError,
  WaitDecidedError,
  WaitExpiredError,
  WaitUnknownError,
  WebhookExistsError,
  WebhookUnknownError,
} from "./errors.ts";
export type { ErasureClient, ErasureOptions, ErasureReport, ErasureScope, Remains } from "./erasure.ts";
export type { FollowItem } from "./follow.ts";
export { RunHandle, type RunEvent, type RunStatusView, type WaitsFor } from "./handle.ts";
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
export type { QuotaChange, QuotasClient, QuotaUse, QuotaView } from "./quotas.ts";
export type { RetentionClient, RetentionFilter, RetentionOptions, RetentionPreview, RetentionRefusal, RetentionReport } from "./retention.ts";
export type { CreateScheduleOptions, ScheduleClient, ScheduleDetail, ScheduleRef, ScheduleView } from "./schedules.ts";
export type { DefinitionChange } from "../domain/definition-diff.ts";
export type { RunDelta } from "../domain/delta.ts";
export type { DefinitionOverlay } from "../domain/overlay.ts";
export type { Tx } from "./transaction.ts";
export { AuditBusyError } from "./audit.ts";
export type { AuditClient, AuditEntry, AuditFilter, AuditPage, AuditPageOptions, AuditView } from "./audit.ts";
export type { PutBlobOptions } from "./put-blob.ts";
export type { CreatedWebhook, CreateWebhookOptions, DeliveryFilter, DeliveryView, WebhookEvent, WebhookRef, WebhooksClient, WebhookView } from "./webhooks.ts";
export { verifyWebhook, WebhookSignatureError, type VerifiedWebhook, type VerifyWebhookOptions } from "./webhook-signature.ts";
export { RedactionFailedError } from "../domain/redact/redactor.ts";
export type { RedactContext, RedactOptions, RedactPattern } from "../domain/redact/options.ts";
export type { RunUsage, TreeUsage, UsageClient, UsageFilter, UsageRow, UsageTotals } from "./usage.ts";
export type { WaitFilter, WaitView } from "./waits.ts";
export type { Budget } from "../domain/budget.ts";
