/**
 * The runs that this process holds right now, each with the signal that stops its model call and tools. A poll asks
 * the database which of them are still ours (queue/held-watch.ts); a graceful stop aborts all with another reason.
 */
export type AbortReason = "lost" | "stopped" | "shutdown";

export interface HeldRun {
  readonly runId: string;
  token: number | undefined;
  readonly startedAtMs: number;
  readonly signal: AbortSignal;
  abort(reason: AbortReason): void;
  /** Set when aborted. */
  reason: AbortReason | undefined;
}

export class InFlight {
  readonly #held = new Set<HeldRun>();
  /** Failures inside the engine by run, and what the last one said: a run that fails so again and again is parked. */
  readonly #engineErrors = new Map<string, { readonly times: number; readonly message: string }>();
  #stopping = false;

  get size(): number {
    return this.#held.size;
  }

  /** No further turn begins in this process. */
  get stopping(): boolean {
    return this.#stopping;
  }

  begin(runId: string, nowMs: number): HeldRun {
    const controller = new AbortController();
    const held: HeldRun = {
      runId,
      token: undefined,
      startedAtMs: nowMs,
      signal: controller.signal,
      reason: undefined,
      abort(reason) {
        // A run that is stopped may be lost yet; nothing brings a lost one back.
        if (this.reason === "lost" || (this.reason !== undefined && reason !== "lost")) return;
        this.reason = reason;
        controller.abort(new Error({ lost: "the run was cancelled or taken over", stopped: "the turn was stopped", shutdown: "the worker is stopping" }[reason]));
      },
    };
    this.#held.add(held);
    return held;
  }

  has(runId: string): boolean {
    return [...this.#held].some((held) => held.runId === runId);
  }

  end(held: HeldRun): void {
    this.#held.delete(held);
  }

  /** Held under a token, and for at least so long: those worth asking the database about. */
  olderThan(ageMs: number, nowMs: number): { readonly run: HeldRun; readonly token: number }[] {
    return [...this.#held].flatMap((run) => (run.token !== undefined && nowMs - run.startedAtMs >= ageMs ? [{ run, token: run.token }] : []));
  }

  engineError(runId: string): { readonly times: number; readonly message: string } | undefined {
    return this.#engineErrors.get(runId);
  }

  noteEngineError(runId: string, message: string): number {
    const times = (this.#engineErrors.get(runId)?.times ?? 0) + 1;
    this.#engineErrors.set(runId, { times, message });
    return times;
  }

  forgetEngineError(runId: string): void {
    this.#engineErrors.delete(runId);
  }

  stopStarting(): void {
    this.#stopping = true;
  }

  abortAll(reason: AbortReason): void {
    for (const run of this.#held) run.abort(reason);
  }
}
