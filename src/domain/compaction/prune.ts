/** Room without a summary: results are shortened in the view, deterministically and without a call. Rows stay whole. */
import { utf8Length } from "../transcript/chain.ts";
import { messageText, type Message } from "../transcript/message.ts";
import { applyExcerpts } from "./excerpt.ts";
import { messageTokens } from "./footprint.ts";
import { partsOf } from "./oversize.ts";
import type { ResolvedPolicy } from "./policy.ts";
import type { Excerpt, Place } from "./types.ts";
import { unitsOf } from "./units.ts";

/** Shorter results are not worth a new prefix for the vendor's cache. */
const PRUNE_OVER_BYTES = 1_024;
const PRUNED_KEEP_BYTES = 256;
/** What stays of a result that cannot be fetched again, or that the model has not read yet. */
const MIN_EXCERPT_BYTES = 2_048;

export interface PruneInput {
  readonly view: readonly Message[];
  readonly places: readonly Place[];
  readonly policy: ResolvedPolicy;
  /** The tool may be called again for the same (effect `read` or `idempotent`). */
  readonly isRefetchable: (tool: string) => boolean;
  /** Excerpts in force, by seq: each content is shortened once. */
  readonly shortened?: ReadonlyMap<number, Excerpt>;
  /** Tokens to free. */
  readonly wantedTokens: number;
}

export interface PrunePlan {
  readonly excerpts: Excerpt[];
  readonly freedTokens: number;
  readonly freedBytes: number;
}

/**
 * First old results that can be fetched again, oldest first, never those of the last `keep_last_n` units; if that is too
 * little, the largest results of all as head and tail, so that one huge result cannot end a run (C54). Never a user
 * message, a call or an answer. Undefined when there is nothing to shorten; it may free less than wanted.
 */
export function planPrune({ view, places, policy, isRefetchable, shortened = new Map<number, Excerpt>(), wantedTokens }: PruneInput): PrunePlan | undefined {
  const units = unitsOf(view);
  const protectedFrom = units.at(-Math.max(1, policy.keep_last_n))?.start ?? 0;
  const parts = view.flatMap((message, at) => partsOf(message, places[at]).map((part) => ({ ...part, at }))).filter(({ seq }) => !shortened.has(seq));
  const excerpts: Excerpt[] = [];
  let missingBytes = wantedTokens * 4;
  const old = parts.filter(({ at, name, sizeBytes }) => at < protectedFrom && sizeBytes > PRUNE_OVER_BYTES && isRefetchable(name));
  for (const { seq, sizeBytes } of old) {
    if (missingBytes <= 0) break;
    excerpts.push({ seq, keep_bytes: PRUNED_KEEP_BYTES, kind: "pruned" });
    missingBytes -= sizeBytes - PRUNED_KEEP_BYTES - PRUNE_OVER_BYTES / 4;
  }
  const rest = parts
    .filter(({ seq, sizeBytes }) => sizeBytes > MIN_EXCERPT_BYTES * 2 && excerpts.every((excerpt) => excerpt.seq !== seq))
    .toSorted((a, b) => b.sizeBytes - a.sizeBytes || a.seq - b.seq);
  for (const { seq, sizeBytes } of rest) {
    if (missingBytes <= 0) break;
    const keep = Math.max(MIN_EXCERPT_BYTES, Math.floor(sizeBytes - missingBytes - PRUNE_OVER_BYTES));
    excerpts.push({ seq, keep_bytes: keep, kind: "excerpt" });
    missingBytes -= sizeBytes - keep - PRUNE_OVER_BYTES / 4;
  }
  const changed = [...applyExcerpts(view, places, excerpts)];
  if (changed.length === 0) return undefined;
  const freed = (size: (message: Message) => number): number => changed.reduce((sum, [at, message]) => sum + size(view[at] as Message) - size(message), 0);
  return { excerpts: excerpts.toSorted((a, b) => a.seq - b.seq), freedTokens: freed(messageTokens), freedBytes: freed((message) => utf8Length(messageText(message))) };
}
