/**
 * Waits for a promise, no longer than a time and not beyond a signal: true when the promise came first. Leaves no timer and
 * no listener behind; the promise should be one that nobody else keeps, since what waits for it is kept with it.
 */
export async function waitFor(promise: Promise<unknown> | undefined, ms: number, signal?: AbortSignal): Promise<boolean> {
  if (signal?.aborted === true) return false;
  const { promise: first, resolve } = Promise.withResolvers<boolean>();
  const end = (): void => resolve(false);
  const timer = setTimeout(end, ms);
  signal?.addEventListener("abort", end, { once: true });
  void promise?.then(() => resolve(true));
  try {
    return await first;
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
  }
}
