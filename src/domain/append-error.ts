/** The four ways in which the journal refuses an append. Each says which guard failed; none is retried blindly. */
import { CapstanError } from "./error.ts";
import type { JsonObject } from "./json.ts";

/** Somebody appended since the writer last looked. Load again and decide again. */
export class SeqConflictError extends CapstanError {
  override readonly name = "SeqConflictError";
  readonly code = "SEQ_CONFLICT";
  override readonly details: JsonObject;
  constructor(runId: string, expectedSeq: number, lastSeq: number) {
    super(`run ${runId} is at seq ${lastSeq}, the writer expected ${expectedSeq}`);
    this.details = { run_id: runId, expected_seq: expectedSeq, last_seq: lastSeq };
  }
}

/** A worker wrote with a fencing token that is no longer the run's. It must stop at once and write nothing more. */
export class LeaseLostError extends CapstanError {
  override readonly name = "LeaseLostError";
  readonly code = "LEASE_LOST";
  override readonly details: JsonObject;
  constructor(runId: string, heldToken: number, currentToken: number) {
    super(`lease on run ${runId} lost (held token ${heldToken}, current ${currentToken})`);
    this.details = { run_id: runId, held_token: heldToken, current_token: currentToken };
  }
}

/** The run has ended; its journal takes nothing more. */
export class RunFinishedError extends CapstanError {
  override readonly name = "RunFinishedError";
  readonly code = "RUN_FINISHED";
  override readonly details: JsonObject;
  constructor(runId: string, state: string) {
    super(`run ${runId} has ended (${state}); start a new run`);
    this.details = { run_id: runId, state };
  }
}

export class RunMissingError extends CapstanError {
  override readonly name = "RunMissingError";
  readonly code = "RUN_MISSING";
  override readonly details: JsonObject;
  constructor(runId: string) {
    super(`no run ${runId}`);
    this.details = { run_id: runId };
  }
}

/** One payload over the inline limit of its agent. The message names the way out. */
export class PayloadTooLargeError extends CapstanError {
  override readonly name = "PayloadTooLargeError";
  readonly code = "PAYLOAD_TOO_LARGE";
  override readonly details: JsonObject;
  constructor(where: { readonly runId: string; readonly turn: number; readonly what: string; readonly sizeBytes: number; readonly limitBytes: number }) {
    super(
      `${where.what} of ${where.sizeBytes} bytes in turn ${where.turn} of run ${where.runId} is over the inline limit of ${where.limitBytes} bytes; ` +
        "raise limits.inlinePayloadBytes (up to 16 MiB) of the agent, or make it smaller",
    );
    this.details = { run_id: where.runId, turn: where.turn, what: where.what, size_bytes: where.sizeBytes, limit_bytes: where.limitBytes };
  }
}
