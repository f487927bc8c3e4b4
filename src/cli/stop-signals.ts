/** Ctrl-C and SIGTERM: the first asks to stop, a second one ends the process at once. */
import { constants } from "node:os";

export interface StopSignals {
  /** Fires at the first signal. */
  readonly signal: AbortSignal;
  /** 130 or 143, as shells write it; 0 before any signal. */
  readonly exitCode: number;
  dispose(): void;
}

/**
 * `npm start` hands Ctrl-C on to us although the terminal has sent it already (npm's run-script, signal-manager), so one
 * key press arrives twice. Signals this close together are one; a person's second press is later.
 */
const SAME_PRESS_MS = 500;

/** `beforeExit` runs at the second signal and must not wait for anything. */
export function listenForStop(beforeExit: () => void = () => {}): StopSignals {
  const stop = new AbortController();
  let firstAt: number | undefined;
  let exitCode = 0;
  const handle = (name: NodeJS.Signals): void => {
    if (firstAt === undefined) {
      firstAt = performance.now();
      exitCode = codeOf(name);
      stop.abort();
    } else if (performance.now() - firstAt >= SAME_PRESS_MS) {
      beforeExit();
      process.exit(codeOf(name));
    }
  };
  process.on("SIGINT", handle);
  process.on("SIGTERM", handle);
  return {
    signal: stop.signal,
    get exitCode() {
      return exitCode;
    },
    dispose() {
      process.off("SIGINT", handle);
      process.off("SIGTERM", handle);
    },
  };
}

function codeOf(name: NodeJS.Signals): number {
  return 128 + constants.signals[name];
}

export async function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return;
  await new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
}
