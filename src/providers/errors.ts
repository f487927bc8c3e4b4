/**
 * Turns whatever a provider's client throws or streams into one of our failure codes. The order of the checks is the
 * meaning: by code, then by status, then by wording; and a rate limit is looked for before an overflow, since vendors
 * speak of "tokens" in both ("429 ... tokens per minute" mistaken for an overflow compacts a healthy transcript, an
 * overflow mistaken for a bad request or a rate limit is retried unchanged for ever).
 */
import { APICallError, LoadAPIKeyError, NoSuchModelError } from "@ai-sdk/provider";
import { wellFormedText } from "../domain/json.ts";
import type { ModelFailure, ModelFailureCode } from "../engine/model-port.ts";

export interface ClassifyOptions {
  /** Whether the vendor had begun to answer: a connection that breaks then is a cut stream. */
  readonly answering: boolean;
  /** Reads retry-after dates that come without the vendor's own clock. */
  readonly nowMs: number;
}

/** What of an error is looked at, brought together from the shapes that clients, gateways and servers use. */
export interface ErrorFacts {
  readonly status?: number;
  /** Vendor's codes and types, in lower snake case. */
  readonly codes: readonly string[];
  readonly message: string;
  /** Message and body together: what wordings are looked for in. */
  readonly text: string;
  readonly headers: Readonly<Record<string, string>>;
  /** Node's and undici's codes along the chain of causes. */
  readonly network: readonly string[];
}

export function classifyFailure(error: unknown, options: ClassifyOptions): ModelFailure {
  const facts = errorFacts(error);
  const verdict = judge(error, facts, options);
  const retryAfterMs = verdict.retryable ? retryAfter(facts, options.nowMs) : undefined;
  return {
    kind: "failed",
    code: verdict.code,
    message: clip(wellFormedText(facts.message)),
    retryable: verdict.retryable,
    countsAsAttempt: verdict.code !== "PROVIDER_RATE_LIMITED",
    ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
    ...(facts.status === undefined ? {} : { httpStatus: facts.status }),
  };
}

/** Whether the vendor says that the request does not fit the model's window. */
export function isContextOverflow(facts: ErrorFacts): boolean {
  if (isRateLimit(facts) || isAccountProblem(facts)) return false;
  if (facts.codes.some((code) => OVERFLOW_CODES.has(code))) return true;
  if (facts.status === 413) return true;
  // With any status or none: some servers and gateways answer 500 for it, and errors in a stream have no status.
  return OVERFLOW_WORDINGS.some((wording) => wording.test(facts.text));
}

type Verdict = { readonly code: ModelFailureCode; readonly retryable: boolean };

