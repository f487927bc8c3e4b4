/** From a definition and a view to the canonical call: a pure, versioned function (P5). */
import type { CallSettings, CanonicalCall, ToolSpec } from "../call.ts";
import { AGENT_TOOL, normalizeDefinition, type AgentDefinition } from "../definition.ts";
import type { JsonObject } from "../json.ts";
import type { Message } from "./message.ts";

/** Raised whenever the same rows would give other bytes. Older versions stay renderable for ever. */
export const RENDER_VERSION = 1;

/** The tool by which an agent with an output schema ends when its model has no structured output of its own. */
export const SUBMIT_OUTPUT_TOOL = "submit_output";

export type CallFrame = Omit<CanonicalCall, "messages" | "breakpoints">;

/**
 * The parts of a call that stay the same over a run: computed once per definition and model. `withoutTools` leaves out the
 * definition's tools, for a last turn; the tool that gives a structured result stays.
 */
export function renderFrame(stored: AgentDefinition, model: string, structuredOutput: boolean, { withoutTools = false }: { readonly withoutTools?: boolean } = {}): CallFrame {
  const definition = normalizeDefinition(stored);
  const submits = definition.output_schema !== undefined && !structuredOutput;
  const tools: ToolSpec[] = (withoutTools ? [] : definition.tools).map(({ name, description, input_schema }) => ({
    name,
    // Which agents it may start is the definition's to say: a fork that narrows it has the same tool.
    description: name === AGENT_TOOL && definition.spawn !== undefined ? `${description} Agents you may start: ${mayStart(definition.spawn.agents)}.` : description,
    inputSchema: input_schema,
  }));
  if (submits) {
    tools.push({
      name: SUBMIT_OUTPUT_TOOL,
      description: "Give the final result of the task. Call this once, when the task is done; it ends the run.",
      inputSchema: definition.output_schema as JsonObject,
    });
  }
  const output = definition.output_schema !== undefined && structuredOutput ? { output: { name: "output", schema: definition.output_schema } } : {};
  return { renderVersion: RENDER_VERSION, model, system: definition.instructions, tools, settings: renderSettings(definition), ...output };
}

/**
 * Where vendors that need to be told are asked to cache: after the first message and after the last two. System and
 * tools always carry one. Four in all, the most that Anthropic takes (docs.anthropic.com, prompt caching, 2026-11).
 */
export function breakpointsOf(messageCount: number): number[] {
  return [...new Set([0, messageCount - 2, messageCount - 1])].filter((index) => index >= 0 && index < messageCount);
}

function mayStart(agents: readonly string[]): string {
  return agents.includes("*") ? "any that is known" : agents.join(", ");
}

export function renderCall(frame: CallFrame, messages: readonly Message[], breakpoints: readonly number[] = breakpointsOf(messages.length)): CanonicalCall {
  return { ...frame, messages, breakpoints };
}

function renderSettings(definition: AgentDefinition): CallSettings {
  const s = definition.settings ?? {};
  return {
    ...(s.max_output_tokens === undefined ? {} : { maxOutputTokens: s.max_output_tokens }),
    ...(s.temperature === undefined ? {} : { temperature: s.temperature }),
    ...(s.top_p === undefined ? {} : { topP: s.top_p }),
    ...(s.seed === undefined ? {} : { seed: s.seed }),
    ...(s.reasoning_effort === undefined ? {} : { reasoningEffort: s.reasoning_effort }),
    ...(s.stop_sequences === undefined ? {} : { stopSequences: s.stop_sequences }),
    ...(s.provider_options === undefined ? {} : { providerOptions: s.provider_options }),
  };
}
