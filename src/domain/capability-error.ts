/** A call that was not made, since it may not be, or not now. The same errors for a model call, a summary and a tool. */
import { CapstanError } from "./error.ts";
import type { JsonObject } from "./json.ts";

export type RefusalCode =
  /** No grant of the agent's definition covers it. */
  | "GRANT_DENIED"
  /** A quota has no room for its largest possible amount; passes with time. */
  | "QUOTA_EXHAUSTED"
  /** The application's guard said no. */
  | "GUARD_DENIED"
  /** The guard threw, gave no decision, or took too long: what it did not allow is not done. */
  | "GUARD_FAILED"
  /** The guard rewrote a turn's model call, whose recorded hash promises what is sent (P5). */
  | "GUARD_REWRITE_UNSUPPORTED"
  /** The system prompt is not the operator's own. */
  | "SYSTEM_PROMPT_FOREIGN";

export class CapabilityRefusedError extends CapstanError {
  override readonly name = "CapabilityRefusedError";
  readonly code: RefusalCode;
  override readonly retryable: boolean;
  override readonly details: JsonObject;

  constructor(code: RefusalCode, message: string, details: JsonObject, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
    this.retryable = code === "QUOTA_EXHAUSTED";
    this.details = details;
  }
}

/** Out of quota. `retryAfterMs` is when the window turns, or when to look for a free slot again. */
export class QuotaExhaustedError extends CapabilityRefusedError {
  readonly bucket: string;
  readonly retryAfterMs: number;

  constructor({
    bucket,
    retryAfterMs,
    neverFits,
  }: {
    readonly bucket: string;
    readonly retryAfterMs: number;
    readonly neverFits?: { readonly needed: number; readonly limit: number };
  }) {
    const message =
      neverFits === undefined
        ? `quota ${bucket} is used up; there is room again in about ${Math.ceil(retryAfterMs / 1000)} s`
        : `one call may need ${neverFits.needed}, more than the whole quota ${bucket} of ${neverFits.limit}: raise it, or lower the agent's settings.maxOutputTokens`;
    super("QUOTA_EXHAUSTED", message, { bucket, retry_after_ms: retryAfterMs, ...(neverFits === undefined ? {} : { needed: neverFits.needed, limit: neverFits.limit }) });
    this.bucket = bucket;
    this.retryAfterMs = retryAfterMs;
  }
}
