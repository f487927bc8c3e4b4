/**
 * Requests to an API: a time for each, tries that grow further apart, and answers as values or as typed errors. What may
 * have been done is done again only if twice is the same as once: by the method, or by an idempotency key.
 */
import type { JsonObject, JsonValue } from "../../domain/json.ts";
import { ArgumentError } from "../errors.ts";
import { waitFor } from "../wait-for.ts";
import { ApiError, ApiUnavailableError, fromProblem, type Problem } from "./errors.ts";

export interface ApiOptions {
  /** Where the API is, without `/v1`: `https://capstan.example`. */
  readonly baseUrl: string;
  /** A token, or how to get one, asked before each request. None on a loopback without tokens. */
  readonly token?: string | (() => string | Promise<string>);
  /** Default: the global one. */
  readonly fetch?: typeof globalThis.fetch;
  /** Of each request; default 30,000. A stream or a wait for a result lasts as long as it must. */
  readonly timeoutMs?: number;
  /** Tries after the first; default 4, some 5 s in all. 0 for none. */
  readonly retries?: number;
}

export interface ApiRequest {
  readonly method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** Below /v1. */
  readonly path: string;
  readonly query?: Readonly<Record<string, string | number | boolean | undefined>>;
  readonly body?: JsonObject;
  /** Sent as the header; makes the request one that may be made again. */
  readonly idempotencyKey?: string;
  /** Twice is the same as once. Default: of a GET, and with an idempotency key. */
  readonly repeatable?: boolean;
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal | undefined;
}

const FIRST_PAUSE_MS = 200;
const MAX_PAUSE_MS = 5_000;
/** Longer than this no answer is waited for, whatever Retry-After says: the caller is told instead. */
const MAX_RETRY_AFTER_MS = 60_000;
/** Nothing was sent: these may be tried again whatever was asked. */
const NOT_SENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT", "EHOSTUNREACH", "ENETUNREACH"]);

export class ApiRequests {
  readonly #options: ApiOptions;
  readonly #base: string;
  readonly #fetch: typeof globalThis.fetch;

  constructor(options: ApiOptions) {
    this.#options = options;
    if (!URL.canParse(options.baseUrl) || !/^https?:$/.test(new URL(options.baseUrl).protocol)) {
      throw new ArgumentError(`baseUrl ${JSON.stringify(options.baseUrl)} is no http(s) URL; give the one at which the API answers, without /v1`);
    }
    this.#base = options.baseUrl.replace(/\/+$/, "");
    this.#fetch = options.fetch ?? globalThis.fetch;
  }

  async json<T = JsonValue>(request: ApiRequest): Promise<T> {
    const { retries = 4 } = this.#options;
    const repeatable = request.repeatable ?? (request.method === "GET" || request.idempotencyKey !== undefined);
    for (let tried = 0; ; tried++) {
      const outcome = await this.#once(request);
      if (outcome.ok) return outcome.value as T;
      const { error, wasRefused, retryAfterMs } = outcome;
      const mayRetry = wasRefused || (repeatable && outcome.isPassing);
      if (!mayRetry || tried >= retries || (retryAfterMs ?? 0) > MAX_RETRY_AFTER_MS) throw error;
      await waitFor(undefined, retryAfterMs ?? pauseMs(tried), request.signal);
      if (request.signal?.aborted === true) throw error;
    }
  }

  /** A response whose body is still to be read. Tried once: who reads a stream comes again by itself. */
  async open(
    path: string,
    { query = {}, headers = {}, signal }: { readonly query?: ApiRequest["query"]; readonly headers?: Record<string, string>; readonly signal: AbortSignal },
  ): Promise<Response> {
    const response = await this.#fetch(this.#url(path, query), { headers: { ...headers, ...(await this.#authorization()) }, signal });
    if (response.ok) return response;
    throw Object.assign(fromProblem(response.status, await problemOf(response)), { retryAfterMs: retryAfterOf(response) });
  }

