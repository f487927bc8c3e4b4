/**
 * The chained hash of a canonical call: h(0) covers render version, system prompt and tools, h(i) = sha256(h(i-1) ||
 * message i), and the call's hash closes the chain over model, settings, output and breakpoints. A turn therefore
 * hashes its new messages only, and two calls share a prefix exactly when their chains agree there.
 */
import type { CanonicalCall } from "../call.ts";
import { canonicalJson, type JsonValue } from "../json.ts";
import { messageText, type Message } from "./message.ts";

/** sha256 over the concatenation; supplied by the caller since the domain imports no Node module. */
export type Sha256 = (...chunks: readonly (Uint8Array | string)[]) => Uint8Array;

export interface Chain {
  readonly head: Uint8Array;
  /** UTF-8 bytes of header and messages so far. */
  readonly sizeBytes: number;
  readonly messages: number;
}

export type CallHeader = Pick<CanonicalCall, "renderVersion" | "system" | "tools">;
export type CallTail = Pick<CanonicalCall, "model" | "settings" | "output" | "breakpoints">;

export function startChain(sha256: Sha256, header: CallHeader): Chain {
  const text = canonicalJson(header as unknown as JsonValue);
  return { head: sha256(text), sizeBytes: utf8Length(text), messages: 0 };
}

/** Extends by one message; `bytes` is that message's size. */
export function extendChain(sha256: Sha256, chain: Chain, message: Message): { chain: Chain; bytes: number } {
  const text = messageText(message);
  const bytes = utf8Length(text);
  return { chain: { head: sha256(chain.head, text), sizeBytes: chain.sizeBytes + bytes, messages: chain.messages + 1 }, bytes };
}

/** Hash and size of the whole call. */
export function closeChain(sha256: Sha256, chain: Chain, tail: CallTail): { hash: Uint8Array; sizeBytes: number } {
  const text = canonicalJson(tail as unknown as JsonValue);
  return { hash: sha256(chain.head, text), sizeBytes: chain.sizeBytes + utf8Length(text) };
}

/** The same from a whole call: what verify computes. */
export function hashCall(sha256: Sha256, call: CanonicalCall): { hash: Uint8Array; sizeBytes: number } {
  const { renderVersion, system, tools, messages, model, settings, output, breakpoints } = call;
  let chain = startChain(sha256, { renderVersion, system, tools });
  for (const message of messages) ({ chain } = extendChain(sha256, chain, message));
  return closeChain(sha256, chain, { model, settings, ...(output === undefined ? {} : { output }), breakpoints });
}

const encoder = new TextEncoder();

/** Bytes of the text in UTF-8. */
export function utf8Length(text: string): number {
  // Exact and without allocating for the common case of ASCII text.
  for (let i = 0; i < text.length; i++) if (text.charCodeAt(i) > 0x7f) return encoder.encode(text).length;
  return text.length;
}
