/** What differs between vendors, as data and small pure functions. One file per vendor makes one of these. */
import type { LanguageModelV4 } from "@ai-sdk/provider";
import type { CanonicalCall } from "../domain/call.ts";
import type { JsonObject, JsonValue } from "../domain/json.ts";
import type { AssistantPart } from "../domain/transcript/message.ts";

/** The part of vendors' differences that shapes a request; `toCallOptions` needs nothing else. */
export interface RequestShape {
  /** Under which name the vendor's client reads its options and metadata. */
  readonly optionsKey: string;
  /** Options sent with every call; a definition's `providerOptions` are laid over them. */
  readonly defaultOptions?: (call: CanonicalCall) => JsonObject;
  /** Options laid over a definition's: promises that it may not break. */
  readonly forcedOptions?: JsonObject;
  /** Options that would make a request depend on what the vendor keeps (P5): refused. */
  readonly statefulOptions?: readonly string[];
  /** Marks a place up to which the vendor is told to cache; absent where caching is automatic. */
  readonly cacheMark?: JsonObject;
  /** How many marks the vendor accepts in one request. */
  readonly maxCacheMarks?: number;
  /** For vendors that demand a number. */
  readonly defaultMaxOutputTokens?: number;
  /** Brings a call id into the vendor's alphabet and length. Ids are made unique after it. */
  readonly legalCallId?: (id: string) => string;
  /** Leaves out assistant parts that the vendor would refuse to take back. */
  readonly sendableParts?: (parts: readonly AssistantPart[]) => readonly AssistantPart[];
}

export type Fetch = typeof globalThis.fetch;

export interface Vendor {
  /** Package and version, as in WireEvidence.client. */
  readonly client: string;
  readonly shape: RequestShape;
  readonly structuredOutput: boolean;
  /** Opens the vendor's client for one model. Imports the package on first use: start-up should not pay for three. */
  readonly open: (fetch: Fetch) => Promise<LanguageModelV4>;
  /**
   * Usage in a raw stream event, brought to our scale, for calls that break before the end: those tokens may be billed.
   * Numbers replace the earlier ones.
   */
  readonly usageInEvent?: (event: JsonValue) => { readonly input?: number; readonly output?: number; readonly cache_read?: number; readonly cache_write?: number } | undefined;
}
