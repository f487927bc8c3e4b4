/**
 * Reads a provider's stream to its end and keeps what came, in the order in which the blocks began. Text, names and
 * arguments are made storable; metadata is kept exactly as sent, unless it holds what jsonb refuses.
 */
import type { LanguageModelV4FinishReason, LanguageModelV4StreamPart, LanguageModelV4Usage, SharedV4ProviderMetadata } from "@ai-sdk/provider";
import type { ModelDelta } from "../domain/delta.ts";
import { canonicalJson, parseJson, toJsonValue, wellFormedText, type JsonObject, type JsonValue } from "../domain/json.ts";
import type { AssistantPart, ToolCallPart } from "../domain/transcript/message.ts";
import type { Usage } from "../domain/usage.ts";
import type { FinishReason, ModelCallContext, ModelResponse } from "../engine/model-port.ts";
import type { Vendor } from "./vendor.ts";

type Block = { readonly kind: "text" | "reasoning"; text: string; metadata: SharedV4ProviderMetadata | undefined } | { readonly kind: "call"; readonly part: ToolCallPart };

export type Collected =
  | {
      readonly kind: "complete";
      readonly response: Omit<ModelResponse, "usage">;
      /** Absent if the vendor counted nothing. */ readonly usage?: Usage;
    }
  /** The vendor streamed an error. */
  | { readonly kind: "error"; readonly error: unknown; readonly usage?: Usage }
  /** The stream closed and never said that the answer is complete. */
  | { readonly kind: "cut"; readonly usage?: Usage };

export class StreamCollector {
  readonly #blocks: Block[] = [];
  readonly #open = new Map<string, Extract<Block, { kind: "text" | "reasoning" }>>();
  /** Calls whose arguments are being written, by the vendor's id for the input. */
  readonly #inputs = new Map<string, { readonly index: number; readonly name: string }>();
  #onDelta: ModelCallContext["onDelta"];
  readonly #usageInEvent: Vendor["usageInEvent"];
  #error: { readonly error: unknown } | undefined;
  #finish: { readonly reason: LanguageModelV4FinishReason; readonly usage: LanguageModelV4Usage } | undefined;
  #partialUsage: { input?: number; output?: number; cache_read?: number; cache_write?: number } | undefined;
  #servedModel: string | undefined;
  #responseId: string | undefined;
  /** Whether anything of an answer has come. */
  answering = false;

  constructor(options: { readonly onDelta?: ModelCallContext["onDelta"]; readonly usageInEvent?: Vendor["usageInEvent"] }) {
    this.#onDelta = options.onDelta;
    this.#usageInEvent = options.usageInEvent;
  }

  /** Takes one part; kinds that we do not know (sources, files, the vendor's own tools) are passed over. */
  take(part: LanguageModelV4StreamPart): void {
    if (part.type !== "stream-start" && part.type !== "error") this.answering = true;
    switch (part.type) {
      case "text-start":
      case "reasoning-start":
        this.#block(part.type === "text-start" ? "text" : "reasoning", part.id, part.providerMetadata);
        return;
      case "text-delta":
      case "reasoning-delta": {
        const kind = part.type === "text-delta" ? "text" : "reasoning";
        const block = this.#open.get(`${kind} ${part.id}`) ?? this.#block(kind, part.id, undefined);
        block.text += part.delta;
        block.metadata = merged(block.metadata, part.providerMetadata);
        if (part.delta !== "") this.#live({ kind, text: part.delta });
        return;
      }
      case "text-end":
      case "reasoning-end": {
        const key = `${part.type === "text-end" ? "text" : "reasoning"} ${part.id}`;
        const block = this.#open.get(key);
        if (block !== undefined) block.metadata = merged(block.metadata, part.providerMetadata);
        this.#open.delete(key);
        return;
      }
      case "tool-input-start":
        // The vendor's own tools are not among the answer's calls.
        if (part.providerExecuted !== true) this.#inputs.set(part.id, { index: this.#inputs.size, name: part.toolName });
        return;
      case "tool-input-delta": {
        const input = this.#inputs.get(part.id);
        if (input !== undefined && part.delta !== "") this.#live({ kind: "tool_arguments", text: part.delta, ...input });
        return;
      }
      case "tool-call":
        // The vendor runs its own tools itself; their calls are not ours to answer.
        if (part.providerExecuted !== true) this.#blocks.push({ kind: "call", part: toolCall(part) });
        return;
      case "response-metadata":
        if (part.id !== undefined && part.id !== null) this.#responseId = wellFormedText(part.id);
        if (part.modelId !== undefined && part.modelId !== null) this.#servedModel = wellFormedText(part.modelId);
        return;
      case "finish":
        this.#finish = { reason: part.finishReason, usage: part.usage };
        return;
      case "error":
        this.#error ??= { error: part.error };
        return;
      case "raw": {
        const event = this.#usageInEvent === undefined ? undefined : toJsonValue(part.rawValue);
        const usage = event?.ok === true ? this.#usageInEvent?.(event.value) : undefined;
        if (usage !== undefined) this.#partialUsage = { ...this.#partialUsage, ...usage };
        return;
      }
      default:
        return;
    }
  }

