/** The `wait` tool: for some time, or for a signal. */
import { CapstanError } from "../domain/error.ts";
import { MAX_WAIT_MS } from "../domain/definition.ts";
import { Deferred } from "./deferred.ts";
import type { WaitInput } from "./engine-tool-inputs.ts";
import type { Turn } from "./turn.ts";

class WaitInvalidError extends CapstanError {
  override readonly name = "WaitInvalidError";
  readonly code = "WAIT_INVALID";
}

export function waitFor(turn: Turn, { seconds, until, signal }: WaitInput): Deferred {
  if (seconds !== undefined && until !== undefined) throw new WaitInvalidError("give `seconds` or `until`, not both");
  const inMs = seconds === undefined ? (until === undefined ? undefined : untilMs(turn, until)) : seconds * 1_000;
  if (inMs !== undefined && inMs > MAX_WAIT_MS) throw new WaitInvalidError("nobody waits for more than ten years; give an earlier time");
  if (signal !== undefined) return new Deferred({ kind: "signal", signal, ...(inMs === undefined ? {} : { timeoutMs: Math.max(0, inMs) }) });
  if (inMs === undefined) throw new WaitInvalidError("give `seconds`, `until` or `signal`");
  return new Deferred({ kind: "timer", at: { inMs: Math.max(0, inMs) } });
}

function untilMs(turn: Turn, until: string): number {
  // Without its zone a time would be the worker's own.
  const at = /(?:Z|[+-]\d\d:?\d\d)$/.test(until) ? Date.parse(until) : Number.NaN;
  if (Number.isNaN(at)) throw new WaitInvalidError(`\`until\` is ${JSON.stringify(until.slice(0, 100))}; give a time with its zone, like 2030-01-31T08:00:00Z`);
  return at - turn.now.getTime();
}
