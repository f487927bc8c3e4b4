/**
 * What compaction events do to a run's state. The marker's rule is the same for the live view, for a fold from the first
 * event and for one that begins at the marker: the head, then every message that comes from `first_kept_seq` or later,
 * with the marker's excerpts. Markers inside the kept range were applied before it and say nothing more (case C04).
 */
import type { CapstanEvent, EventOf } from "../event.ts";
import type { RunState } from "../fold.ts";
import type { JsonObject } from "../json.ts";
import { inputParts } from "../transcript/derive.ts";
import type { Message } from "../transcript/message.ts";
import { applyExcerpts } from "./excerpt.ts";
import { renderHead } from "./head.ts";
import { REMEMBERED_COMPACTIONS, type CompactionReason, type CompactionTrigger, type Cut, type Excerpt, type Fact, type Head, type Place } from "./types.ts";

/** A task that was requested and has not come to its end in the journal. */
export interface TaskInFlight {
  readonly id: string;
  readonly trigger: CompactionTrigger;
  readonly cut: Cut;
  /** Of the view that it was planned for. */
  readonly epoch: number;
  readonly prefetch: boolean;
  readonly hard: boolean;
  /** The effective policy that it was planned under. */
  readonly policy: JsonObject;
  prepared: boolean;
}

export interface CompactionState {
  task: TaskInFlight | undefined;
  /** The agent asked for it (`op=compact`); done at the next boundary. */
  wanted: boolean;
  head: Head | undefined;
  pins: Fact[];
  /** Turns at whose top (or in whose middle, after an overflow) compactions were applied: the last few, oldest first. */
  appliedTurns: number[];
  /** The same of the last skip or failure. */
  unappliedTurn: number | undefined;
  /** The turn that an overflow's compaction was applied in: its request is tried once more, not twice. */
  overflowTurn: number | undefined;
  reported: CompactionReason[];
  /** Excerpts in force, by the seq of what they shorten. */
  excerpts: Map<number, Excerpt>;
}

export function noCompactions(): CompactionState {
  return { task: undefined, wanted: false, head: undefined, pins: [], appliedTurns: [], unappliedTurn: undefined, overflowTurn: undefined, reported: [], excerpts: new Map() };
}

type Folded =
  | EventOf<"compaction.requested">
  | EventOf<"compaction.prepared">
  | EventOf<"compaction.skipped">
  | EventOf<"compaction.failed">
  | EventOf<"context.compacted">
  | EventOf<"context.pruned">
  | EventOf<"tool.completed">;

export function foldCompaction(state: RunState, event: Folded): void {
  const { compaction } = state;
  switch (event.type) {
    case "tool.completed":
      if (event.payload.context?.op === "compact") compaction.wanted = true;
      else if (event.payload.context?.op === "pin") compaction.pins.push({ kind: "pin", text: event.payload.context.text, seq: event.seq });
      return;
    case "compaction.requested": {
      const { task_id: id, trigger, cut, policy, prefetch = false, hard = false } = event.payload;
      compaction.task = { id, trigger, cut, policy, epoch: event.epoch, prefetch, hard, prepared: false };
      compaction.wanted = false;
      return;
    }
    case "compaction.prepared":
      if (compaction.task?.id === event.payload.task_id) compaction.task.prepared = true;
      return;
    case "compaction.skipped":
    case "compaction.failed":
      if (event.payload.task_id !== undefined && compaction.task?.id === event.payload.task_id) compaction.task = undefined;
      compaction.wanted = false;
      // What people were told says nothing of what auto may do, or has told.
      if (event.payload.trigger === "manual") return;
      compaction.unappliedTurn = turnAtHand(state);
      if (!compaction.reported.includes(event.payload.reason)) compaction.reported.push(event.payload.reason);
      return;
    case "context.pruned":
      state.view = shortenedView(state, freshExcerpts(state, event.payload.excerpts));
      for (const excerpt of event.payload.excerpts) compaction.excerpts.set(excerpt.seq, excerpt);
      state.epoch++;
      if (state.phase.kind === "failed") refused(state, state.phase.attempt);
      count(state, event.payload.after);
      return;
    case "context.compacted":
      applyMarker(state, event);
      return;
  }
}

/** The turn that is about to begin, or that is to be asked again. */
export function turnAtHand(state: Pick<RunState, "turn" | "phase">): number {
  return state.phase.kind === "boundary" || state.phase.kind === "answered" ? state.turn + 1 : state.turn;
}

/** Blank summaries of old rows are no markers: the view before them stands (case C30). */
export function isUsableMarker(event: EventOf<"context.compacted">): boolean {
  return event.payload.head.summary.trim() !== "";
}