function judge(error: unknown, facts: ErrorFacts, options: ClassifyOptions): Verdict {
  const { status } = facts;
  const has = (...codes: string[]) => codes.some((code) => facts.codes.includes(code));
  if (isAccountProblem(facts)) return { code: "PROVIDER_AUTH", retryable: false };
  if (isContextOverflow(facts)) return { code: "CONTEXT_OVERFLOW", retryable: false };
  if (isRateLimit(facts)) return { code: "PROVIDER_RATE_LIMITED", retryable: true };
  if (status === 529 || has("overloaded_error", "server_overloaded", "engine_overloaded_error", "model_overloaded", "slow_down")) {
    return { code: "PROVIDER_OVERLOADED", retryable: true };
  }
  if (status === 503 && /overloaded|capacity|high demand/i.test(facts.text)) return { code: "PROVIDER_OVERLOADED", retryable: true };
  if (
    status === 401 ||
    status === 402 ||
    status === 403 ||
    has("authentication_error", "permission_error", "invalid_api_key", "permission_denied") ||
    LoadAPIKeyError.isInstance(error)
  ) {
    return { code: "PROVIDER_AUTH", retryable: false };
  }
  if (has("model_not_found", "deployment_not_found") || (status === 404 && MODEL_MISSING.test(facts.text)) || NoSuchModelError.isInstance(error)) {
    return { code: "MODEL_UNKNOWN", retryable: false };
  }
  if (status === 408 || has("timeout_error", "request_timeout")) return { code: "MODEL_TIMEOUT", retryable: true };
  // A 200 on an error means that the answer had begun and could not be read to its end.
  if (status !== undefined && status >= 400) {
    if (status >= 500 || status === 409 || status === 425) return { code: "PROVIDER_UNAVAILABLE", retryable: true };
    return { code: "PROVIDER_BAD_REQUEST", retryable: false };
  }
  if (has("invalid_request_error", "invalid_prompt")) return { code: "PROVIDER_BAD_REQUEST", retryable: false };
  if (has("api_error", "server_error", "internal_error", "internal_server_error", "service_unavailable", "vector_store_timeout")) {
    return { code: "PROVIDER_UNAVAILABLE", retryable: true };
  }
  if (facts.network.some((code) => TIMEOUT_CODES.has(code))) return { code: "MODEL_TIMEOUT", retryable: true };
  if (CUT_WORDING.test(facts.text) || facts.network.length > 0) {
    return { code: options.answering ? "PROVIDER_STREAM_CUT" : "PROVIDER_UNAVAILABLE", retryable: true };
  }
  if (error instanceof Error && REQUEST_ERRORS.has(error.name)) return { code: "PROVIDER_BAD_REQUEST", retryable: false };
  if (error instanceof Error && RESPONSE_ERRORS.has(error.name)) return { code: "PROVIDER_BAD_RESPONSE", retryable: true };
  if (APICallError.isInstance(error) && status === undefined && error.isRetryable) return { code: "PROVIDER_UNAVAILABLE", retryable: true };
  // An error that a vendor streamed without saying what it is, or a fault of a client. Retrying is bounded by the budget.
  return { code: error instanceof Error ? "PROVIDER_BAD_RESPONSE" : "PROVIDER_UNAVAILABLE", retryable: true };
}

const OVERFLOW_CODES = new Set([
  "context_length_exceeded", // OpenAI and most that imitate it
  "context_window_exceeded",
  "model_context_window_exceeded", // Anthropic's stop reason, seen as a code from gateways
  "exceed_context_size_error", // llama.cpp server
  "context_too_large",
  "prompt_too_long",
  "request_too_large", // Anthropic, with 413
  "input_too_long",
  "string_above_max_length", // OpenAI: one message longer than a content string may be
  "tokens_exceeded_error",
]);

/**
 * Wordings seen with vendors and servers (collected from public issue threads until 2026-11). Each names a limit of the
 * input or the window: "too long" alone would match a refused tool name.
 */
