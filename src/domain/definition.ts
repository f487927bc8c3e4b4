/**
 * An agent's definition as it is stored and hashed: data only. Code supplies what cannot be stored (`execute`, `onWarn`).
 * One schema for every entrance; field names are the stored ones.
 */
import { z } from "zod";
import { budgetSchema } from "./budget.ts";
import { DEFAULT_CLAIM_CHECK_OVER_BYTES } from "./claim-check.ts";
import { compactionPolicy, isCompactionConfigured } from "./compaction/policy.ts";
import { grantPattern } from "./grants.ts";
import { canonicalJson, type JsonObject, type JsonValue } from "./json.ts";
import { numberBetween, refusal, wholeNumber } from "./ranges.ts";

const jsonSchema = z.custom<JsonObject>((v) => typeof v === "object" && v !== null && !Array.isArray(v));

export const agentNamePattern = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/;
/** What both large vendors accept as a tool's name. */
export const toolNamePattern = /^[A-Za-z0-9_-]{1,64}$/;

/** `read` and `idempotent` calls are repeated after an interruption; `once` never is (P4). */
export const toolEffect = z.enum(["read", "idempotent", "once"]);
export type ToolEffect = z.infer<typeof toolEffect>;

export const MAX_INLINE_PAYLOAD_BYTES = 16 * 1024 * 1024;

/** Ten years: a wait costs nothing, and a date beyond it is a mistake. */
export const MAX_WAIT_MS = 10 * 366 * 86_400_000;

export const toolDefinition = z.strictObject({
  name: z.string().regex(toolNamePattern, "must match [A-Za-z0-9_-]{1,64}"),
  description: z.string(),
  input_schema: jsonSchema,
  effect: toolEffect,
  timeout_ms: wholeNumber(1, 86_400_000).optional(),
  /** For `read` and `idempotent` only: tries in all, and the first pause between two, doubled each time. */
  retry: z.strictObject({ attempts: wholeNumber(1, 20), backoff_ms: wholeNumber(0, 600_000).optional() }).optional(),
  max_result_bytes: wholeNumber(1024, MAX_INLINE_PAYLOAD_BYTES).optional(),
  /** A person decides before anything is executed. `predicate`: the tool's code says for which arguments; a worker without that code asks always. */
  approval: z
    .strictObject({ when: z.enum(["always", "predicate"]), expires_ms: wholeNumber(1, MAX_WAIT_MS).optional(), on_expiry: z.enum(["approve", "deny"]).optional() })
    .optional(),
});
export type ToolDefinition = z.infer<typeof toolDefinition>;

export const agentLimits = z.strictObject({
  /** Turns until the run fails with TURN_LIMIT. Unset: 64, and no limit for interactive runs. */
  max_turns: wholeNumber(1, 1_000_000).optional(),
  /** Wall time from the run's creation until RUN_DEADLINE. */
  deadline_ms: wholeNumber(1).optional(),
  /** Tool calls of one response that run at the same time. */
  parallel_tools: wholeNumber(1, 64).optional(),
  /** Tool calls of one response that are executed at all; the rest is answered with an error. */
  max_calls_per_turn: wholeNumber(1, 1_000).optional(),
  /** Failures of the model that count (not rate limits, not crashes) in one turn until the run fails. */
  model_attempts: wholeNumber(1, 100).optional(),
  model_timeout_ms: wholeNumber(1, 86_400_000).optional(),
  /** Largest payload of one event. */
  inline_payload_bytes: wholeNumber(4096, MAX_INLINE_PAYLOAD_BYTES).optional(),
});

export const callSettings = z.strictObject({
  max_output_tokens: wholeNumber(1).optional(),
  temperature: numberBetween(0, 2).optional(),
  top_p: numberBetween(0, 1).optional(),
  seed: z.int().optional(),
  reasoning_effort: z.enum(["low", "medium", "high"]).optional(),
  stop_sequences: z.array(z.string()).optional(),
  provider_options: jsonSchema.optional(),
});

/** Results of these tools go to blobs when they have more than `over_bytes`; the model sees digest, size, media type and preview (claim-check.ts). */
const claimCheck = z
  .strictObject({ tools: z.array(z.string()).min(1), over_bytes: wholeNumber(256).optional(), preview_bytes: wholeNumber(0).optional() })
  .superRefine(({ over_bytes = DEFAULT_CLAIM_CHECK_OVER_BYTES, preview_bytes }, context) => {
    if (preview_bytes === undefined || preview_bytes <= over_bytes) return;
    context.addIssue({
      code: "custom",
      path: ["preview_bytes"],
      message: `must be a whole number from 0 to ${over_bytes} (the size from which results are withheld), not ${preview_bytes}`,
    });
  });

