/** Errors that a service which enqueues meets. Postgres raises them with SQLSTATEs of class KC; here they get names. */
import { CapstanError } from "../domain/error.ts";
import type { JsonObject } from "../domain/json.ts";
import { isConnectionError } from "../store/pg-errors.ts";

export class IdempotencyConflictError extends CapstanError {
  override readonly name = "IdempotencyConflictError";
  readonly code = "IDEMPOTENCY_CONFLICT";
  override readonly details: JsonObject;
  /** The run that the key belongs to. */
  readonly runId: string;
  constructor(message: string, runId: string, options?: ErrorOptions) {
    super(message, options);
    this.runId = runId;
    this.details = { run_id: runId };
  }
}

export class InputInvalidError extends CapstanError {
  override readonly name = "InputInvalidError";
  readonly code = "INPUT_INVALID";
  override readonly details: JsonObject;
  constructor(agent: string, issues: readonly { readonly path: string; readonly message: string }[]) {
    super(`the input does not fit agent ${agent}: ${issues.map(({ path, message }) => (path === "" ? message : `${path}: ${message}`)).join("; ")}`);
    this.details = { agent, issues: issues };
  }
}

export class UnknownRunError extends CapstanError {
  override readonly name = "UnknownRunError";
  readonly code = "RUN_MISSING";
}

export class RunEndedError extends CapstanError {
  override readonly name = "RunEndedError";
  readonly code = "RUN_FINISHED";
}

export class InboxFullError extends CapstanError {
  override readonly name = "InboxFullError";
  readonly code = "INBOX_FULL";
  override readonly retryable = true;
}

export class RunBusyError extends CapstanError {
  override readonly name = "RunBusyError";
  readonly code = "RUN_BUSY";
  override readonly retryable = true;
}

export class NotInteractiveError extends CapstanError {
  override readonly name = "NotInteractiveError";
  readonly code = "NOT_INTERACTIVE";
}

/** There is no turn to stop: the run takes input now. */
export class NotMidTurnError extends CapstanError {
  override readonly name = "NotMidTurnError";
  readonly code = "NOT_MID_TURN";
}

export class WaitUnknownError extends CapstanError {
  override readonly name = "WaitUnknownError";
  readonly code = "WAIT_UNKNOWN";
}

/** Somebody was first, or the run has gone on without an answer. */
export class WaitDecidedError extends CapstanError {
  override readonly name = "WaitDecidedError";
  readonly code = "WAIT_DECIDED";
}

export class WaitExpiredError extends CapstanError {
  override readonly name = "WaitExpiredError";
  readonly code = "WAIT_EXPIRED";
}

export class TooLargeError extends CapstanError {
  override readonly name = "TooLargeError";
  readonly code = "PAYLOAD_TOO_LARGE";
}

export class ArgumentError extends CapstanError {
  override readonly name = "ArgumentError";
  readonly code = "ARGUMENT_INVALID";
}

/** A schedule cannot be made so: `field` says which of its settings is wrong. */
export class ScheduleInvalidError extends CapstanError {
  override readonly name = "ScheduleInvalidError";
  readonly code = "SCHEDULE_INVALID";
  override readonly details: JsonObject;
  readonly field: string;
  constructor(schedule: string, { field, message }: { readonly field: string; readonly message: string }) {
    super(`schedule ${schedule}: ${field} ${message}`);
    this.field = field;
    this.details = { schedule, field };
  }
}

export class ScheduleUnknownError extends CapstanError {
  override readonly name = "ScheduleUnknownError";
  readonly code = "SCHEDULE_UNKNOWN";
}

export class ScheduleExistsError extends CapstanError {
  override readonly name = "ScheduleExistsError";
  readonly code = "SCHEDULE_EXISTS";
}