  /** To be called when the stream has ended, well or not. */
  result(): Collected {
    if (this.#error !== undefined) return { kind: "error", error: this.#error.error, ...this.#usageSoFar() };
    // "interrupted" is how some clients report a stream that closed without the vendor's last event.
    if (this.#finish === undefined || this.#finish.reason.unified === "interrupted") return { kind: "cut", ...this.#usageSoFar() };
    const { reason, usage } = this.#finish;
    if (reason.unified === "error")
      return {
        kind: "error",
        error: { message: `the provider ended its answer with an error${reason.raw === undefined ? "" : ` (${reason.raw})`}` },
        ...this.#usageSoFar(),
      };
    const rawUsage = storable(usage.raw);
    return {
      kind: "complete",
      response: {
        kind: "responded",
        content: this.#content(),
        finish: { reason: FINISH[reason.unified] ?? "other", ...(reason.raw === undefined ? {} : { raw: wellFormedText(reason.raw) }) },
        ...(rawUsage === undefined ? {} : { rawUsage }),
        ...(this.#servedModel === undefined ? {} : { servedModel: this.#servedModel }),
        ...(this.#responseId === undefined ? {} : { responseId: this.#responseId }),
      },
      ...(isReported(usage) ? { usage: toUsage(usage) } : {}),
    };
  }

  #block(kind: "text" | "reasoning", id: string, metadata: SharedV4ProviderMetadata | undefined): Extract<Block, { kind: "text" | "reasoning" }> {
    const block = { kind, text: "", metadata };
    this.#blocks.push(block);
    this.#open.set(`${kind} ${id}`, block);
    return block;
  }

  /** Live text is a courtesy: a listener that throws must not cost a paid answer. */
  #live(delta: ModelDelta): void {
    try {
      this.#onDelta?.(delta);
    } catch {
      this.#onDelta = undefined;
    }
  }

  #content(): AssistantPart[] {
    return this.#blocks.flatMap((block): AssistantPart[] => {
      if (block.kind === "call") return [block.part];
      const metadata = storable(block.metadata);
      // Reasoning without text still carries its signature or encrypted content; text without text carries nothing.
      if (block.text === "" && (block.kind === "text" || metadata === undefined)) return [];
      return [{ type: block.kind, text: wellFormedText(block.text), ...(metadata === undefined ? {} : { metadata }) }];
    });
  }

  #usageSoFar(): { usage?: Usage } {
    if (this.#finish !== undefined && isReported(this.#finish.usage)) return { usage: toUsage(this.#finish.usage) };
    const { input, output, ...cache } = this.#partialUsage ?? {};
    if (input === undefined && output === undefined) return {};
    return { usage: { input: input ?? 0, output: output ?? 0, ...cache, scale: "provider" } };
  }
}

const FINISH: Readonly<Record<LanguageModelV4FinishReason["unified"], FinishReason>> = {
  stop: "stop",
  length: "length",
  "content-filter": "content_filter",
  "tool-calls": "tool_calls",
  error: "error",
  interrupted: "error",
  other: "other",
};

/** Input is the whole footprint: clients already add cached tokens where the vendor counts them apart. */
function toUsage(usage: LanguageModelV4Usage): Usage {
  const { inputTokens, outputTokens } = usage;
  return {
    input: count(inputTokens.total) ?? 0,
    output: count(outputTokens.total) ?? 0,
    ...(count(inputTokens.cacheRead) === undefined ? {} : { cache_read: count(inputTokens.cacheRead) }),
    ...(count(inputTokens.cacheWrite) === undefined ? {} : { cache_write: count(inputTokens.cacheWrite) }),
    ...(count(outputTokens.reasoning) === undefined ? {} : { reasoning: count(outputTokens.reasoning) }),
    scale: "provider",
  };
}

function isReported(usage: LanguageModelV4Usage): boolean {
  return usage.inputTokens.total !== undefined || usage.outputTokens.total !== undefined;
}

function count(tokens: number | undefined): number | undefined {
  return tokens !== undefined && Number.isFinite(tokens) && tokens >= 0 ? tokens : undefined;
}

/** `arguments` is kept where the parsed form does not say the same: other spacing, other order, or no JSON at all. */
function toolCall(call: { readonly toolCallId: string; readonly toolName: string; readonly input: string; readonly providerMetadata?: SharedV4ProviderMetadata }): ToolCallPart {
  const written = wellFormedText(call.input);
  const metadata = storable(call.providerMetadata);
  const base = {
    type: "tool_call",
    call_id: wellFormedText(call.toolCallId),
    name: wellFormedText(call.toolName),
    ...(metadata === undefined ? {} : { metadata }),
  } as const;
  // Some servers send no text at all for a call without arguments.
  const parsed = written.trim() === "" ? parseJson("{}") : parseJson(written);
  if (!parsed.ok)
    return {
      ...base,
      arguments: written,
      invalid: `arguments are not valid JSON: ${parsed.problem.problem}${parsed.problem.path === "$" ? "" : ` at ${parsed.problem.path}`}`,
    };
  if (typeof parsed.value !== "object" || parsed.value === null || Array.isArray(parsed.value)) {
    return { ...base, arguments: written, invalid: `arguments must be a JSON object, not ${kindOf(parsed.value)}` };
  }
  return canonicalJson(parsed.value) === written ? { ...base, input: parsed.value } : { ...base, input: parsed.value, arguments: written };
}

function kindOf(value: JsonValue): string {
  return value === null ? "null" : Array.isArray(value) ? "an array" : `a ${typeof value}`;
}

/** Later metadata completes earlier: a signature comes with the last delta, encrypted content with the end of a block. */
function merged(earlier: SharedV4ProviderMetadata | undefined, later: SharedV4ProviderMetadata | undefined): SharedV4ProviderMetadata | undefined {
  if (later === undefined) return earlier;
  if (earlier === undefined) return later;
  const out = { ...earlier };
  for (const [provider, members] of Object.entries(later)) out[provider] = { ...out[provider], ...members };
  return out;
}

function storable(value: unknown): JsonObject | undefined {
  if (value === undefined || value === null) return undefined;
  const json = toJsonValue(value);
  if (!json.ok || typeof json.value !== "object" || json.value === null || Array.isArray(json.value)) return undefined;
  return json.value as JsonObject;
}
