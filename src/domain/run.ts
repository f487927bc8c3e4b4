/**
 * States of a run and the moves between them, enforced here alone (docs/state-machine.md draws them).
 * `paused` and `cancel requested` are marks beside the state, so that a paused run still knows what it waits for.
 */
import { CapstanError } from "./error.ts";
import type { JsonObject } from "./json.ts";

export const runStatuses = ["queued", "running", "waiting", "completed", "failed", "cancelled"] as const;
export type RunStatus = (typeof runStatuses)[number];

const moves: { readonly [S in RunStatus]: readonly RunStatus[] } = {
  // A run that no worker has looked at may fail (invalid input), be parked (agent missing) or be cancelled.
  queued: ["running", "waiting", "failed", "cancelled", "completed"],
  running: ["running", "waiting", "completed", "failed", "cancelled"],
  waiting: ["waiting", "running", "completed", "failed", "cancelled"],
  completed: [],
  failed: [],
  cancelled: [],
};

export function isTerminal(status: RunStatus): boolean {
  return moves[status].length === 0;
}

export class TransitionError extends CapstanError {
  override readonly name = "TransitionError";
  readonly code = "TRANSITION_INVALID";
  override readonly details: JsonObject;
  constructor(from: RunStatus, to: RunStatus) {
    super(`a ${from} run cannot become ${to}`);
    this.details = { from, to };
  }
}

/** Throws TransitionError: a journal that makes this move was not written by this code. */
export function assertTransition(from: RunStatus, to: RunStatus): void {
  if (!moves[from].includes(to)) throw new TransitionError(from, to);
}
