/**
 * The canonical call: everything about one model request that does not depend on a provider's client. It is a pure
 * function of journal positions (transcript/render.ts) and what P5 promises to be the same bytes for ever.
 */
import type { JsonObject } from "./json.ts";
import type { Message } from "./transcript/message.ts";

/** A tool as the model sees it. `inputSchema` is JSON Schema (draft 2020-12 as zod writes it). */
export interface ToolSpec {
  readonly name: string;
  readonly description: string;
  readonly inputSchema: JsonObject;
}

/** Settings that a definition may set; absent ones are left to the provider. */
export interface CallSettings {
  readonly maxOutputTokens?: number;
  readonly temperature?: number;
  readonly topP?: number;
  readonly seed?: number;
  readonly reasoningEffort?: "low" | "medium" | "high";
  readonly stopSequences?: readonly string[];
  /** Passed through to the provider's client under the provider's own name. */
  readonly providerOptions?: JsonObject;
}

/** Structured output asked of the provider natively. Absent when the agent has no output schema or uses `submit_output`. */
export interface CallOutput {
  readonly name: string;
  readonly schema: JsonObject;
}

export interface CanonicalCall {
  readonly renderVersion: number;
  /** Full model name with its provider: `anthropic:claude-…`, `openai:gpt-…`, `offline:auditor`. */
  readonly model: string;
  readonly system: string;
  readonly tools: readonly ToolSpec[];
  readonly messages: readonly Message[];
  readonly settings: CallSettings;
  readonly output?: CallOutput;
  /**
   * Cache breakpoints: indexes into `messages` after which a vendor is told to cache; system and tools always carry
   * one. Not part of the prefix chain, so a moved breakpoint does not change the prefix.
   */
  readonly breakpoints: readonly number[];
}
