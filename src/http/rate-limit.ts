/** Requests per second and caller, in this process alone: it keeps one caller from taking the API from the others, and is no quota. */

export interface RateLimit {
  readonly perSecond: number;
  /** So many at once. */
  readonly burst: number;
}

/** A console that opens, or a thousand followers that come back, are a burst; a loop without a pause is not. */
export const defaultRateLimit: RateLimit = { perSecond: 200, burst: 2_000 };

interface Bucket {
  tokens: number;
  atMs: number;
}

const MAX_CALLERS = 20_000;

export class RateLimiter {
  readonly #limit: RateLimit;
  readonly #buckets = new Map<string, Bucket>();

  constructor(limit: RateLimit) {
    this.#limit = limit;
  }

  /** Takes one; gives the seconds after which it is worth another try when there was none. */
  take(caller: string, nowMs: number = performance.now()): number | undefined {
    const { perSecond, burst } = this.#limit;
    const bucket = this.#buckets.get(caller) ?? { tokens: burst, atMs: nowMs };
    bucket.tokens = Math.min(burst, bucket.tokens + ((nowMs - bucket.atMs) / 1_000) * perSecond);
    bucket.atMs = nowMs;
    // The one that was heard of longest ago stands first: it is full again, or about to be.
    this.#buckets.delete(caller);
    this.#buckets.set(caller, bucket);
    if (this.#buckets.size > MAX_CALLERS) this.#buckets.delete(this.#buckets.keys().next().value as string);
    if (bucket.tokens < 1) return Math.max(1, Math.ceil((1 - bucket.tokens) / perSecond));
    bucket.tokens -= 1;
    return undefined;
  }
}
