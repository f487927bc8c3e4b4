/**
 * A content that is too large for the view is shown as its head and its tail with a note between them; its row stays
 * whole. Part of what the fold renders: other bytes for the same excerpt need a new HEAD_VERSION (head.ts), which each
 * marker tells.
 */
import { utf8Length } from "../transcript/chain.ts";
import { toolOutputText, type Message, type ToolResultPart, type UserPart } from "../transcript/message.ts";
import type { Excerpt, Place } from "./types.ts";

/** Beginnings tell more than ends: a listing's header, a file's imports, a command's first error. */
const HEAD_SHARE = 0.6;

/**
 * The message with the contents that `bySeq` names shortened; the same object when none is. `seqs` are the events of its
 * parts, in their order (one for a message that comes from a single event). Calls, ids and media are not touched.
 */
export function excerptMessage(message: Message, seqs: readonly number[], bySeq: ReadonlyMap<number, Excerpt>): Message {
  if (!seqs.some((seq) => bySeq.has(seq))) return message;
  switch (message.role) {
    case "tool":
      return withParts(
        message,
        message.content.map((part, i) => shortResult(part, bySeq.get(seqs[i] ?? 0))),
      );
    case "user": {
      const excerpt = bySeq.get(seqs[0] ?? 0);
      return excerpt === undefined ? message : withParts(message, shortParts(message.content, excerpt));
    }
    case "assistant":
      // A response is atomic: with signed reasoning in it, a changed part makes vendors refuse it.
      return message;
  }
}

function withParts<M extends Message>(message: M, content: M["content"]): M {
  return content.every((part, i) => part === message.content[i]) ? message : { ...message, content };
}

function shortResult(part: ToolResultPart, excerpt: Excerpt | undefined): ToolResultPart {
  if (excerpt === undefined) return part;
  const whole = toolOutputText(part.output);
  const short = excerptText(whole, excerpt);
  return short === whole ? part : { ...part, output: short };
}

/** The messages that these excerpts replace, by their index in the view. */
export function applyExcerpts(view: readonly Message[], places: readonly Place[], excerpts: readonly Excerpt[]): Map<number, Message> {
  const bySeq = new Map(excerpts.map((excerpt) => [excerpt.seq, excerpt]));
  const changed = new Map<number, Message>();
  for (const [i, message] of view.entries()) {
    const place = places[i];
    const shortened = place === undefined ? message : excerptMessage(message, place.parts ?? [place.first], bySeq);
    if (shortened !== message) changed.set(i, shortened);
  }
  return changed;
}

/** Head and tail of a text, cut between characters; the text itself when the note would take what is saved. */
export function excerptText(text: string, { seq, keep_bytes, kind }: Excerpt): string {
  const sizeBytes = utf8Length(text);
  // The note with its largest number: what is shown must not depend on how the number is written.
  if (sizeBytes <= keep_bytes + utf8Length(note(sizeBytes, seq, kind)) + 2) return text;
  const head = text.slice(0, headEnd(text, Math.floor(keep_bytes * HEAD_SHARE)));
  const tail = text.slice(tailStart(text, keep_bytes - Math.floor(keep_bytes * HEAD_SHARE)));
  const missing = sizeBytes - utf8Length(head) - utf8Length(tail);
  return [head, note(missing, seq, kind), tail]
    .filter((piece) => piece !== "")
    .join("\n")
    .toWellFormed();
}

function note(bytes: number, seq: number, kind: Excerpt["kind"]): string {
  const why = kind === "pruned" ? "taken out to save room; call the tool again if it is needed" : "left out: too large for the context";
  return `[… ${bytes} bytes ${why}. Event ${seq} of this run's journal holds the whole text …]`;
}

/** Each text keeps its share of what is kept. */
function shortParts(parts: readonly UserPart[], excerpt: Excerpt): UserPart[] {
  const total = parts.reduce((sum, part) => sum + (part.type === "text" ? utf8Length(part.text) : 0), 0);
  return parts.map((part) => {
    if (part.type !== "text" || total === 0) return part;
    const text = excerptText(part.text, { ...excerpt, keep_bytes: Math.floor((excerpt.keep_bytes * utf8Length(part.text)) / total) });
    return text === part.text ? part : { ...part, text };
  });
}

/** More code points than this in one character are noise, and are cut. */
const MAX_CLUSTER = 16;

/** Largest index whose prefix has at most `bytes` bytes and ends between characters. */
function headEnd(text: string, bytes: number): number {
  let end = 0;
  let used = 0;
  while (end < text.length) {
    const point = text.codePointAt(end) as number;
    used += pointBytes(point);
    if (used > bytes) break;
    end += point > 0xffff ? 2 : 1;
  }
  for (let i = 0; i < MAX_CLUSTER && end > 0 && isInsideCharacter(text, end); i++) end = before(text, end);
  return end;
}

/** Smallest index whose suffix has at most `bytes` bytes and begins between characters. */
function tailStart(text: string, bytes: number): number {
  let start = text.length;
  let used = 0;
  while (start > 0) {
    const at = before(text, start);
    used += pointBytes(text.codePointAt(at) as number);
    if (used > bytes) break;
    start = at;
  }
  for (let i = 0; i < MAX_CLUSTER && start < text.length && isInsideCharacter(text, start); i++) start += (text.codePointAt(start) as number) > 0xffff ? 2 : 1;
  return start;
}

function before(text: string, index: number): number {
  const isPair = index > 1 && text.charCodeAt(index - 1) >> 10 === 0x37 && text.charCodeAt(index - 2) >> 10 === 0x36;
  return isPair ? index - 2 : index - 1;
}

function pointBytes(point: number): number {
  if (point < 0x80) return 1;
  if (point < 0x800) return 2;
  return point < 0x10000 ? 3 : 4;
}

/**
 * Whether what a reader sees as one character goes on at `index`. A fixed table, not Intl.Segmenter: its answer changes
 * with the Unicode version of the Node that runs, and the same rows must give the same bytes for ever.
 */
function isInsideCharacter(text: string, index: number): boolean {
  if (index <= 0 || index >= text.length) return false;
  const next = text.codePointAt(index) as number;
  const previous = text.codePointAt(before(text, index)) as number;
  const joins =
    next === ZERO_WIDTH_JOINER ||
    (next >= 0x300 && next <= 0x36f) ||
    (next >= 0xfe00 && next <= 0xfe0f) ||
    (next >= 0x1f3fb && next <= 0x1f3ff) ||
    (next === 0x0a && previous === 0x0d) ||
    (isRegional(next) && regionalsBefore(text, index) % 2 === 1);
  return joins || previous === ZERO_WIDTH_JOINER;
}

const ZERO_WIDTH_JOINER = 0x200d;
const isRegional = (point: number): boolean => point >= 0x1f1e6 && point <= 0x1f1ff;

/** A flag is two of them; where it ends is told by their number only. */
function regionalsBefore(text: string, index: number): number {
  let count = 0;
  for (let at = before(text, index); at >= 0 && count < MAX_FLAGS && isRegional(text.codePointAt(at) as number); at = before(text, at)) count++;
  return count;
}
const MAX_FLAGS = 10_000;