const OVERFLOW_WORDINGS: readonly RegExp[] = [
  /prompt is too long/i, // Anthropic; also Vertex and Bedrock in front of it
  /prompt too long/i, // Ollama: "prompt too long; exceeded max context length by N tokens"
  /input (?:is|was) too long for (?:the )?requested model/i, // Bedrock
  /input (?:length|tokens?|token count).{0,80}exceed/i, // Anthropic "input length and `max_tokens` exceed context limit", Gemini "input token count (N) exceeds"
  /exceeds? the (?:model'?s )?(?:maximum|max)(?:imum)?(?: allowed| number of)? (?:input length|input tokens?|context|prompt length|tokens allowed)/i,
  /maximum (?:allowed )?input (?:length|tokens)/i,
  /maximum context (?:length|size|window)/i, // OpenAI and vLLM "maximum context length is N tokens"
  /max(?:imum)? (?:model|sequence) len(?:gth)?/i, // vLLM "max_model_len"
  /max_model_len/i,
  /maximum prompt length/i, // xAI "maximum prompt length is N but the request contains M"
  /context[ _-]?length[ _-]?exceeded/i,
  /context[ _-]?window[ _-]?exceed/i,
  /exceed(?:s|ed|ing)?(?: the)?(?: available| model'?s| max(?:imum)?)*[ _]?context[ _](?:size|length|window|limit)/i, // llama.cpp "exceeds the available context size"
  /(?:context (?:size|window|length|limit)) (?:has been |was |is )?exceeded/i,
  /exceeds? (?:the )?context/i,
  /too (?:many|large) (?:input )?tokens? (?:for|in) (?:the )?(?:prompt|request|context|model)/i,
  /reduce the length of the (?:messages|prompt|input)/i,
  /token limit exceeded|exceeded model token limit/i, // Moonshot
  /prompt (?:has|contains) \d+ tokens?.{0,60}(?:limit|maximum|context)/i,
  /request (?:entity |body )?(?:is )?too large/i,
  /request exceeds the maximum size/i,
  /greater than the context length/i, // LM Studio
];

const RATE_CODES = new Set([
  "rate_limit_error",
  "rate_limit_exceeded",
  "too_many_requests",
  "throttling_exception",
  "throttlingexception",
  "resource_exhausted",
  "tokens",
  "requests",
]);
const RATE_WORDING = /rate[ _-]?limit|per[ -]?min(?:ute)?\b|per[ -]?(?:second|hour|day)\b|\b[TR]P[MD]\b|too many (?:requests|concurrent)|throttl|quota exceeded for/i;

function isRateLimit(facts: ErrorFacts): boolean {
  if (facts.codes.includes("context_length_exceeded")) return false;
  if (facts.status === 429) return true;
  if (facts.status !== undefined && facts.status >= 500 && facts.status !== 503) return false;
  return facts.codes.some((code) => RATE_CODES.has(code)) || RATE_WORDING.test(facts.text);
}

/** No waiting helps: somebody must pay or raise a limit. OpenAI sends this with 429, Anthropic with 400. */
function isAccountProblem(facts: ErrorFacts): boolean {
  return facts.codes.some((code) => ACCOUNT_CODES.has(code)) || /credit balance is too low|check your plan and billing/i.test(facts.text);
}
const ACCOUNT_CODES = new Set(["insufficient_quota", "billing_error", "billing_hard_limit_reached", "billing_not_active", "account_deactivated"]);

const MODEL_MISSING = /model/i;
const TIMEOUT_CODES = new Set(["ETIMEDOUT", "UND_ERR_CONNECT_TIMEOUT", "UND_ERR_HEADERS_TIMEOUT", "UND_ERR_BODY_TIMEOUT"]);
const CUT_WORDING = /^terminated$|other side closed|socket hang up|premature close|ended without (?:a )?finish|connection (?:error|closed|reset)|ECONNRESET/im;
const REQUEST_ERRORS = new Set([
  "AI_InvalidPromptError",
  "AI_InvalidArgumentError",
  "AI_UnsupportedFunctionalityError",
  "AI_LoadSettingError",
  "MediaUnavailableError",
  "VendorStateError",
]);
const RESPONSE_ERRORS = new Set(["AI_InvalidResponseDataError", "AI_JSONParseError", "AI_TypeValidationError", "AI_EmptyResponseBodyError", "AI_NoContentGeneratedError"]);

/** Gathers what there is to know from an APICallError, a streamed error object, a plain error or a string. */
export function errorFacts(error: unknown): ErrorFacts {
  const codes: string[] = [];
  const texts: string[] = [];
  const network: string[] = [];
  let status: number | undefined;
  let headers: Record<string, string> = {};
  let message: string | undefined;
  const takeCode = (value: unknown) => {
    if (typeof value === "string" && value !== "") codes.push(value.toLowerCase().replaceAll(/[^a-z0-9]+/g, "_"));
  };
  const takeStatus = (value: unknown) => {
    if (status === undefined && typeof value === "number" && value >= 100 && value < 600) status = value;
  };
  /** A vendor's error object, or an envelope around it. */
  const takeBody = (value: unknown, depth: number): void => {
    if (depth > 3) return;
    if (typeof value === "string") {
      texts.push(value);
      return;
    }
    if (typeof value !== "object" || value === null) return;
    if (Array.isArray(value)) {
      for (const item of value.slice(0, 3)) takeBody(item, depth + 1);
      return;
    }
    const object = value as Record<string, unknown>;
    if (object["type"] !== "error") takeCode(object["type"]);
    takeCode(object["code"]);
    takeCode(object["status"]);
    takeStatus(object["code"]);
    takeStatus(object["statusCode"]);
    takeStatus(object["status"]);
    if (typeof object["message"] === "string") texts.push(object["message"]);
    for (const key of ["error", "detail", "details", "response", "data"]) if (object[key] !== undefined) takeBody(object[key], depth + 1);
  };

  const seen = new Set<unknown>();
  let current: unknown = error;
  while (current instanceof Error && !seen.has(current) && seen.size < 6) {
    seen.add(current);
    message ??= current.message;
    texts.push(current.message);
    const code = (current as { code?: unknown }).code;
    if (typeof code === "string" && /^(?:E[A-Z]+|UND_ERR_[A-Z_]+|ConnectionRefused|ConnectionClosed|FailedToOpenSocket)$/.test(code)) network.push(code);
    else takeCode(code);
    if (APICallError.isInstance(current)) {
      takeStatus(current.statusCode);
      headers = { ...lowerCased(current.responseHeaders ?? {}), ...headers };
      if (current.responseBody !== undefined) {
        texts.push(current.responseBody);
        takeBody(parsed(current.responseBody), 0);
      }
      takeBody(current.data, 0);
    }
    current = current.cause;
  }
  if (current !== undefined && !(current instanceof Error)) {
    takeBody(current, 0);
    message ??= typeof current === "string" ? current : texts.find((text) => text !== "");
  }
  const text = texts.join("\n");
  return {
    ...(status === undefined ? {} : { status }),
    codes,
    message: message === undefined || message === "" ? fallbackMessage(status, text) : message,
    text,
    headers,
    network,
  };
}

/**
 * The vendor's wish in milliseconds: `retry-after-ms`, else `retry-after` in seconds or as an HTTP date (read against
 * the response's own `date`, so that a wrong local clock does no harm), else "try again in 1.5s" in the message.
 */
function retryAfter(facts: ErrorFacts, nowMs: number): number | undefined {
  const ms = Number(facts.headers["retry-after-ms"] ?? "x");
  if (Number.isFinite(ms) && ms >= 0) return Math.ceil(ms);
  const header = facts.headers["retry-after"];
  if (header !== undefined && header.trim() !== "") {
    const seconds = Number(header);
    if (Number.isFinite(seconds)) return Math.max(0, Math.ceil(seconds * 1000));
    const at = Date.parse(header);
    if (Number.isFinite(at)) {
      const vendorNow = Date.parse(facts.headers["date"] ?? "");
      return Math.max(0, at - (Number.isFinite(vendorNow) ? vendorNow : nowMs));
    }
  }
  const wording = /try again in (?:(\d+)m)?(\d+(?:\.\d+)?)(ms|s)\b/i.exec(facts.text);
  if (wording === null) return undefined;
  const value = Number(wording[2]) * (wording[3]?.toLowerCase() === "ms" ? 1 : 1000);
  return Math.ceil(Number(wording[1] ?? 0) * 60_000 + value);
}

function parsed(body: string): unknown {
  try {
    return JSON.parse(body) as unknown;
  } catch {
    return undefined;
  }
}

function lowerCased(headers: Record<string, string>): Record<string, string> {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
}

function fallbackMessage(status: number | undefined, text: string): string {
  if (text.trim() !== "") return text.trim();
  return status === undefined ? "the provider failed without saying why" : `the provider answered with status ${status}`;
}

function clip(text: string): string {
  return text.length <= 2_000 ? text : `${text.slice(0, 2_000).toWellFormed()}…`;
}
