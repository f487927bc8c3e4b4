/** Describes calls to the capability ring: what they need, what a guard may look at, the most that they can take. */
import type { CanonicalCall } from "../domain/call.ts";
import type { AgentDefinition, ToolDefinition } from "../domain/definition.ts";
import { normalizeDefinition } from "../domain/definition.ts";
import { grantsOf } from "../domain/grants.ts";
import { toolResource } from "../domain/mcp-name.ts";
import { taintOfView } from "../domain/taint-origins.ts";
import type { AskMove } from "./boundary.ts";
import type { ModelOutcome } from "./model-port.ts";
import type { Effect } from "./ports.ts";
import type { Turn } from "./turn.ts";

/**
 * Bytes of a request per token, at the least: text that vendors count is rarely denser. Too high a number would reserve
 * too little and let a quota be passed; too low a one only keeps back what is given back after the call.
 */
const MIN_BYTES_PER_TOKEN = 3;
/** Where neither the definition nor the provider says how much a model may write (src/providers/anthropic.ts asks for less). */
const DEFAULT_MAX_OUTPUT_TOKENS = 32_000;

const prompts = new WeakMap<AgentDefinition, string>();

export function modelEffect(turn: Turn, move: AskMove, call: CanonicalCall, sizeBytes: number): Effect {
  const { deps } = turn;
  const { definition, model } = move;
  const inputTokens = Math.ceil(sizeBytes / MIN_BYTES_PER_TOKEN);
  const maxOutputTokens = call.settings.maxOutputTokens ?? DEFAULT_MAX_OUTPUT_TOKENS;
  const most = { input: inputTokens, output: maxOutputTokens, scale: "estimate" } as const;
  return {
    kind: "model",
    name: model.name,
    ...runOf(turn),
    turn: move.turn,
    attempt: move.attempt,
    grants: grantsOf(definition),
    request: call,
    system: ownSystemPrompt(definition),
    estimate: { inputTokens, maxOutputTokens, costUsdMicros: deps.models.costUsdMicros(model.name, most) ?? 0 },
    get taint() {
      return taintOf(turn);
    },
  };
}

export function toolEffect(turn: Turn, tool: ToolDefinition, input: unknown, attempt: number): Effect {
  const { session } = turn;
  const { definition } = session.memory;
  return {
    kind: "tool",
    name: tool.name,
    needs: [toolResource(tool.name)],
    ...runOf(turn),
    turn: session.state.turn,
    attempt,
    grants: definition === undefined ? [] : grantsOf(definition),
    request: input,
    // The model wrote these arguments having read the view.
    get taint() {
      return taintOf(turn);
    },
  };
}

/** What the vendor may have billed without saying so: the call was under way when it ended. */
export function isPossiblyBilled(outcome: ModelOutcome): boolean {
  if (outcome.kind === "aborted") return true;
  return outcome.kind === "failed" && outcome.usage === undefined && (outcome.code === "PROVIDER_STREAM_CUT" || outcome.code === "MODEL_TIMEOUT");
}

function runOf(turn: Turn) {
  const { id, tenant, agent } = turn.session.memory.row;
  return { runId: id, tenant, agent };
}

/** Read by guards alone, so it is found only when one asks. Every view that begins with a summary counts as tainted. */
function taintOf(turn: Turn): string[] {
  const { state } = turn.session;
  return taintOfView({ messages: state.view, summaryIsTainted: state.marker !== undefined });
}

function ownSystemPrompt(definition: AgentDefinition): string {
  let prompt = prompts.get(definition);
  if (prompt === undefined) {
    prompt = normalizeDefinition(definition).instructions;
    prompts.set(definition, prompt);
  }
  return prompt;
}