/** Calls of these tools wait for a person, whatever the tools themselves say; `*` is all of them. */
const approvals = z.strictObject({ tools: z.array(z.string()).min(1), expires_ms: wholeNumber(1, MAX_WAIT_MS).optional(), on_expiry: z.enum(["approve", "deny"]).optional() });

export const DEFAULT_SPAWN_DEPTH = 3;
export const DEFAULT_SPAWN_CHILDREN = 32;
export const DEFAULT_SPAWN_CONCURRENCY = 4;

/** Which agents the built-in `agent` tool may start; `*` is any. */
const spawn = z.strictObject({
  agents: z.array(z.union([z.literal("*"), z.string().regex(agentNamePattern)])).min(1),
  max_depth: wholeNumber(1, 10).optional(),
  max_children: wholeNumber(1, 256).optional(),
  concurrency: wholeNumber(1, 256).optional(),
});

const falseOrBytes = refusal("false or a whole number", { min: 1, max: Number.MAX_SAFE_INTEGER });

export const agentDefinition = z.strictObject({
  name: z.string().regex(agentNamePattern, "must match [A-Za-z0-9][A-Za-z0-9_.-]{0,63}"),
  model: z.string().min(1),
  /** Full model names tried in turn when the model is unavailable. */
  fallbacks: z.array(z.string().min(1)).optional(),
  instructions: z.string(),
  tools: z.array(toolDefinition),
  input_schema: jsonSchema.optional(),
  output_schema: jsonSchema.optional(),
  settings: callSettings.optional(),
  limits: agentLimits.optional(),
  interactive: z.boolean().optional(),
  warn_transcript_bytes: z.union([z.literal(false), z.int({ error: falseOrBytes }).min(1, { error: falseOrBytes })], { error: falseOrBytes }).optional(),
  compaction: compactionPolicy.optional(),
  /** What the agent may use; absent: all that this definition names. An empty list would be dropped and mean just that. */
  grants: z.array(grantPattern).min(1, "must not be empty: leave it out to grant what the definition names").optional(),
  claim_check: claimCheck.optional(),
  approvals: approvals.optional(),
  spawn: spawn.optional(),
  budget: budgetSchema.optional(),
});
export type AgentDefinition = z.infer<typeof agentDefinition>;

/**
 * The text whose sha256 names a definition: canonical JSON with unset and empty parts left out (an empty object or list
 * says the same as none, so that a feature that is not used does not change the hash) and CRLF as LF.
 */
export function definitionText(definition: AgentDefinition): string {
  return canonicalJson(onlyWhatIsSet(definition));
}

/**
 * The definition as its hash sees it. Two definitions of one hash must render to the same calls on every worker (P5):
 * what the hash does not tell apart (CRLF, an empty list of stop sequences) must not reach a model either.
 */
export function normalizeDefinition(definition: AgentDefinition): AgentDefinition {
  return { tools: [], ...onlyWhatIsSet(definition) } as unknown as AgentDefinition;
}

function onlyWhatIsSet(definition: AgentDefinition): JsonObject {
  return (withoutEmpty(definition as unknown as JsonValue) ?? {}) as JsonObject;
}

/** JSON Schemas are kept as they are: `required: []` or `properties: {}` inside them is the user's own business. */
const verbatimKeys = new Set(["input_schema", "output_schema", "provider_options"]);

function withoutEmpty(value: JsonValue): JsonValue | undefined {
  if (typeof value === "string") return value.replaceAll("\r\n", "\n");
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.length === 0 ? undefined : value.map((item) => withoutEmpty(item as JsonValue) ?? null);
  const kept = Object.entries(value as JsonObject).flatMap(([key, member]): [string, JsonValue][] => {
    const clean = verbatimKeys.has(key) ? member : withoutEmpty(member);
    return clean === undefined ? [] : [[key, clean]];
  });
  return kept.length === 0 ? undefined : Object.fromEntries(kept);
}

/** The engine's own tool by which an agent starts others (`spawn` says which). */
export const AGENT_TOOL = "agent";

/** The engine's own tool by which an agent looks at its gauge and asks for a compaction. */
export const CONTEXT_TOOL = "context";

export function hasContextTool({ tools }: Pick<AgentDefinition, "tools">): boolean {
  return tools.some(({ name }) => name === CONTEXT_TOOL);
}

/** Whether this agent's runs may be compacted without anybody asking from outside: by their policy, or by themselves. */
export function compactsItself(definition: AgentDefinition): boolean {
  return isCompactionConfigured(definition.compaction) || hasContextTool(definition);
}
