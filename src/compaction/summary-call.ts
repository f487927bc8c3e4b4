/** The one call of a summarizer: the instruction alone as system prompt, the material in one user message, no tools. */
import type { CanonicalCall } from "../domain/call.ts";
import { materialPreamble, wrapMaterial } from "../domain/compaction/material.ts";
import { SUMMARIZER_INPUT_ORIGIN } from "../domain/taint-origins.ts";
import { RENDER_VERSION } from "../domain/transcript/render.ts";

export interface SummaryRequest {
  readonly model: string;
  readonly instruction: string;
  /** Flattened by summarizerText. */
  readonly record: string;
  readonly previousSummary?: string | undefined;
  readonly obligations?: readonly string[] | undefined;
  readonly limitTokens: number;
  readonly targetTokens: number;
  /** Asks a model that reasons to think little. */
  readonly lowEffort: boolean;
}

export function summaryCall({ model, instruction, record, previousSummary, obligations, limitTokens, targetTokens, lowEffort }: SummaryRequest): CanonicalCall {
  const text = wrapMaterial({ origin: SUMMARIZER_INPUT_ORIGIN, record, previousSummary, obligations, targetTokens });
  return {
    renderVersion: RENDER_VERSION,
    model,
    system: instruction,
    tools: [],
    // The origin goes with the text: a guard and an audit see it, a vendor is not sent what stands under our name.
    messages: [{ role: "user", content: [{ type: "text", text, metadata: { capstan: { origin: SUMMARIZER_INPUT_ORIGIN } } }] }],
    settings: { maxOutputTokens: limitTokens, ...(lowEffort ? { reasoningEffort: "low" } : {}) },
    breakpoints: [],
  };
}

/** What a reply may repeat without saying anything. */
export function echoesOf({ instruction, targetTokens, previousSummary }: Pick<SummaryRequest, "instruction" | "targetTokens" | "previousSummary">): string[] {
  return [instruction, materialPreamble(targetTokens, previousSummary !== undefined)];
}

/** Bytes of a call beside its record: what the window must hold as well. */
export function frameBytes(request: Omit<SummaryRequest, "record">): number {
  const call = summaryCall({ ...request, record: "" });
  const [message] = call.messages;
  const part = message?.content[0];
  return Buffer.byteLength(call.system) + (part?.type === "text" ? Buffer.byteLength(part.text) : 0);
}

/**
 * Vendors whose client leaves the setting out for models that do not reason. Elsewhere a server may refuse a call for it.
 */
export function hasEffortSetting(model: string): boolean {
  return /^(?:openai|openai-chat|anthropic):/.test(model);
}
