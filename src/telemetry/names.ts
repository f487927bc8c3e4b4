/**
 * Every name that telemetry uses. Plain constants, importable by engine and edges. OpenTelemetry's GenAI conventions
 * follow semantic-conventions-genai v0.1.0, which no package carries yet.
 */
export const genAi = {
  operationName: "gen_ai.operation.name",
  operation: { chat: "chat", invokeAgent: "invoke_agent", executeTool: "execute_tool" },
  providerName: "gen_ai.provider.name",
  requestModel: "gen_ai.request.model",
  responseModel: "gen_ai.response.model",
  responseId: "gen_ai.response.id",
  finishReasons: "gen_ai.response.finish_reasons",
  agentName: "gen_ai.agent.name",
  conversationId: "gen_ai.conversation.id",
  toolName: "gen_ai.tool.name",
  toolCallId: "gen_ai.tool.call.id",
  inputTokens: "gen_ai.usage.input_tokens",
  outputTokens: "gen_ai.usage.output_tokens",
  cacheReadTokens: "gen_ai.usage.cache_read.input_tokens",
  cacheWriteTokens: "gen_ai.usage.cache_write.input_tokens",
  errorType: "error.type",
} as const;

/** Outcomes of model calls that are counted by name: what is received after a cancel is a number that people watch. */
export const effectOutcome = { late: "late" } as const;

/** Compaction: an event on the turn's span, and counters. */
export const compaction = {
  event: "context.compaction",
  trigger: "capstan.compaction.trigger",
  outcome: "capstan.compaction.outcome",
  before: "capstan.compaction.tokens.before",
  after: "capstan.compaction.tokens.after",
  rung: "capstan.compaction.rung",
} as const;
