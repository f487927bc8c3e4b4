/** OpenAI: the Responses API (`openai:`) and Chat Completions (`openai-chat:`) (developers.openai.com, read 2026-11). */
import { createHash } from "node:crypto";
import type { CanonicalCall } from "../domain/call.ts";
import type { JsonObject, JsonValue } from "../domain/json.ts";
import type { AssistantPart } from "../domain/transcript/message.ts";
import { packageVersion } from "./package-version.ts";
import type { RequestShape, Vendor } from "./vendor.ts";

export const OPENAI_BASE_URL = "https://api.openai.com/v1";

export interface OpenAiOptions {
  readonly model: string;
  readonly apiKey: string;
  readonly baseUrl: string;
  readonly headers?: Readonly<Record<string, string>>;
}

/** Longest call id that Chat Completions takes back; the Responses API takes 64. */
const MAX_CALL_ID_CHARS = 40;

const shared: Pick<RequestShape, "optionsKey" | "legalCallId" | "defaultOptions"> = {
  optionsKey: "openai",
  legalCallId: shortCallId,
  // Strict schemas must name every property as required; one that does not is sent as not strict rather than refused.
  defaultOptions: (call: CanonicalCall) => (call.output !== undefined && !isStrictSchema(call.output.schema) ? { strictJsonSchema: false } : {}),
};

export function openAiResponsesVendor(options: OpenAiOptions): Vendor {
  return {
    client: packageVersion("@ai-sdk/openai"),
    structuredOutput: hasNativeStructuredOutput(options.model),
    shape: {
      ...shared,
      // Nothing may be left with the vendor: reasoning comes back encrypted and goes out with the next request.
      forcedOptions: { store: false },
      defaultOptions: (call) => ({ ...shared.defaultOptions?.(call), include: ["reasoning.encrypted_content"] }),
      statefulOptions: ["previousResponseId", "conversation"],
      sendableParts: encryptedReasoningOnly,
    },
    open: async (fetch) => (await provider(options, fetch)).responses(options.model),
  };
}

export function openAiChatVendor(options: OpenAiOptions): Vendor {
  return {
    client: packageVersion("@ai-sdk/openai"),
    structuredOutput: hasNativeStructuredOutput(options.model),
    shape: { ...shared, forcedOptions: { store: false }, sendableParts: (parts) => parts.filter((part) => part.type !== "reasoning") },
    open: async (fetch) => (await provider(options, fetch)).chat(options.model),
  };
}

async function provider(options: OpenAiOptions, fetch: typeof globalThis.fetch) {
  const { createOpenAI } = await import("@ai-sdk/openai");
  return createOpenAI({
    apiKey: options.apiKey,
    baseURL: options.baseUrl,
    fetch,
    ...(options.headers === undefined ? {} : { headers: { ...options.headers } }),
  });
}

/**
 * A reasoning item without its encrypted content would be looked up at the vendor by id and not be found. The content
 * may stand on any one of an item's parts.
 */
function encryptedReasoningOnly(parts: readonly AssistantPart[]): readonly AssistantPart[] {
  const own = (part: AssistantPart) => part.metadata?.["openai"] as JsonObject | undefined;
  const complete = new Set(parts.filter((part) => part.type === "reasoning" && typeof own(part)?.["reasoningEncryptedContent"] === "string").map((part) => own(part)?.["itemId"]));
  return parts.filter((part) => part.type !== "reasoning" || (own(part) !== undefined && complete.has(own(part)?.["itemId"])));
}

function shortCallId(id: string): string {
  if (id === "") return "call";
  if (id.length <= MAX_CALL_ID_CHARS) return id;
  return `${id.slice(0, MAX_CALL_ID_CHARS - 17)}_${createHash("sha256").update(id).digest("hex").slice(0, 16)}`;
}

/** All but the models that OpenAI had before structured outputs (August 2024). */
function hasNativeStructuredOutput(model: string): boolean {
  return !/^(?:gpt-3\.5|gpt-4(?:$|-(?:turbo|\d{4}))|gpt-4o-2024-05-13|o1-(?:mini|preview))/.test(model);
}

/** OpenAI's strict mode: every object closed and every property required, all the way down. */
export function isStrictSchema(schema: JsonValue): boolean {
  if (Array.isArray(schema)) return schema.every(isStrictSchema);
  if (typeof schema !== "object" || schema === null) return true;
  const object = schema as JsonObject;
  if (object["type"] === "object" || object["properties"] !== undefined) {
    const names = Object.keys((object["properties"] as JsonObject | undefined) ?? {});
    const required = (object["required"] as readonly JsonValue[] | undefined) ?? [];
    if (object["additionalProperties"] !== false || !names.every((name) => required.includes(name))) return false;
  }
  return Object.entries(object).every(([key, value]) =>
    key === "required" || key === "enum" || key === "const" || key === "default" || key === "examples" ? true : isStrictSchema(value),
  );
}
