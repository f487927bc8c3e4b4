/** How users write an agent. */
import type { z } from "zod";
import { budgetIssues, type Budget } from "../domain/budget.ts";
import { policyIssues, type CompactionPolicy } from "../domain/compaction/policy.ts";
import { agentDefinition, normalizeDefinition, type AgentDefinition } from "../domain/definition.ts";
import type { JsonObject } from "../domain/json.ts";
import { SUBMIT_OUTPUT_TOOL } from "../domain/transcript/render.ts";
import type { AgentCode } from "../engine/code.ts";
import type { WarnSink } from "../engine/ports.ts";
import { checkAgainst, fromZod } from "../domain/json-schema.ts";
import { ConfigError } from "./config-error.ts";
import { parseMcpUses, type McpUseSpec } from "./mcp-use.ts";
import { isMcpName, mcpPrefix } from "../domain/mcp-name.ts";
import { agentTool } from "./engine-tools.ts";
import { camelIssues, dropUnset, isTool, jsonSchemaOf, refuseStrange, snakeKeys, type Tool } from "./tool.ts";

export interface AgentLimitsSpec {
  /** Turns until TURN_LIMIT; default 64, none for interactive runs. */
  readonly maxTurns?: number;
  /** Milliseconds from the run's creation until RUN_DEADLINE. */
  readonly deadlineMs?: number;
  /** Tool calls of one response that run at once, 1 to 64; default 8. */
  readonly parallelTools?: number;
  /** Tool calls of one response that are executed at all, 1 to 1,000; default 128. */
  readonly maxCallsPerTurn?: number;
  /** Failed model calls that count, per turn and model; default 5. Rate limits, crashes and deploys do not count. */
  readonly modelAttempts?: number;
  /** Milliseconds; default 10 minutes. */
  readonly modelTimeoutMs?: number;
  /** Bytes of one event's payload, 4,096 to 16 MiB; default 1 MiB. */
  readonly inlinePayloadBytes?: number;
}

export interface CallSettingsSpec {
  readonly maxOutputTokens?: number;
  readonly temperature?: number;
  readonly topP?: number;
  readonly seed?: number;
  readonly reasoningEffort?: "low" | "medium" | "high";
  readonly stopSequences?: readonly string[];
  readonly providerOptions?: JsonObject;
}

/** Results of these tools are kept out of the transcript: the model sees digest, size, media type and a preview only. */
export interface ClaimCheckSpec {
  readonly tools: readonly string[];
  /** Results of more bytes than this, at least 256; default 4,096. */
  readonly overBytes?: number;
  /** Bytes of the preview, 0 to `overBytes`; default 512, and never more than half of `overBytes`. */
  readonly previewBytes?: number;
}

export interface SpawnSpec {
  /** Names; `["*"]` is any agent. */
  readonly agents: readonly string[];
  /** How deep children may have children, 1 to 10; default 3. */
  readonly maxDepth?: number;
  /** Children of one call, 1 to 256; default 32. */
  readonly maxChildren?: number;
  /** Children of one call that run at the same time; default 4. */
  readonly concurrency?: number;
}