/** A run cannot be continued from there: calls are open, or something is unanswered. `before` and `after` are the nearest places. */
export class ForkPointError extends CapstanError {
  override readonly name = "ForkPointError";
  readonly code = "FORK_POINT_ILLEGAL";
  override readonly details: JsonObject;
  constructor(message: string, details: JsonObject, options?: ErrorOptions) {
    super(message, options);
    this.details = details;
  }
}

/** Only failed and cancelled runs are tried again; others are forked. */
export class RunNotFailedError extends CapstanError {
  override readonly name = "RunNotFailedError";
  readonly code = "RUN_NOT_FAILED";
}

/** The last run of the conversation is at work: `details.run_id` says which. */
export class ConversationBusyError extends CapstanError {
  override readonly name = "ConversationBusyError";
  readonly code = "CONVERSATION_BUSY";
  override readonly retryable = true;
  override readonly details: JsonObject;
  constructor(message: string, runId: string, options?: ErrorOptions) {
    super(message, options);
    this.details = { run_id: runId };
  }
}

export class ConversationUnknownError extends CapstanError {
  override readonly name = "ConversationUnknownError";
  readonly code = "CONVERSATION_MISSING";
}

/** The run has ended without a result. `code` of the journal's own error stands in `runError`. */
export class RunFailedError extends CapstanError {
  override readonly name = "RunFailedError";
  readonly code: string;
  override readonly details: JsonObject;
  constructor(runId: string, state: string, error: { readonly code: string; readonly message: string; readonly details?: JsonObject }) {
    super(`run ${runId} ${state}: ${error.message}`);
    this.code = error.code;
    this.details = { run_id: runId, state, ...error.details };
  }
}

export class ResultTimeoutError extends CapstanError {
  override readonly name = "ResultTimeoutError";
  readonly code = "RESULT_TIMEOUT";
  override readonly retryable = true;
}

/** The database could not be reached, or the connection died before it answered: whether the statement arrived is not known. */
export class DatabaseUnavailableError extends CapstanError {
  override readonly name = "DatabaseUnavailableError";
  readonly code = "DATABASE_UNAVAILABLE";
  override readonly retryable = true;
  constructor(cause: unknown) {
    const { message, code } = cause as { message?: string; code?: string };
    super(
      `the database cannot be reached (${[code, message].filter((part) => part !== undefined && part !== "").join(": ")}); try again, with an idempotency or dedupe key if it must happen once`,
      { cause },
    );
  }
}

/** As many runs are queued as a limit allows: `details` say which. Worth another try after `retryAfterMs`. */
export class QueueFullError extends CapstanError {
  override readonly name = "QueueFullError";
  readonly code = "QUEUE_FULL";
  override readonly retryable = true;
  override readonly details: JsonObject;
  readonly retryAfterMs: number;
  constructor(message: string, details: JsonObject, options?: ErrorOptions) {
    super(message, options);
    this.details = details;
    this.retryAfterMs = Number(details["retry_after_s"] ?? 5) * 1_000;
  }
}

/** Enqueued with `onConflict: "refuse"` while another run holds the concurrency key: `runId` is the one that has held it longest. */
export class ConcurrencyConflictError extends CapstanError {
  override readonly name = "ConcurrencyConflictError";
  readonly code = "CONCURRENCY_CONFLICT";
  override readonly details: JsonObject;
  readonly runId: string;
  constructor(message: string, details: JsonObject, options?: ErrorOptions) {
    super(message, options);
    this.details = details;
    this.runId = typeof details["run_id"] === "string" ? details["run_id"] : "";
  }
}

/** A partition of the journal holds runs that must stay: `details` count them by reason. */
export class PartitionKeptError extends CapstanError {
  override readonly name = "PartitionKeptError";
  readonly code = "PARTITION_KEPT";
  override readonly details: JsonObject;
  constructor(message: string, details: JsonObject, options?: ErrorOptions) {
    super(message, options);
    this.details = details;
  }
}

/** The database login is pinned to other tenants than the one that was named. */
export class TenantDeniedError extends CapstanError {
  override readonly name = "TenantDeniedError";
  readonly code = "TENANT_DENIED";
}

