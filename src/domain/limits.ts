/** Defaults of an agent's limits, each with the mistake that would be worse. */
import type { AgentDefinition } from "./definition.ts";

/** Enough for long tasks; a loop that repeats one call ends here. Interactive runs have no cap unless set. */
export const DEFAULT_MAX_TURNS = 64;
/** Generous in time: a model may think for minutes; a stuck connection must still end. */
export const DEFAULT_MODEL_TIMEOUT_MS = 10 * 60_000;
export const DEFAULT_TOOL_TIMEOUT_MS = 10 * 60_000;
export const DEFAULT_MODEL_ATTEMPTS = 5;
export const DEFAULT_PARALLEL_TOOLS = 8;
export const DEFAULT_MAX_CALLS_PER_TURN = 128;
export const DEFAULT_INLINE_PAYLOAD_BYTES = 1024 * 1024;
/** Kept inline per tool result; more goes to a blob with an excerpt. */
export const DEFAULT_MAX_RESULT_BYTES = 256 * 1024;
/** How often a model is told that its answer is empty, cut off or invalid before the run fails. */
export const MAX_CORRECTIONS = 2;
/** Consecutive workers that may die in one turn of a run before it is parked. */
export const MAX_CRASHES = 3;

export interface ResolvedLimits {
  readonly maxTurns: number;
  readonly parallelTools: number;
  readonly maxCallsPerTurn: number;
  readonly modelAttempts: number;
  readonly modelTimeoutMs: number;
  readonly inlinePayloadBytes: number;
}

export function resolveLimits(definition: AgentDefinition, interactive: boolean): ResolvedLimits {
  const limits = definition.limits ?? {};
  return {
    maxTurns: limits.max_turns ?? (interactive ? Number.POSITIVE_INFINITY : DEFAULT_MAX_TURNS),
    parallelTools: limits.parallel_tools ?? DEFAULT_PARALLEL_TOOLS,
    maxCallsPerTurn: limits.max_calls_per_turn ?? DEFAULT_MAX_CALLS_PER_TURN,
    modelAttempts: limits.model_attempts ?? DEFAULT_MODEL_ATTEMPTS,
    modelTimeoutMs: limits.model_timeout_ms ?? DEFAULT_MODEL_TIMEOUT_MS,
    inlinePayloadBytes: limits.inline_payload_bytes ?? DEFAULT_INLINE_PAYLOAD_BYTES,
  };
}