export interface AgentSpec<Input extends z.ZodType = z.ZodType, Output extends z.ZodType = z.ZodType> {
  readonly name: string;
  /** `provider:model`, e.g. `anthropic:claude-…`, `openai:gpt-…`, `ollama:…`, `offline:auditor`. */
  readonly model: string;
  /** Models tried in turn when the first cannot be reached. */
  readonly fallbacks?: readonly string[];
  readonly instructions: string;
  readonly tools?: readonly Tool[];
  readonly input?: Input;
  /** Structured output. The result is this type; an answer that does not fit is told to the model twice, then OUTPUT_INVALID. */
  readonly output?: Output;
  readonly settings?: CallSettingsSpec;
  readonly limits?: AgentLimitsSpec;
  /** The run parks at `awaiting_input` after an answer instead of ending. */
  readonly interactive?: boolean;
  /** Bytes of transcript above which the owner is warned once; default 262,144; false for never. */
  readonly warnTranscriptBytes?: number | false;
  /** Field names are the wire's (snake_case), the same in every form of the policy. */
  readonly compaction?: CompactionPolicy;
  /** What a run may take: `soft` limits are told once, `hard` ones end it. Field names are the wire's, as with `compaction`. */
  readonly budget?: Budget;
  readonly claimCheck?: ClaimCheckSpec;
  /** Calls of these tools wait for a person, whatever the tools themselves say; `["*"]` is all of them. */
  readonly approvals?: { readonly tools: readonly string[]; readonly expiresMs?: number; readonly onExpiry?: "approve" | "deny" };
  /** MCP servers of `createCapstan({ mcp })` whose tools it has, all of them or those that patterns name; see docs/mcp.md. */
  readonly mcp?: readonly McpUseSpec[];
  /** Gives the agent the built-in tool `agent`, by which it starts runs of these agents and waits for their results. */
  readonly spawn?: SpawnSpec;
  /** Patterns of what the agent may use (`model:anthropic:*`, `tool:*`, `mcp:github/*`, `summarizer:*`). Absent: all that this definition names. */
  readonly grants?: readonly string[];
  readonly onWarn?: WarnSink;
}

export interface Agent<Input = unknown, Output = unknown> {
  readonly name: string;
  readonly definition: AgentDefinition;
  /** False: tools of MCP servers are missing from the definition. Only a worker knows them, so runs get the promoted one. */
  readonly isComplete?: boolean;
  readonly code: AgentCode;
  /** Checks and completes an input as the agent's own schema does (defaults applied). */
  readonly parseInput: (input: unknown) => { readonly ok: true; readonly value: unknown } | { readonly ok: false; readonly issues: readonly { path: string; message: string }[] };
  /** For types only: never set. */
  readonly types?: { readonly input: Input; readonly output: Output };
}

/** Throws ConfigError naming the field and its range. */
export function agent<Input extends z.ZodType = z.ZodType<string>, Output extends z.ZodType = z.ZodType<string>>(
  spec: AgentSpec<Input, Output>,
): Agent<z.input<Input>, z.output<Output>> {
  const {
    name,
    model,
    fallbacks,
    instructions,
    tools: listed = [],
    approvals,
    spawn,
    input,
    output,
    settings,
    limits,
    interactive,
    warnTranscriptBytes,
    compaction,
    budget,
    claimCheck,
    grants,
    mcp,
    onWarn,
    ...strange
  } = spec;
  const where = `agent ${JSON.stringify(name)}`;
  refuseStrange(where, strange);
  if (onWarn !== undefined && typeof onWarn !== "function") throw new ConfigError(where, [{ path: "onWarn", message: "must be a function" }]);
  if (!Array.isArray(listed)) throw new ConfigError(where, [{ path: "tools", message: "must be a list of what tool() gives" }]);
  const tools: readonly Tool[] = spawn === undefined ? listed : [...listed, agentTool()];
  checkTools(where, tools, output !== undefined);
  const uses = mcp === undefined ? undefined : parseMcpUses(where, mcp);
  // Which of them a server really has is known to workers alone.
  const has = (named: string): boolean => tools.some((t) => t.definition.name === named) || (uses ?? []).some(({ server }) => named.startsWith(mcpPrefix(server)));
  const candidate = dropUnset({
    name,
    model,
    fallbacks,
    instructions,
    tools: tools.map((t) => t.definition),
    input_schema: input && inputSchemaOf(where, input),
    output_schema: output && checkableSchema(where, "output", jsonSchemaOf(where, "output", output, "output")),
    settings: settings && snakeKeys(settings),
    limits: limits && snakeKeys(limits),
    interactive,
    warn_transcript_bytes: warnTranscriptBytes,
    compaction,
    budget,
    claim_check: claimCheck && snakeKeys(claimCheck),
    approvals: approvals && snakeKeys(approvals),
    spawn: spawn && snakeKeys(spawn),
    grants,
  });
  const parsed = agentDefinition.safeParse(candidate);
  if (!parsed.success) throw new ConfigError(where, camelIssues(parsed.error));
  const conflicts = [
    ...policyIssues(parsed.data.compaction).map(({ path, message }) => ({ path: `compaction.${path}`, message })),
    ...budgetIssues(parsed.data.budget).map(({ path, message }) => ({ path: `budget.${path}`, message })),
  ];
  if (conflicts.length > 0) throw new ConfigError(where, conflicts);
  checkModelName(where, "model", model);
  fallbacks?.forEach((fallback, i) => checkModelName(where, `fallbacks.${i}`, fallback));
  const unknown = (approvals?.tools ?? []).filter((named) => named !== "*" && !has(named));
  if (unknown.length > 0) throw new ConfigError(where, [{ path: "approvals.tools", message: `names ${unknown.join(", ")}, which the agent does not have` }]);
  const strangers = (claimCheck?.tools ?? []).filter((named) => !has(named));
  if (strangers.length > 0) throw new ConfigError(where, [{ path: "claimCheck.tools", message: `names ${strangers.join(", ")}, which the agent does not have` }]);
  const own = tools.filter((t) => t.engine !== undefined && (claimCheck?.tools ?? []).includes(t.definition.name));
  if (own.length > 0) {
    throw new ConfigError(where, [
      { path: "claimCheck.tools", message: `names ${own.map((t) => t.definition.name).join(", ")}, by which an agent sees what is kept from it; list the tools that work` },
    ]);
  }
  return {
    name,
    definition: normalizeDefinition(parsed.data),
    ...(uses === undefined ? {} : { isComplete: false }),
    code: { name, tools: new Map(tools.map((t) => [t.definition.name, t])), onWarn, ...(uses === undefined ? {} : { mcp: uses }) },
    parseInput: (value) => (input === undefined ? { ok: true, value } : fromZod(input.safeParse(value))),
  };
}

