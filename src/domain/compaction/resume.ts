/** A fold that begins at a marker: reads the head and the tail only, however long the run is. */
import type { CapstanEvent, EventOf } from "../event.ts";
import { evolve, initialState, type RunState } from "../fold.ts";
import type { UsageTotals } from "../usage.ts";
import { isInertBefore } from "./fold.ts";

export interface MarkedRun {
  readonly created: EventOf<"run.created">;
  readonly marker: EventOf<"context.compacted">;
  /** All events from `tailFrom` the marker on, the marker among them. */
  readonly tail: Iterable<CapstanEvent>;
  /** From the run's row: the events that tell them are not read. */
  readonly definitionSha: string | undefined;
  readonly usage: UsageTotals;
}

/** seq of the first event that a fold beginning at this marker needs. */
export function tailFrom({ seq, payload: { cut, carry } }: EventOf<"context.compacted">): number {
  return Math.min(seq, cut.first_kept_seq, carry.from_seq ?? seq);
}

/** The same state as a fold of the whole journal gives. */
export function resumeAtMarker({ created, marker, tail, definitionSha, usage }: MarkedRun): RunState {
  const state = evolve(initialState(), created);
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
