/**
 * How much of its window the next request takes: the one gauge of the percentage trigger, `op=self` and the marker, and
 * the lines it is compared with. Estimates are four UTF-8 bytes a token over what a vendor is really sent.
 */
import type { CanonicalCall } from "../call.ts";
import { canonicalJson, type JsonObject } from "../json.ts";
import { utf8Length } from "../transcript/chain.ts";
import { toolOutputText, type FilePart, type Message } from "../transcript/message.ts";
import type { TokenScale } from "../usage.ts";
import type { ResolvedPolicy } from "./policy.ts";

const BYTES_PER_TOKEN = 4;
/** What names, roles and braces around a part cost. Too low matters more: many small results add up. */
const PART_TOKENS = 4;
/**
 * The most that Anthropic counts for one image it scales itself (about 1.2 megapixels / 750); OpenAI and Gemini count
 * less. A part tells neither width nor height, and its bytes say nothing: base64 counted as text made new chats compact.
 */
const IMAGE_TOKENS = 1_600;
/** Documents: a page of 2,000 tokens takes some 200 KB in a scan and 20 KB as text. Bounded, so that one file alone is no alarm. */
const DOCUMENT_BYTES_PER_TOKEN = 100;
const MAX_DOCUMENT_TOKENS = 50_000;
/** Base64 of encrypted reasoning: four characters a token and a third more for the encoding. */
const ENCRYPTED_BYTES_PER_TOKEN = 6;

export const textTokens = (text: string): number => Math.ceil(utf8Length(text) / BYTES_PER_TOKEN);

/** Messages are never changed once they stand in a view, and a long run asks for all of them every turn. */
const known = new WeakMap<Message, number>();

export function messageTokens(message: Message): number {
  let tokens = known.get(message);
  if (tokens === undefined) {
    tokens = message.content.reduce((sum, part) => sum + PART_TOKENS + partTokens(part), PART_TOKENS);
    known.set(message, tokens);
  }
  return tokens;
}

export function estimateTokens(messages: readonly Message[]): number {
  return messages.reduce((sum, message) => sum + messageTokens(message), 0);
}

/** The part of a request that compaction does not touch: system prompt, tool schemas, output schema. */
export function frameTokens(frame: Pick<CanonicalCall, "system" | "tools" | "output">): number {
  const tools = frame.tools.reduce((sum, tool) => sum + PART_TOKENS + textTokens(tool.name) + textTokens(tool.description) + textTokens(canonicalJson(tool.inputSchema)), 0);
  return textTokens(frame.system) + tools + (frame.output === undefined ? 0 : textTokens(canonicalJson(frame.output.schema)));
}

function partTokens(part: Message["content"][number]): number {
  switch (part.type) {
    case "text":
      return textTokens(part.text);
    case "reasoning":
      return part.text === "" ? encryptedTokens(part.metadata) : textTokens(part.text);
    case "tool_call":
      return textTokens(part.name) + textTokens(part.arguments ?? canonicalJson(part.input ?? null));
    case "tool_result":
      return textTokens(part.name) + textTokens(toolOutputText(part.output));
    case "file":
      return fileTokens(part);
  }
}

function encryptedTokens(metadata: JsonObject | undefined): number {
  return metadata === undefined ? 0 : Math.ceil(utf8Length(canonicalJson(metadata)) / ENCRYPTED_BYTES_PER_TOKEN);
}

function fileTokens({ media_type, size_bytes }: FilePart): number {
  if (media_type.startsWith("image/")) return IMAGE_TOKENS;
  // Sent as text (providers/call-options.ts).
  if (media_type.startsWith("text/plain")) return Math.ceil(size_bytes / BYTES_PER_TOKEN);
  return Math.min(MAX_DOCUMENT_TOKENS, Math.max(IMAGE_TOKENS, Math.ceil(size_bytes / DOCUMENT_BYTES_PER_TOKEN)));
}

export interface CountedRequest {
  /** Whole prompt (cached tokens included, as `usage.input` always is) plus response. */
  readonly tokens: number;
  readonly scale: TokenScale;
  /** View epoch of the request. */
  readonly epoch: number;
  /** Messages of the view that the count covers: those of the request and its response. */
  readonly messages: number;
}