function applyMarker(state: RunState, event: EventOf<"context.compacted">): void {
  const { compaction } = state;
  const { task_id, cut, head, after, carry } = event.payload;
  if (compaction.task?.id === task_id) compaction.task = undefined;
  if (!isUsableMarker(event)) return;
  const kept = keptFrom(state.places, cut.first_kept_seq, state.marker !== undefined);
  state.view = markedView(state, head, cut);
  state.places = [{ first: event.seq, last: event.seq }, ...state.places.slice(kept)];
  for (const seq of compaction.excerpts.keys()) if (seq < cut.first_kept_seq) compaction.excerpts.delete(seq);
  for (const excerpt of cut.excerpts ?? []) compaction.excerpts.set(excerpt.seq, excerpt);
  compaction.head = head;
  compaction.pins = [...carry.pins];
  compaction.wanted = false;
  compaction.appliedTurns = carry.applied_turns.slice(-REMEMBERED_COMPACTIONS);
  compaction.unappliedTurn = carry.unapplied_turn;
  compaction.reported = [...carry.reported];
  compaction.overflowTurn = undefined;
  state.turn = carry.turn;
  // From the marker, not from the failure's event: that one may be among what is not read any more.
  if (carry.overflow_attempt !== undefined) refused(state, carry.overflow_attempt);
  state.nativeOutput = carry.native_output;
  state.corrections = { ...carry.corrections };
  state.modelFailures = carry.model_failures;
  state.truncatedTo = carry.truncated_to;
  if (carry.budget !== undefined) {
    const { told, over, wrap_turn: wrapTurn, spent } = carry.budget;
    state.budget = { told, over, wrapTurn, spent: { tokens: spent.tokens, costUsdMicros: spent.cost_usd_micros } };
  }
  state.marker = event.seq;
  state.epoch = event.epoch + 1;
  count(state, after);
}

/** The turn's request was refused for length, and the view is smaller now: the turn is asked again, once. */
function refused(state: RunState, attempt: number): void {
  state.phase = { kind: "failed", attempt, failure: { error: { code: "CONTEXT_OVERFLOW", message: "the request did not fit; the view has become smaller since" } }, smaller: true };
  state.compaction.overflowTurn = state.turn;
}

type Viewed = Pick<RunState, "view" | "places" | "marker" | "input" | "compaction">;

/** The view that a marker makes: by this rule alone it is measured before, applied live, and rebuilt. */
export function markedView(state: Viewed, head: Head, cut: Cut): Message[] {
  const kept = keptFrom(state.places, cut.first_kept_seq, state.marker !== undefined);
  const tail = { view: state.view.slice(kept), places: state.places.slice(kept) };
  const shortened = shortenedView(tail, freshExcerpts(state, cut.excerpts ?? []));
  return [renderHead(head, cut.keep_first ? inputParts(state.input) : undefined), ...shortened];
}

/** What a cut takes out of the view: neither the pinned task nor an earlier head, which a marker replaces by its own. */
export function replacedBy(
  { view, places, marker }: Pick<Viewed, "view" | "places" | "marker">,
  cut: Cut,
): { readonly from: number; readonly to: number; readonly messages: Message[] } {
  const hasHead = marker !== undefined;
  const from = hasHead || cut.keep_first ? 1 : 0;
  const to = keptFrom(places, cut.first_kept_seq, hasHead);
  return { from, to, messages: view.slice(from, to) };
}

/** Index of the first message of the tail. An earlier head stands in no tail, whatever its seq. */
export function keptFrom(places: readonly Place[], firstKeptSeq: number, hasHead: boolean): number {
  const found = places.findIndex(({ first }, i) => first >= firstKeptSeq && !(hasHead && i === 0));
  return found === -1 ? places.length : found;
}

/** Each content is shortened once, from its row's own text: a second time would shorten the excerpt. */
function freshExcerpts({ compaction }: Pick<RunState, "compaction">, excerpts: readonly Excerpt[]): Excerpt[] {
  return excerpts.filter(({ seq }) => !compaction.excerpts.has(seq));
}

function shortenedView({ view, places }: Pick<RunState, "view" | "places">, excerpts: readonly Excerpt[]): Message[] {
  const changed = applyExcerpts(view, places, excerpts);
  return view.map((message, i) => changed.get(i) ?? message);
}

function count(state: RunState, after: { readonly tokens: number; readonly scale: RunState["contextScale"] }): void {
  state.contextTokens = after.tokens;
  state.contextScale = after.scale;
  state.countedMessages = state.view.length;
}

/** Inert for a fold that begins at a later marker: what they did to the view is in that marker. */
export function isInertBefore(event: CapstanEvent): boolean {
  return event.type.startsWith("compaction.") || event.type === "context.compacted" || event.type === "context.pruned";
}
