/** Pauses between tries: doubled each time, capped, with jitter so that many runs do not come back at once. */
export interface BackoffOptions {
  readonly firstMs: number;
  readonly maxMs: number;
}

/** `attempt` from 1; `random` in [0, 1). Between half and the whole of the doubled pause. */
export function backoffMs(attempt: number, random: number, { firstMs, maxMs }: BackoffOptions): number {
  const ceiling = Math.min(maxMs, firstMs * 2 ** Math.min(attempt - 1, 30));
  return Math.round(ceiling / 2 + (ceiling / 2) * random);
}