function checkTools(where: string, tools: readonly Tool[], hasOutput: boolean): void {
  const refuse = (message: string): ConfigError => new ConfigError(where, [{ path: "tools", message }]);
  if (!tools.every(isTool)) throw refuse("must be a list of what tool() gives");
  const names = new Set<string>();
  for (const { definition } of tools) {
    if (names.has(definition.name)) throw refuse(`has two tools named ${definition.name}`);
    if (isMcpName(definition.name)) throw refuse(`has a tool named ${definition.name}; names of that form are those of MCP servers' tools`);
    names.add(definition.name);
  }
  if (hasOutput && names.has(SUBMIT_OUTPUT_TOOL)) throw refuse(`has a tool named ${SUBMIT_OUTPUT_TOOL}, which is the built-in one of every agent with an output schema`);
}

/**
 * What is stored is the parsed input, and a worker checks it once more, against the stored schema. A transform would make
 * those two disagree, so the schema must be expressible from both sides.
 */
function inputSchemaOf(where: string, input: z.ZodType): JsonObject {
  jsonSchemaOf(where, "input", input, "output");
  return checkableSchema(where, "input", jsonSchemaOf(where, "input", input));
}

/** A schema that the worker could not read would stop every run of the agent, long after its definition. */
function checkableSchema(where: string, field: string, schema: JsonObject): JsonObject {
  try {
    checkAgainst(schema, null);
  } catch (error) {
    throw new ConfigError(where, [{ path: field, message: `has a JSON Schema that cannot be checked: ${error instanceof Error ? error.message : String(error)}` }]);
  }
  return schema;
}

function checkModelName(where: string, path: string, model: string): void {
  if (/^[a-z][a-z0-9_-]*:.+$/.test(model)) return;
  throw new ConfigError(where, [{ path, message: `${JSON.stringify(model)} must name its provider, as in "anthropic:…", "openai:…", "ollama:…" or "offline:auditor"` }]);
}

/** An agent of whatever input and output: what takes many of them. */
export type AnyAgent = Omit<Agent, "types">;
