/** The package's public face: names one by one. `capstan/client` is for services that only enqueue, `capstan/testing` for tests. */
export { agent, type Agent, type AgentLimitsSpec, type AgentSpec, type AnyAgent, type CallSettingsSpec, type ClaimCheckSpec } from "./agents/agent.ts";
export { auditorAgent } from "./agents/auditor.ts";
export { ConfigError } from "./agents/config-error.ts";
export { CONTEXT_TOOL_GUIDANCE, contextTool, readBlobTool } from "./agents/engine-tools.ts";
export { tool, type Tool, type ToolSpec } from "./agents/tool.ts";
export type { EnqueueOptions } from "./client/enqueue.ts";
export {
  ArgumentError,
  DatabaseUnavailableError,
  IdempotencyConflictError,
  InboxFullError,
  InputInvalidError,
  ResultTimeoutError,
  RunEndedError,
  RunFailedError,
  TooLargeError,
  UnknownRunError,
} from "./client/errors.ts";
export type { RunEvent, RunHandle, RunStatusView } from "./client/handle.ts";
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
export { CapstanError } from "./domain/error.ts";
export { DEFAULT_STATE_GROWTH_WARN_BYTES } from "./domain/growth.ts";
export type { ToolContext } from "./engine/code.ts";
export type { Model, ModelCatalogue } from "./engine/model-port.ts";
export { createCapstan, type Capstan, type CapstanOptions } from "./main.ts";
export { createModelCatalogue, type ModelCatalogueOptions } from "./providers/catalogue.ts";
export { createLog } from "./telemetry/log.ts";
