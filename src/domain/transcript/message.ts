/**
 * The messages that a model sees, independent of any provider. They are derived from events and never stored as such;
 * their parts are. Field names are the stored ones (snake_case). A message's canonical bytes are
 * `canonicalJson(message)` in UTF-8: hashed per message (chain.ts) and counted in `transcript_bytes`.
 */
import { z } from "zod";
import { canonicalJson, type JsonObject, type JsonValue } from "../json.ts";

const jsonValue = z.custom<JsonValue>((v) => v !== undefined);
const metadata = z.custom<JsonObject>((v) => typeof v === "object" && v !== null && !Array.isArray(v));

export const textPart = z.object({ type: z.literal("text"), text: z.string(), metadata: metadata.optional() });

/** A provider's reasoning, kept exactly: signatures and encrypted content stand in `metadata` under the provider's name. */
export const reasoningPart = z.object({ type: z.literal("reasoning"), text: z.string(), metadata: metadata.optional() });

/** Media by reference: the bytes stand in `blobs` under the tenant. */
export const filePart = z.object({
  type: z.literal("file"),
  media_type: z.string(),
  sha256: z.string(),
  size_bytes: z.int().nonnegative(),
  filename: z.string().optional(),
});

/**
 * A tool call as the model made it. `input` is the parsed argument object and is what requests contain, in canonical
 * form. `arguments` is what the model wrote, present only when it differs from canonicalJson(input) or does not parse;
 * then `invalid` says why and `input` is absent.
 */
export const toolCallPart = z.object({
  type: z.literal("tool_call"),
  call_id: z.string(),
  name: z.string(),
  input: jsonValue.optional(),
  arguments: z.string().optional(),
  invalid: z.string().optional(),
  metadata: metadata.optional(),
});

/** A tool's answer. Text stays text; any other JSON value is shown to the model in canonical form. */
export const toolResultPart = z.object({
  type: z.literal("tool_result"),
  call_id: z.string(),
  name: z.string(),
  output: jsonValue,
  is_error: z.boolean().optional(),
});

export type FilePart = z.infer<typeof filePart>;
export type ToolCallPart = z.infer<typeof toolCallPart>;
export type ToolResultPart = z.infer<typeof toolResultPart>;

export const userPart = z.discriminatedUnion("type", [textPart, filePart]);
export const assistantPart = z.discriminatedUnion("type", [textPart, reasoningPart, toolCallPart]);
export type UserPart = z.infer<typeof userPart>;
export type AssistantPart = z.infer<typeof assistantPart>;

export type UserMessage = { readonly role: "user"; readonly content: readonly UserPart[] };
export type AssistantMessage = { readonly role: "assistant"; readonly content: readonly AssistantPart[] };
export type ToolMessage = { readonly role: "tool"; readonly content: readonly ToolResultPart[] };
export type Message = UserMessage | AssistantMessage | ToolMessage;

/** The canonical text of one message: what is hashed, counted and compared. */
export function messageText(message: Message): string {
  return canonicalJson(message as unknown as JsonValue);
}

/** The text a model reads for a tool's output. */
export function toolOutputText(output: JsonValue): string {
  return typeof output === "string" ? output : canonicalJson(output);
}

/** All text parts of an answer, joined. */
export function answerText(parts: readonly AssistantPart[]): string {
  return parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("");
}