export class WebhookExistsError extends CapstanError {
  override readonly name = "WebhookExistsError";
  readonly code = "WEBHOOK_EXISTS";
}

export class WebhookUnknownError extends CapstanError {
  override readonly name = "WebhookUnknownError";
  readonly code = "WEBHOOK_UNKNOWN";
}

/** A token of that name is in use in the tenant. */
export class TokenExistsError extends CapstanError {
  override readonly name = "TokenExistsError";
  readonly code = "TOKEN_EXISTS";
}

export class TokenUnknownError extends CapstanError {
  override readonly name = "TokenUnknownError";
  readonly code = "TOKEN_UNKNOWN";
}

/** The run's agent has no definition in the database: nobody knows by which model or policy it would be compacted. */
export class AgentGoneError extends CapstanError {
  override readonly name = "AgentGoneError";
  readonly code = "AGENT_GONE";
}

interface PgError {
  readonly code?: string;
  readonly message?: string;
  readonly detail?: string;
  readonly hint?: string;
  readonly cause?: unknown;
}

/** The message together with what the function advises. */
function hinted({ message, hint }: PgError): string {
  return [message, hint].filter((part) => part !== undefined && part !== "").join(". ");
}

function detailOf({ detail }: PgError): JsonObject {
  return JSON.parse(detail ?? "{}") as JsonObject;
}

/** Gives the named error for one of our SQLSTATEs; an unreachable database is DatabaseUnavailableError; anything else comes back as it was. Looks through drizzle's wrapper. */
export function fromPostgres(error: unknown): unknown {
  const pg = error as PgError | undefined;
  const message = pg?.message ?? "";
  switch (pg?.code) {
    case "KC001":
      return new IdempotencyConflictError(message, pg.detail ?? "", { cause: error });
    case "KC002":
      return new UnknownRunError(message, { cause: error });
    case "KC003":
      return new RunEndedError(message, { cause: error });
    case "KC004":
      return new InboxFullError(message, { cause: error });
    case "KC005":
      return new TooLargeError(message, { cause: error });
    case "KC007":
      return new RunBusyError(message, { cause: error });
    case "KC012":
      return new ScheduleUnknownError(message, { cause: error });
    case "KC008":
      return new NotInteractiveError(message, { cause: error });
    case "KC009":
      return new NotMidTurnError(message, { cause: error });
    case "KC010":
      return new WaitUnknownError(message, { cause: error });
    case "KC011":
      return new WaitExpiredError(message, { cause: error });
    case "KC017":
      return new WaitDecidedError(message, { cause: error });
    case "KC014":
      return new ForkPointError(hinted(pg), JSON.parse(pg.detail ?? "{}") as JsonObject, { cause: error });
    case "KC015":
      return new ConversationBusyError(message, pg.detail ?? "", { cause: error });
    case "KC016":
      return new ConversationUnknownError(message, { cause: error });
    case "KC019":
      return new QueueFullError(hinted(pg), detailOf(pg), { cause: error });
    case "KC020":
      return new ConcurrencyConflictError(hinted(pg), detailOf(pg), { cause: error });
    case "KC023":
      return new PartitionKeptError(hinted(pg), detailOf(pg), { cause: error });
    case "KC022":
      return new AgentGoneError(hinted(pg), { cause: error });
    case "KC021":
      return new TenantDeniedError(hinted(pg), { cause: error });
    case "KC018":
      return new RunNotFailedError(hinted(pg), { cause: error });
    case "KC006":
    // An id that is no UUID: everything else that Postgres parses here was written by us.
    case "22P02":
      return new ArgumentError(message, { cause: error });
    default: {
      const inner = pg?.cause === undefined ? undefined : fromPostgres(pg.cause);
      if (inner instanceof CapstanError) return inner;
      return isConnectionError(error) ? new DatabaseUnavailableError(error) : error;
    }
  }
}
