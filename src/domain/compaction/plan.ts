/**
 * Where to cut. Wanted is the nearest clean user-turn boundary that leaves the last `keep_last_n` units; where there is
 * none, or its tail is too long, or it frees too little, the nearest complete group. When even that tail exceeds its
 * share, fewer units stay (`kept_units` says how many): the window wins. All is decided before any call is paid for.
 */
import type { JsonObject } from "../json.ts";
import type { Message } from "../transcript/message.ts";
import { fitMessage, type Fitted } from "./oversize.ts";
import type { ResolvedPolicy } from "./policy.ts";
import { roomOf, summaryTokens, type Room } from "./room.ts";
import { legalCuts } from "./rules/legal-cuts.ts";
import { singleMessage, skipWith, tooLarge, type SkipPlan } from "./skip.ts";
import type { CompactionTrigger, Cut, Excerpt, Place } from "./types.ts";
import { unitsOf, type Unit } from "./units.ts";

export { planPrune } from "./prune.ts";

/** With fewer there is nothing that a summary would be shorter than. */
export const MIN_UNITS = 4;

export interface PlanInput {
  readonly view: readonly Message[];
  /** The events of each message, as long as `view`. */
  readonly places: readonly Place[];
  /** The first message is the head of an earlier compaction. */
  readonly hasHead: boolean;
  /** Of that head, the summary: a new one takes its place, so that a large one is no reason to give up. */
  readonly headSummaryTokens?: number;
  /** The seq that the run's next event will have. */
  readonly nextSeq: number;
  readonly policy: ResolvedPolicy;
  readonly windowTokens: number | undefined;
  readonly interactive: boolean;
  readonly trigger: CompactionTrigger;
  /** Fired by the byte counter. Absent: as the policy suggests. */
  readonly byBytes?: boolean;
  /** The next request does not fit: anything that makes room is right. */
  readonly hard?: boolean;
  /** System prompt, tools and output schema of the request. */
  readonly overheadTokens?: number;
  /** Where the percentage trigger fires (footprint.ts); absent: the policy's share of the window. */
  readonly firesAtTokens?: number;
  /** Where a request does not fit; absent: the window. */
  readonly hardLineTokens?: number;
  /** Excerpts in force, by seq: each content is shortened once. */
  readonly shortened?: ReadonlyMap<number, Excerpt>;
}

export interface PlannedCut {
  readonly kind: "cut";
  readonly cut: Cut;
  /** First message of the tail. */
  readonly cutIndex: number;
  /** Estimates: what the view loses, what it has then, and what the summarizer is given. */
  readonly freedTokens: number;
  readonly keptTokens: number;
  readonly sourceTokens: number;
}

export type CutPlan = PlannedCut | SkipPlan;

export function planCut(input: PlanInput): CutPlan {
  const { view, policy, hasHead } = input;
  const room = roomOf(input);
  const units = unitsOf(view, hasHead ? 1 : 0);
  const hopeless = tooLarge(input, room, units);
  if (hopeless !== undefined) return hopeless;
  const numbers: JsonObject = {
    units: units.length,
    keep_last_n: policy.keep_last_n,
    view_tokens: room.viewTokens,
    ...(room.tailBudget === undefined ? {} : { tail_budget_tokens: room.tailBudget }),
  };
  if (units.length < MIN_UNITS)
    return skipWith("too_few_units", { ...numbers, needed_units: MIN_UNITS, fix: `nothing to do before the run has ${MIN_UNITS} messages or responses` });

  const tails = new Tails(input, room);
  const found = choose(input, room, units, tails);
  if (found.kind === "none") return skipWith("nothing_to_cut", { ...numbers, fix: "lower keep_last_n, or wait until more has come behind the pinned task" });
  const { position } = found;
  const freedTokens = tails.freed(position);
  const newestTokens = tails.of((units.at(-1) as Unit).start);
  // Where frame and head leave next to nothing, any message is too much: then it is not the message that is large.
  const isNewestTooLarge = room.tailBudget !== undefined && newestTokens > Math.max(room.tailBudget, room.overheadTokens + room.headTokens);
  if (freedTokens < Math.max(1, room.minFreedTokens)) {
    if (isNewestTooLarge) return singleMessage(input, { ...numbers, message_tokens: newestTokens });
    return skipWith("too_little_freed", {
      ...numbers,
      freed_tokens: freedTokens,
      min_freed_tokens: room.minFreedTokens,
      fix: "lower keep_last_n, or use a model with a larger window",
    });
  }
  if (!found.fits && input.trigger === "auto" && input.hard !== true) {
    const detail = { ...numbers, tail_tokens: tails.of(position), message_tokens: newestTokens };
    if (isNewestTooLarge) return singleMessage(input, detail);
    return skipWith("irreducible", {
      ...detail,
      overhead_tokens: room.overheadTokens,
      head_tokens: room.headTokens,
      fix: `${input.policy.at_tokens === undefined ? "" : "raise at_tokens, "}use a model with a larger window, or shorten instructions, tools and task`,
    });
  }
  const excerpts = tails.excerpts(position);
  return {
    kind: "cut",
    cut: {
      from_seq: (input.places[hasHead ? 1 : 0] as Place).first,
      to_seq: Math.max(...input.places.slice(hasHead ? 1 : 0, position).map(({ last }) => last)),
      first_kept_seq: input.places[position]?.first ?? input.nextSeq,
      kept_units: unitsOf(view, position).length,
      keep_first: policy.keep_first,
      ...(excerpts.length === 0 ? {} : { excerpts }),
      ...(found.requestAt === undefined ? {} : { request_seq: (input.places[found.requestAt] as Place).first }),
    },
    cutIndex: position,
    freedTokens,
    keptTokens: room.viewTokens - freedTokens,
    sourceTokens: tails.source(position),
  };
}

