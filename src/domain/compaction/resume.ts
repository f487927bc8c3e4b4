/** A fold that begins at a marker: reads the head and the tail only, however long the run is. */
import type { CapstanEvent, EventOf } from "../event.ts";
import { evolve, initialState, type RunState } from "../fold.ts";
import type { UsageTotals } from "../usage.ts";
import { isInertBefore } from "./fold.ts";

export interface MarkedRun {
  /** The first event of the whole line: its input is the pinned task. */
  readonly created: EventOf<"run.created">;
  /** The run's own first event, where it is another one and not in the tail. */
  readonly own?: EventOf<"run.created">;
  readonly marker: EventOf<"context.compacted">;
  /** All events from `tailFrom` the marker on, the marker among them. */
  readonly tail: Iterable<CapstanEvent>;
  /** From the row of the run that the tail begins in: the events that tell it are not read. */
  readonly definitionSha: string | undefined;
  /** From the run's row. */
  readonly usage: UsageTotals;
}

/** seq of the first event that a fold beginning at this marker needs. */
export function tailFrom({ seq, payload: { cut, carry } }: EventOf<"context.compacted">): number {
  return Math.min(seq, cut.first_kept_seq, carry.from_seq ?? seq);
}

/** The same state as a fold of the whole journal gives. */
export function resumeAtMarker({ created, own, marker, tail, definitionSha, usage }: MarkedRun): RunState {
  const state = evolve(initialState(), created);
  if (own !== undefined) {
    // At the base's turn, as its row says; what it had to say to the model is in the head or in the tail's messages.
    state.turn = own.turn;
    evolve(state, own);
    state.phase = { kind: "boundary" };
  }
  state.definitionSha = definitionSha;
  state.status = "running";
  state.view = [];
  state.places = [];
  state.seq = tailFrom(marker) - 1;
  for (const event of tail) {
    if (event.seq < marker.seq && isInertBefore(event)) state.seq = event.seq;
    else evolve(state, event);
  }
  state.usage = usage;
  return state;
}
