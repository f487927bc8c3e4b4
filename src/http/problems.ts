/** Errors as problem documents (RFC 9457). The one table from stable codes to status; what is not in it is our fault, and says nothing. */
import { CapstanError } from "../domain/error.ts";
import type { JsonObject } from "../domain/json.ts";
import { fromPostgres } from "../client/errors.ts";
import { isRetryableConflict, sqlState } from "../store/pg-errors.ts";

export const problemStatus: Readonly<Record<string, number>> = {
  ARGUMENT_INVALID: 400,
  INPUT_INVALID: 400,
  DEFINITION_AMBIGUOUS: 400,
  DEFINITION_INVALID: 400,
  JSON_INVALID: 400,
  OUTGOING_REFUSED: 400,
  REDACTION_FAILED: 400,
  SCHEDULE_INVALID: 400,
  URL_INVALID: 400,
  UNAUTHORIZED: 401,
  FORBIDDEN: 403,
  TENANT_DENIED: 403,
  AGENT_UNKNOWN: 404,
  CONVERSATION_MISSING: 404,
  DEFINITION_UNKNOWN: 404,
  ROUTE_UNKNOWN: 404,
  RUN_MISSING: 404,
  SCHEDULE_UNKNOWN: 404,
  TOKEN_UNKNOWN: 404,
  WAIT_UNKNOWN: 404,
  WEBHOOK_UNKNOWN: 404,
  AGENT_GONE: 409,
  CONCURRENCY_CONFLICT: 409,
  CONVERSATION_BUSY: 409,
  FORK_POINT_ILLEGAL: 409,
  IDEMPOTENCY_CONFLICT: 409,
  NOT_INTERACTIVE: 409,
  NOT_MID_TURN: 409,
  RUN_BUSY: 409,
  RUN_FINISHED: 409,
  RUN_NOT_FAILED: 409,
  SCHEDULE_EXISTS: 409,
  TOKEN_EXISTS: 409,
  WAIT_DECIDED: 409,
  WAIT_EXPIRED: 409,
  WEBHOOK_EXISTS: 409,
  PAYLOAD_TOO_LARGE: 413,
  MEDIA_TYPE_UNSUPPORTED: 415,
  INBOX_FULL: 429,
  QUEUE_FULL: 429,
  RATE_LIMITED: 429,
  COMPACTION_FAILED: 502,
  DATABASE_UNAVAILABLE: 503,
  NOT_MIGRATED: 503,
  STOPPING: 503,
  TRY_AGAIN: 503,
};

const titles: Readonly<Record<number, string>> = {
  400: "Bad Request",
  401: "Unauthorized",
  403: "Forbidden",
  404: "Not Found",
  409: "Conflict",
  413: "Content Too Large",
  415: "Unsupported Media Type",
  429: "Too Many Requests",
  500: "Internal Server Error",
  502: "Bad Gateway",
  503: "Service Unavailable",
};

export interface Issue {
  readonly path: string;
  readonly message: string;
}

export interface Problem extends JsonObject {
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly detail: string;
  readonly instance: string;
  readonly code: string;
}

/** A request that is refused before it reaches anything of ours. `code` is one of the table's. */
export class RequestError extends CapstanError {
  override readonly name = "RequestError";
  readonly code: string;
  override readonly details: JsonObject;
  readonly issues: readonly Issue[];
  readonly retryAfterS: number | undefined;
  constructor(
    code: string,
    message: string,
    { issues = [], details = {}, retryAfterS }: { readonly issues?: readonly Issue[]; readonly details?: JsonObject; readonly retryAfterS?: number } = {},
  ) {
    super(message);
    this.code = code;
    this.issues = issues;
    this.details = details;
    this.retryAfterS = retryAfterS;
  }
}

export interface Refusal {
  readonly problem: Problem;
  readonly retryAfterS: number | undefined;
  /** Not the caller's doing: to be logged. */
  readonly isOurs: boolean;
}

/** `instance`: the request's path, without its query. */
export function problemOf(thrown: unknown, instance: string): Refusal {
  const error = known(thrown);
  const status = error === undefined ? 500 : (problemStatus[error.code] ?? 500);
  if (error === undefined || status === 500) {
    const detail = "something went wrong on the server; its log says what, under the id of the header `x-request-id`";
    return { problem: { type: "about:blank", title: titles[500] as string, status: 500, detail, instance, code: "INTERNAL" }, retryAfterS: undefined, isOurs: true };
  }
  const { issues: nested, ...details } = error.details;
  const issues = error instanceof RequestError ? error.issues : Array.isArray(nested) ? (nested as unknown as Issue[]) : [];
  const problem: Problem = {
    type: "about:blank",
    title: titles[status] as string,
    status,
    detail: status === 503 && error.code === "DATABASE_UNAVAILABLE" ? DATABASE_AWAY : error.message,
    instance,
    code: error.code,
    ...(issues.length === 0 ? {} : { issues: issues.map(({ path, message }) => ({ path, message })) }),
    ...(Object.keys(details).length === 0 ? {} : { details }),
  };
  return { problem, retryAfterS: retryAfterOf(error, status), isOurs: status === 503 && error.code !== "STOPPING" };
}

/** What the driver says names hosts and users: not for callers. */
const DATABASE_AWAY = "the database cannot be reached; try again, with an idempotency key if it must happen once";

/** untranslatable_character, character_not_in_repertoire, datetime_field_overflow, numeric_value_out_of_range: values are the caller's, statements ours. */
const unstorable = new Set(["22P05", "22021", "22008", "22003"]);

function known(thrown: unknown): CapstanError | undefined {
  if (isRetryableConflict(thrown)) return new RequestError("TRY_AGAIN", "somebody else was at the same rows; make the request again", { retryAfterS: 1 });
  const error = fromPostgres(thrown);
  if (unstorable.has(sqlState(error) ?? "")) {
    return new RequestError("ARGUMENT_INVALID", "the request holds a value that cannot be stored: text with the character NUL, or a number or a time beyond what Postgres has");
  }
  if (error instanceof CapstanError) return error;
  const { code } = (error ?? {}) as { code?: unknown };
  switch (code) {
    case "FST_ERR_CTP_BODY_TOO_LARGE":
      return new RequestError("PAYLOAD_TOO_LARGE", "the body is larger than this API takes; put large content into files, or several requests");
    case "FST_ERR_CTP_INVALID_MEDIA_TYPE":
      return new RequestError("MEDIA_TYPE_UNSUPPORTED", "send JSON, with the header content-type: application/json");
    case "FST_ERR_CTP_INVALID_CONTENT_LENGTH":
      return new RequestError("ARGUMENT_INVALID", "the body is not as long as its content-length says");
    case "FST_ERR_MAX_PARAM_LENGTH":
      return new RequestError("URL_INVALID", "a part of the path is longer than anything that has a name");
    case "FST_ERR_BAD_URL":
      return new RequestError("URL_INVALID", "the path cannot be decoded");
    default:
      return undefined;
  }
}

function retryAfterOf(error: CapstanError, status: number): number | undefined {
  if (error instanceof RequestError && error.retryAfterS !== undefined) return error.retryAfterS;
  const { retryAfterMs } = error as { readonly retryAfterMs?: number };
  if (retryAfterMs !== undefined) return Math.max(1, Math.ceil(retryAfterMs / 1_000));
  return status === 429 || status === 503 ? 1 : undefined;
}