  async #once(request: ApiRequest): Promise<Outcome> {
    const { method, path, query = {}, body, idempotencyKey, signal, timeoutMs = this.#options.timeoutMs ?? 30_000 } = request;
    const timeout = AbortSignal.timeout(timeoutMs);
    try {
      const response = await this.#fetch(this.#url(path, query), {
        method,
        headers: {
          accept: "application/json, application/problem+json",
          ...(body === undefined ? {} : { "content-type": "application/json" }),
          ...(idempotencyKey === undefined ? {} : { "idempotency-key": idempotencyKey }),
          ...(await this.#authorization()),
        },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        signal: signal === undefined ? timeout : AbortSignal.any([timeout, signal]),
      });
      if (response.ok) return { ok: true, value: response.status === 204 ? undefined : await response.json() };
      const error = fromProblem(response.status, await problemOf(response));
      const { status } = response;
      return {
        ok: false,
        error,
        wasRefused: status === 429,
        isPassing: status === 429 || status === 502 || status === 503 || status === 504,
        retryAfterMs: retryAfterOf(response),
      };
    } catch (error) {
      if (signal?.aborted === true) throw error;
      const what = timeout.aborted ? `did not answer within ${timeoutMs} ms` : `cannot be reached (${reasonOf(error)})`;
      const unavailable = new ApiUnavailableError(`${method} ${path}: the API at ${this.#base} ${what}`, { cause: error });
      return { ok: false, error: unavailable, wasRefused: NOT_SENT.has(codeOf(error)), isPassing: true, retryAfterMs: undefined };
    }
  }

  #url(path: string, query: NonNullable<ApiRequest["query"]>): string {
    const given = Object.entries(query).flatMap(([name, value]) => (value === undefined ? [] : [[name, String(value)] as [string, string]]));
    return `${this.#base}/v1${path}${given.length === 0 ? "" : `?${new URLSearchParams(given).toString()}`}`;
  }

  async #authorization(): Promise<Record<string, string>> {
    const { token } = this.#options;
    if (token === undefined) return {};
    return { authorization: `Bearer ${typeof token === "string" ? token : await token()}` };
  }
}

type Outcome =
  | { readonly ok: true; readonly value: unknown }
  | {
      readonly ok: false;
      readonly error: Error;
      /** Nothing was done. */
      readonly wasRefused: boolean;
      /** It may be better in a moment. */
      readonly isPassing: boolean;
      readonly retryAfterMs: number | undefined;
    };

/** Whether an error of a stream or a request is one that time mends. */
export function isPassing(error: unknown): boolean {
  if (error instanceof ApiUnavailableError) return true;
  if (error instanceof ApiError) return error.retryable;
  // What fetch itself throws: the connection was refused or broke.
  return error instanceof TypeError || (error instanceof Error && ["AbortError", "TimeoutError"].includes(error.name));
}

/** Full jitter: a thousand clients of an API that comes back do not come at the same moment. */
export function pauseMs(tried: number): number {
  return Math.random() * Math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS * 2 ** Math.min(tried, 10)) + 20;
}

async function problemOf(response: Response): Promise<Problem> {
  const text = await response.text();
  try {
    const problem: unknown = JSON.parse(text);
    if (typeof problem === "object" && problem !== null && !Array.isArray(problem)) return problem as Problem;
  } catch {
    // A proxy's own page: its status is all there is to know.
  }
  return { title: `the API answered ${response.status} ${response.statusText}`.trim() };
}

/** Seconds or a date (RFC 9110, 10.2.3). */
function retryAfterOf({ headers }: Response): number | undefined {
  const header = headers.get("retry-after");
  if (header === null) return undefined;
  const ms = /^\d+$/.test(header.trim()) ? Number(header) * 1_000 : Date.parse(header) - Date.now();
  return Number.isFinite(ms) ? Math.max(0, ms) : undefined;
}

function codeOf(error: unknown): string {
  const { code, cause } = error as { code?: unknown; cause?: unknown };
  if (typeof code === "string" && code !== "") return code;
  return typeof cause === "object" && cause !== null ? codeOf(cause) : "";
}

function reasonOf(error: unknown): string {
  const { message, cause } = error as Error;
  const inner = cause instanceof Error ? reasonOf(cause) : "";
  return inner === "" ? [codeOf(error), message].filter((part) => part !== "").join(": ") : inner;
}