type Choice = { readonly kind: "none" } | { readonly kind: "at"; readonly position: number; readonly fits: boolean; readonly requestAt?: number };

function choose(input: PlanInput, room: Room, units: readonly Unit[], tails: Tails): Choice {
  const { view, policy, hasHead, interactive } = input;
  const legalIf = (isInteractive: boolean): number[] => legalCuts({ view, hasHead, interactive: isInteractive, keepFirst: policy.keep_first });
  const wanted = policy.keep_last_n === 0 ? view.length : (units.at(-policy.keep_last_n)?.start ?? units[0]?.start ?? 0);
  const fits = (position: number): boolean => room.tailBudget === undefined || tails.of(position) <= room.tailBudget;
  const isGood = (position: number): boolean => fits(position) && tails.freed(position) >= room.minFreedTokens;
  const legal = legalIf(interactive);
  const before = legal.filter((position) => position <= wanted);
  const boundary = before.findLast((position) => view[position]?.role === "user" || position === view.length);
  const group = before.at(-1);
  for (const position of [boundary, group]) if (position !== undefined && isGood(position)) return { kind: "at", position, fits: true };
  if (group !== undefined && fits(group)) return { kind: "at", position: group, fits: true };
  // The tail is longer than its share (or a signed loop begins before it): fewer units stay.
  const isPressed = room.tailBudget !== undefined && room.viewTokens > room.tailBudget;
  const fewer = isPressed ? legal.find((position) => position > wanted && isGood(position)) : undefined;
  if (fewer !== undefined) return { kind: "at", position: fewer, fits: true };
  // One exchange of an interactive run that is too long for its tail: its question goes into the head, verbatim.
  const through = isPressed && interactive ? legalIf(false).find((position) => position >= wanted && isGood(position)) : undefined;
  if (through !== undefined) return { kind: "at", position: through, fits: true, ...requestBefore(input, through) };
  const last = isPressed ? legal.at(-1) : group;
  return last === undefined ? { kind: "none" } : { kind: "at", position: last, fits: fits(last) };
}

/** The newest user message, when the cut lies behind it and the head does not show it anyway. */
function requestBefore({ view, hasHead, policy }: PlanInput, position: number): { requestAt?: number } {
  const at = view.findLastIndex((message) => message.role === "user");
  return at >= position || (at === 0 && (hasHead || policy.keep_first)) ? {} : { requestAt: at };
}

/** Sizes of all tails, with messages that alone exceed the budget as excerpts. */
class Tails {
  readonly #input: PlanInput;
  readonly #fitted: readonly Fitted[];
  /** From each position to the end, as it is shown and as it is now; one more entry than messages. */
  readonly #shown: number[];
  readonly #whole: number[];

  constructor(input: PlanInput, room: Room) {
    this.#input = input;
    const { tailBudget, sizes } = room;
    this.#fitted = input.view.map((message, i) => {
      const size = sizes[i] as number;
      if (tailBudget === undefined || size <= tailBudget) return { excerpts: [], tokens: size };
      return fitMessage(message, input.places[i], tailBudget / 2, input.shortened ?? new Map<number, Excerpt>());
    });
    this.#shown = suffixSums(this.#fitted.map(({ tokens }) => tokens));
    this.#whole = suffixSums(sizes);
  }

  of(position: number): number {
    return this.#shown[position] as number;
  }

  excerpts(position: number): Excerpt[] {
    return this.#fitted.slice(position).flatMap(({ excerpts }) => excerpts);
  }

  /** What the summarizer is given: all before the cut but the pinned task. */
  source(position: number): number {
    const from = !this.#input.hasHead && this.#input.policy.keep_first ? 1 : 0;
    return (this.#whole[from] as number) - (this.#whole[position] as number);
  }

  freed(position: number): number {
    const { hasHead, policy } = this.#input;
    // A head that was there is there again, brought up to date.
    const replaced = (this.#whole[hasHead || policy.keep_first ? 1 : 0] as number) - (this.#whole[position] as number);
    return Math.floor(replaced - summaryTokens(this.#input, replaced) + (this.#whole[position] as number) - (this.#shown[position] as number));
  }
}

function suffixSums(values: readonly number[]): number[] {
  const sums = [0];
  for (const value of values.toReversed()) sums.push((sums.at(-1) as number) + value);
  return sums.toReversed();
}
