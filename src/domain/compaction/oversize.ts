/** Which results of a tool message to shorten so that the message fits. */
import { utf8Length } from "../transcript/chain.ts";
import { toolOutputText, type Message } from "../transcript/message.ts";
import { excerptMessage } from "./excerpt.ts";
import { messageTokens } from "./footprint.ts";
import type { Excerpt, Place } from "./types.ts";

/** Room for the note between head and tail. */
const NOTE_BYTES = 160;
/** Below this an excerpt tells nothing. */
const MIN_KEEP_BYTES = 256;

export interface Part {
  readonly seq: number;
  readonly name: string;
  readonly sizeBytes: number;
}

/** The results of a tool message with the events that hold them; none for a place that does not say which is which. */
export function partsOf(message: Message, place: Place | undefined): Part[] {
  if (message.role !== "tool" || place === undefined) return [];
  const seqs = place.parts ?? (message.content.length === 1 ? [place.first] : []);
  return message.content.flatMap((part, i) => {
    const seq = seqs[i];
    return seq === undefined ? [] : [{ seq, name: part.name, sizeBytes: utf8Length(toolOutputText(part.output)) }];
  });
}

export interface Fitted {
  readonly excerpts: readonly Excerpt[];
  /** Of the message as it is shown then. */
  readonly tokens: number;
}

/** Cuts the largest results down to one size, so that all together take `tokens`; small ones stay whole. */
export function fitMessage(message: Message, place: Place | undefined, tokens: number, shortened: ReadonlyMap<number, Excerpt>): Fitted {
  const parts = partsOf(message, place).filter(({ seq }) => !shortened.has(seq));
  const excess = (messageTokens(message) - tokens) * 4;
  if (parts.length === 0 || excess <= 0) return { excerpts: [], tokens: messageTokens(message) };
  const cap = levelFor(
    parts.map(({ sizeBytes }) => sizeBytes),
    excess,
  );
  const keepBytes = Math.max(MIN_KEEP_BYTES, cap - NOTE_BYTES);
  const excerpts = parts.flatMap(({ seq, sizeBytes }): Excerpt[] => (sizeBytes > keepBytes + NOTE_BYTES ? [{ seq, keep_bytes: keepBytes, kind: "excerpt" }] : []));
  return { excerpts, tokens: messageTokens(shownWith(message, place, excerpts)) };
}

/** The message with these excerpts, as the fold shows it. */
export function shownWith(message: Message, place: Place | undefined, excerpts: readonly Excerpt[]): Message {
  if (place === undefined || excerpts.length === 0) return message;
  return excerptMessage(message, place.parts ?? [place.first], new Map(excerpts.map((excerpt) => [excerpt.seq, excerpt])));
}

/** The largest size such that cutting all to it takes away `excess` bytes; 0 when not even that is enough. */
function levelFor(sizes: readonly number[], excess: number): number {
  const sorted = sizes.toSorted((a, b) => b - a);
  let sum = 0;
  for (const [i, size] of sorted.entries()) {
    sum += size;
    const level = Math.floor((sum - excess) / (i + 1));
    if (level >= (sorted[i + 1] ?? 0)) return Math.max(0, level);
  }
  return 0;
}
