/** Pure decisions about what an answer without tool calls means, and about the model that is asked next. */
import type { AgentDefinition } from "./definition.ts";
import type { EventPayload } from "./event.ts";
import type { RunState } from "./fold.ts";
import { parseJson, type JsonValue } from "./json.ts";
import { MAX_CORRECTIONS, type ResolvedLimits } from "./limits.ts";
import { answerText } from "./transcript/message.ts";
import { SUBMIT_OUTPUT_TOOL } from "./transcript/render.ts";

export type CheckOutput = (output: JsonValue) => { readonly ok: true } | { readonly ok: false; readonly issues: string };

export type AnswerDecision =
  | { readonly kind: "complete"; readonly output: JsonValue }
  /** An interactive run waits for the next input. */
  | { readonly kind: "await_input" }
  | { readonly kind: "correct"; readonly reason: EventPayload<"model.corrected">["reason"]; readonly text: string }
  | { readonly kind: "fail"; readonly code: string; readonly message: string };

/**
 * What a response without tool calls leads to. Empty, cut-off and invalid answers are told to the model, each kind at
 * most MAX_CORRECTIONS times in a row, then the run fails with that kind's code and its journal kept.
 */
export function decideAnswer(
  definition: AgentDefinition,
  state: RunState,
  response: Pick<EventPayload<"model.responded">, "content" | "finish">,
  checkOutput: CheckOutput,
): AnswerDecision {
  const text = answerText(response.content);
  if (response.finish.reason === "content_filter") {
    return { kind: "fail", code: "CONTENT_FILTERED", message: "the provider withheld the answer (content filter)" };
  }
  if (text.trim() === "") {
    return correct(state, "empty", "RESPONSE_EMPTY", "Your last response was empty. Continue with the task: call a tool, or answer.");
  }
  if (response.finish.reason === "length") {
    return correct(state, "truncated", "RESPONSE_TRUNCATED", "Your last response was cut off at the output limit. Continue exactly where it stopped, or answer more briefly.");
  }
  if (definition.output_schema === undefined) {
    return state.interactive ? { kind: "await_input" } : { kind: "complete", output: text };
  }
  const parsed = parseJson(text);
  const checked = parsed.ok ? checkOutput(parsed.value) : { ok: false as const, issues: `it is not JSON (${parsed.problem.problem})` };
  if (parsed.ok && checked.ok) return { kind: "complete", output: parsed.value };
  const issues = checked.ok ? "" : checked.issues;
  const how = usesSubmitTool(state, definition) ? `call the tool ${SUBMIT_OUTPUT_TOOL}` : "answer with JSON only";
  return correct(state, "output_invalid", "OUTPUT_INVALID", `Your result does not fit the output schema: ${issues}. Correct it and ${how}.`, issues);
}

function correct(state: RunState, reason: EventPayload<"model.corrected">["reason"], code: string, text: string, issues?: string): AnswerDecision {
  if (state.corrections[reason] < MAX_CORRECTIONS) return { kind: "correct", reason, text };
  const detail = issues === undefined ? "" : `: ${issues}`;
  return { kind: "fail", code, message: `the model was told ${MAX_CORRECTIONS} times and did it again (${reason})${detail}` };
}

function usesSubmitTool(state: RunState, definition: AgentDefinition): boolean {
  return definition.output_schema !== undefined && !state.nativeOutput;
}

/**
 * Which model a turn's next request goes to: the definition's own, then its fallbacks, each given up after
 * `modelAttempts` failures that count. Undefined when all are spent.
 */
export function modelFor(definition: AgentDefinition, modelFailures: number, limits: ResolvedLimits): string | undefined {
  return [definition.model, ...(definition.fallbacks ?? [])][Math.floor(modelFailures / limits.modelAttempts)];
}
