/** Problem documents (RFC 9457) as the errors that the same situations have over Postgres: `code` says which. */
import { CapstanError } from "../../domain/error.ts";
import type { JsonObject } from "../../domain/json.ts";
import { AgentUnknownError, DefinitionAmbiguousError, DefinitionInvalidError, DefinitionUnknownError } from "../agent-errors.ts";
import {
  ArgumentError,
  ConcurrencyConflictError,
  ConversationBusyError,
  ConversationUnknownError,
  ForkPointError,
  IdempotencyConflictError,
  InboxFullError,
  InputInvalidError,
  NotInteractiveError,
  NotMidTurnError,
  QueueFullError,
  RunBusyError,
  RunEndedError,
  RunNotFailedError,
  ScheduleExistsError,
  ScheduleUnknownError,
  TooLargeError,
  UnknownRunError,
  WaitDecidedError,
  WaitExpiredError,
  WaitUnknownError,
} from "../errors.ts";

/** The API could not be reached, or did not answer in time, or the connection broke: whether the request arrived is not known. */
export class ApiUnavailableError extends CapstanError {
  override readonly name = "ApiUnavailableError";
  readonly code = "API_UNAVAILABLE";
  override readonly retryable = true;
}

/** The API refused, for a reason that has no error class of its own: tokens and scopes, rates, faults of the server. */
export class ApiError extends CapstanError {
  override readonly name = "ApiError";
  readonly code: string;
  readonly status: number;
  override readonly retryable: boolean;
  override readonly details: JsonObject;
  constructor(message: string, { code, status, details }: { readonly code: string; readonly status: number; readonly details: JsonObject }) {
    super(message);
    this.code = code;
    this.status = status;
    this.retryable = status === 429 || status >= 502;
    this.details = details;
  }
}

export interface Problem extends JsonObject {
  readonly status?: number;
  readonly code?: string;
  readonly title?: string;
  readonly detail?: string;
  readonly issues?: { readonly path: string; readonly message: string }[];
  readonly details?: JsonObject;
}

type Simple = new (message: string) => CapstanError;

const simple: Readonly<Record<string, Simple>> = {
  ARGUMENT_INVALID: ArgumentError,
  CONVERSATION_MISSING: ConversationUnknownError,
  INBOX_FULL: InboxFullError,
  NOT_INTERACTIVE: NotInteractiveError,
  NOT_MID_TURN: NotMidTurnError,
  PAYLOAD_TOO_LARGE: TooLargeError,
  RUN_BUSY: RunBusyError,
  RUN_FINISHED: RunEndedError,
  RUN_MISSING: UnknownRunError,
  RUN_NOT_FAILED: RunNotFailedError,
  SCHEDULE_EXISTS: ScheduleExistsError,
  SCHEDULE_UNKNOWN: ScheduleUnknownError,
  WAIT_DECIDED: WaitDecidedError,
  WAIT_EXPIRED: WaitExpiredError,
  WAIT_UNKNOWN: WaitUnknownError,
};

const withDetails: Readonly<Record<string, (message: string, details: JsonObject, issues: NonNullable<Problem["issues"]>) => CapstanError>> = {
  AGENT_UNKNOWN: (message, details) => said(new AgentUnknownError(textOf(details["agent"]), []), message),
  CONCURRENCY_CONFLICT: (message, details) => new ConcurrencyConflictError(message, details),
  CONVERSATION_BUSY: (message, details) => new ConversationBusyError(message, textOf(details["run_id"])),
  DEFINITION_AMBIGUOUS: (message, details) => said(new DefinitionAmbiguousError(textOf(details["prefix"]), (details["shas"] ?? []) as string[]), message),
  DEFINITION_INVALID: (message, details, issues) => said(new DefinitionInvalidError(textOf(details["agent"]), issues), message),
  DEFINITION_UNKNOWN: (message, details) => said(new DefinitionUnknownError(textOf(details["sha"])), message),
  FORK_POINT_ILLEGAL: (message, details) => new ForkPointError(message, details),
  IDEMPOTENCY_CONFLICT: (message, details) => new IdempotencyConflictError(message, textOf(details["run_id"])),
  INPUT_INVALID: (message, details, issues) => said(new InputInvalidError(textOf(details["agent"]), issues), message),
  QUEUE_FULL: (message, details) => new QueueFullError(message, details),
};

const standard = new Set(["type", "title", "status", "detail", "instance", "code", "issues", "details"]);

export function fromProblem(status: number, problem: Problem): CapstanError {
  const { code = `HTTP_${status}`, issues = [] } = problem;
  const message = problem.detail ?? problem.title ?? `the API answered ${status}`;
  const details = problem.details ?? Object.fromEntries(Object.entries(problem).filter(([name]) => !standard.has(name)));
  const known = simple[code];
  if (known !== undefined) return new known(issues.length === 0 ? message : withIssues(message, issues));
  return (
    withDetails[code]?.(message, details, issues) ?? new ApiError(withIssues(message, issues), { code, status, details: issues.length === 0 ? details : { ...details, issues } })
  );
}

function withIssues(message: string, issues: NonNullable<Problem["issues"]>): string {
  const news = issues.filter(({ path, message: what }) => !(message.includes(path) && message.includes(what)));
  return news.length === 0 ? message : `${message}: ${news.map(({ path, message: what }) => (path === "" ? what : `${path} ${what}`)).join("; ")}`;
}

/** The server's own words: it knew what the constructor would only guess. */
function said<E extends CapstanError>(error: E, message: string): E {
  error.message = message;
  return error;
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}