export interface FootprintInput {
  readonly lastUsage: CountedRequest | undefined;
  /** View epoch now: a count from before a compaction says nothing of the view after it. */
  readonly epoch: number;
  readonly view: readonly Message[];
  readonly frameTokens: number;
}

export interface Footprint {
  readonly tokens: number;
  readonly scale: TokenScale;
}

/**
 * The vendor's last count and what was added since, or our estimate of the whole request where that is more: some
 * servers leave schemas or media out of their count. The estimate is believed up to twice what was counted: nothing
 * but runs of blanks has eight bytes a token, and an estimate that is wrong by ten must not make a run compact.
 */
export function footprint({ lastUsage, epoch, view, frameTokens: frame }: FootprintInput): Footprint {
  const estimate = frame + estimateTokens(view);
  if (lastUsage?.scale !== "provider" || lastUsage.epoch !== epoch || !(lastUsage.tokens > 0) || !Number.isFinite(lastUsage.tokens)) return { tokens: estimate, scale: "estimate" };
  const counted = Math.ceil(lastUsage.tokens) + estimateTokens(view.slice(lastUsage.messages));
  if (estimate <= counted) return { tokens: counted, scale: "provider" };
  return { tokens: Math.min(estimate, counted * 2), scale: "estimate" };
}

export interface LineInput {
  readonly windowTokens: number | undefined;
  /** Output that the request asks for. */
  readonly outputTokens: number;
  /** Kept free for what estimates miss. */
  readonly marginTokens: number;
}

/**
 * From here on the next request does not fit. Undefined where the window is not known. At most half of the window is
 * kept for output: servers cut a wish for more down to what is left, and a line below zero would hold every request.
 */
export function hardLine({ windowTokens, outputTokens, marginTokens }: LineInput): number | undefined {
  if (!isKnown(windowTokens)) return undefined;
  return Math.max(1, Math.floor(windowTokens - Math.min(outputTokens, windowTokens / 2) - Math.min(marginTokens, windowTokens / 4)));
}

/** Where the percentage trigger fires; undefined for never. `pct` is `prefetch_at_pct` for the early task. */
export function firesAt({ policy, pct = policy.autocompact_at_pct, ...line }: LineInput & { readonly policy: ResolvedPolicy; readonly pct?: number }): number | undefined {
  const hard = hardLine(line);
  const lines = [...(hard === undefined ? [] : [hard, Math.floor(((line.windowTokens as number) * pct) / 100)]), ...(policy.at_tokens === undefined ? [] : [policy.at_tokens])];
  return lines.length === 0 ? undefined : Math.min(...lines);
}

/** False for every number that is none: a gauge that shows NaN must never cost a summary. */
export function hasReached(tokens: number | undefined, line: number | undefined): boolean {
  return tokens !== undefined && line !== undefined && Number.isFinite(tokens) && tokens > 0 && tokens >= line;
}

export interface CountPair {
  /** Input tokens by the vendor. */
  readonly counted: number;
  /** Our estimate of that same request. */
  readonly estimated: number;
}

/** Below this an estimate is mostly overhead. */
const MIN_TRUNCATED_TOKENS = 2_048;

/**
 * The window that a server really has, when it cut the prompt to fit and said nothing: it counted less than half of
 * what was sent (more than eight bytes a token), and no more than for the request before although that was smaller.
 * For servers of unknown honesty (local ones) only: the large vendors refuse a prompt that is too long.
 */
export function detectSilentTruncation(now: CountPair, before?: CountPair): { readonly windowTokens: number } | undefined {
  if (!(now.counted > 0) || !Number.isFinite(now.estimated) || now.estimated < MIN_TRUNCATED_TOKENS || now.counted * 2 >= now.estimated) return undefined;
  const grew = before !== undefined && now.estimated > before.estimated && now.counted > before.counted * 1.02;
  return grew ? undefined : { windowTokens: Math.ceil(now.counted) };
}

export function isKnown(windowTokens: number | undefined): windowTokens is number {
  return windowTokens !== undefined && Number.isFinite(windowTokens) && windowTokens > 0;
}
