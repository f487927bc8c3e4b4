/** The package's public face: names one by one. `capstan/client` is for services that only enqueue, `capstan/testing` for tests. */
export { agent, type Agent, type AgentLimitsSpec, type AgentSpec, type AnyAgent, type CallSettingsSpec, type ClaimCheckSpec, type SpawnSpec } from "./agents/agent.ts";
export { auditorAgent } from "./agents/auditor.ts";
export { ConfigError } from "./agents/config-error.ts";
export { ask, later, sleep, waitFor, type DeferOptions } from "./agents/deferred.ts";
export { askHumanTool, CONTEXT_TOOL_GUIDANCE, contextTool, readBlobTool, waitTool } from "./agents/engine-tools.ts";
export { tool, type ApprovalSpec, type Tool, type ToolSpec } from "./agents/tool.ts";
export { AgentUnknownError, DefinitionAmbiguousError, DefinitionInvalidError, DefinitionUnknownError } from "./client/agent-errors.ts";
export type { Agents, DefinitionCheck, ForkedDefinition, HistoryEntry } from "./client/agents.ts";
export type { ConcurrencyOptions, EnqueueOptions } from "./client/enqueue.ts";
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
  QueueFullError,
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
} from "./client/errors.ts";
export type { FollowItem } from "./client/follow.ts";
export type { ErasureReport } from "./client/erasure.ts";
export type { PauseView } from "./client/pauses.ts";
export type { QuotaChange, QuotasClient, QuotaUse, QuotaView } from "./client/quotas.ts";
export type { RunUsage, TreeUsage, UsageClient, UsageFilter, UsageRow, UsageTotals } from "./client/usage.ts";
export type { RetentionPreview, RetentionReport } from "./client/retention.ts";
export type { WaitFilter, WaitView } from "./client/waits.ts";
export type { RunEvent, RunHandle, RunStatusView, WaitsFor } from "./client/handle.ts";
export type { BulkCount, BulkFilter, BulkOptions, BulkPreview, BulkRefusal, BulkResult, FailureCount, FailureFilter, RunsClient } from "./client/bulk.ts";
export type {
  Conversation,
  ConversationBudget,
  ConversationsClient,
  ConversationTranscript,
  ConversationView,
  CreateConversationOptions,
  ListConversationsOptions,
  SendOptions,
} from "./client/conversations.ts";
export type { ForkOptions, RetryOptions, RunStateView } from "./client/lineage.ts";
export type { CreateScheduleOptions, ScheduleClient, ScheduleDetail, ScheduleRef, ScheduleView } from "./client/schedules.ts";
export type { FileInput } from "./client/offload.ts";
export {
  createSummarizerEffect,
  DEFAULT_SUMMARIZER_INSTRUCTION,
  SUMMARIZER_INPUT_ORIGIN,
  SUMMARIZER_TEXT_TRUNCATED,
  SummarizerConfigError,
  SummarizerEmptyError,
  SummarizerMissingError,
  summarizerText,
  type ModelSummarizer,
  type SummarizerEffect,
  type SummarizerEffectOptions,
  type SummarizerFunction,
  type SummarizerInput,
  type SummarizerOutput,
  type SummarizerProvider,
  type SummarizerTextOptions,
} from "./compaction/index.ts";
export type { DefinitionChange } from "./domain/definition-diff.ts";
export type { ModelDelta, RunDelta } from "./domain/delta.ts";
export { CapstanError } from "./domain/error.ts";
export { RedactionFailedError } from "./domain/redact/redactor.ts";
export type { RedactContext, RedactOptions, RedactPattern } from "./domain/redact/options.ts";
export type { AuditClient } from "./client/audit.ts";
export type { WebhooksClient } from "./client/webhooks.ts";
export { OutgoingRefusedError } from "./capabilities/outgoing.ts";
export { DEFAULT_STATE_GROWTH_WARN_BYTES } from "./domain/growth.ts";
export type { DefinitionOverlay } from "./domain/overlay.ts";
export type { ToolContext } from "./engine/code.ts";
export type { Model, ModelCatalogue } from "./engine/model-port.ts";
export type { McpUseSpec } from "./agents/mcp-use.ts";
export type { McpHttpServer, McpServerSpec, McpStdioServer } from "./mcp/client/spec.ts";
export { createCapstan, type Capstan, type CapstanOptions } from "./main.ts";
export { createModelCatalogue, type ModelCatalogueOptions } from "./providers/catalogue.ts";
export { ExportBusyError } from "./transfer/export.ts";
export { ImportRefusedError } from "./transfer/format.ts";
export type { ImportOptions, ImportReport } from "./transfer/import.ts";
export { createLog } from "./telemetry/log.ts";
