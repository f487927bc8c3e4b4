/** Anthropic Messages API (platform.claude.com/docs, read 2026-11). */
import type { JsonObject, JsonValue } from "../domain/json.ts";
import type { AssistantPart } from "../domain/transcript/message.ts";
import { findModel } from "./models.ts";
import { packageVersion } from "./package-version.ts";
import type { Vendor } from "./vendor.ts";

export const ANTHROPIC_BASE_URL = "https://api.anthropic.com/v1";

/**
 * The API demands max_tokens. The client's own default is all that the model can write (64,000 to 128,000), and models
 * before Claude 4.5 refuse a request whose input and max_tokens together pass the window: too high a default makes the
 * window smaller. Too low a one cuts long answers, of which the model is told. 32,000 holds any answer but a book.
 */
const DEFAULT_MAX_OUTPUT_TOKENS = 32_000;

export interface AnthropicOptions {
  readonly model: string;
  readonly apiKey: string;
  readonly baseUrl: string;
  readonly headers?: Readonly<Record<string, string>>;
}

export function anthropicVendor(options: AnthropicOptions): Vendor {
  const known = findModel(`anthropic:${options.model}`);
  return {
    client: packageVersion("@ai-sdk/anthropic"),
    structuredOutput: hasNativeStructuredOutput(options.model),
    shape: {
      optionsKey: "anthropic",
      // `container` and `thread` name things that Anthropic keeps between requests.
      statefulOptions: ["container", "thread"],
      cacheMark: { cacheControl: { type: "ephemeral" } },
      maxCacheMarks: 4,
      defaultMaxOutputTokens: Math.min(DEFAULT_MAX_OUTPUT_TOKENS, known?.maxOutputTokens ?? 8_192),
      legalCallId: (id) => (id === "" ? "call" : id.replaceAll(/[^a-zA-Z0-9_-]/g, "_")),
      sendableParts: signedReasoningOnly,
    },
    usageInEvent,
    open: async (fetch) => {
      const { createAnthropic } = await import("@ai-sdk/anthropic");
      return createAnthropic({
        apiKey: options.apiKey,
        baseURL: withVersion(options.baseUrl),
        fetch,
        ...(options.headers === undefined ? {} : { headers: { ...options.headers } }),
      })(options.model);
    },
  };
}

/** Anthropic's own SDKs take a base URL without the version, the client used here takes one with it: both are accepted. */
function withVersion(baseUrl: string): string {
  const trimmed = baseUrl.replace(/\/+$/, "");
  return new URL(trimmed).pathname === "/" ? `${trimmed}/v1` : trimmed;
}

/** Models of which Anthropic documents structured outputs (Claude 4.5 and later, and Opus 4.1). Others use `submit_output`. */
function hasNativeStructuredOutput(model: string): boolean {
  return /^claude-(?:(?:opus|sonnet|haiku|fable|mythos)-(?:4-[5-9]|[5-9])|opus-4-1)(?:$|[-@])/.test(model);
}

/** Thinking goes back with its signature or not at all: that of other vendors (after a switch of models) is left out. */
function signedReasoningOnly(parts: readonly AssistantPart[]): readonly AssistantPart[] {
  return parts.filter((part) => {
    if (part.type !== "reasoning") return true;
    const own = part.metadata?.["anthropic"] as JsonObject | undefined;
    return typeof own?.["signature"] === "string" || typeof own?.["redactedData"] === "string";
  });
}

/** Counts are additive: `input_tokens` is only what was neither read from the cache nor written to it. */
function usageInEvent(event: JsonValue): { input?: number; output?: number; cache_read?: number; cache_write?: number } | undefined {
  if (typeof event !== "object" || event === null || Array.isArray(event)) return undefined;
  const { type, message, usage: own } = event as { type?: JsonValue; message?: { usage?: JsonObject }; usage?: JsonObject };
  const usage = type === "message_start" ? message?.usage : type === "message_delta" ? own : undefined;
  if (usage === undefined) return undefined;
  const { input_tokens, output_tokens, cache_read_input_tokens, cache_creation_input_tokens } = usage;
  const number = (value: JsonValue | undefined) => (typeof value === "number" ? value : 0);
  return {
    ...(typeof input_tokens === "number" ? { input: input_tokens + number(cache_read_input_tokens) + number(cache_creation_input_tokens) } : {}),
    ...(typeof cache_read_input_tokens === "number" ? { cache_read: cache_read_input_tokens } : {}),
    ...(typeof cache_creation_input_tokens === "number" ? { cache_write: cache_creation_input_tokens } : {}),
    ...(typeof output_tokens === "number" ? { output: output_tokens } : {}),
  };
}
