import { CapstanError } from "../domain/error.ts";
import type { JsonObject } from "../domain/json.ts";
import type { SummaryReason } from "./reply.ts";

/** The summary is empty or blank. It would replace the transcript for good, so nothing is changed. */
export class SummarizerEmptyError extends CapstanError {
  override readonly name = "SummarizerEmptyError";
  readonly code = "SUMMARIZER_EMPTY";
  override readonly retryable = true;
  override readonly details: JsonObject;
  constructor(summarizer: string, why: string) {
    super(`summarizer ${summarizer} gave no summary (${why}); the transcript is unchanged. Raise compaction.max_tokens if it reasons first, or give another compaction.model`);
    this.details = { summarizer, why };
  }
}

/** A policy names a summarizer that this worker does not have. */
export class SummarizerMissingError extends CapstanError {
  override readonly name = "SummarizerMissingError";
  readonly code = "SUMMARIZER_MISSING";
  override readonly details: JsonObject;
  constructor(summarizer: string, registered: readonly string[]) {
    const known = registered.length === 0 ? "none is registered" : `registered are: ${registered.join(", ")}`;
    super(`compaction.summarizer names "${summarizer}", which is not registered (${known}); give it to createCapstan({ summarizers: { ${JSON.stringify(summarizer)}: … } })`);
    this.details = { summarizer, registered: [...registered] };
  }
}

/** A reply that cannot stand for the transcript, from an effect that was called directly. */
export class SummarizerRejectedError extends CapstanError {
  override readonly name = "SummarizerRejectedError";
  readonly code = "SUMMARIZER_REJECTED";
  override readonly retryable: boolean;
  override readonly details: JsonObject;
  constructor(summarizer: string, { reason, message, retryable }: { readonly reason: SummaryReason; readonly message: string; readonly retryable: boolean }) {
    super(`summarizer ${summarizer}: ${message}`);
    this.retryable = retryable;
    this.details = { summarizer, reason };
  }
}
