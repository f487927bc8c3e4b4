/** The pieces that an extract is made of, and what each is worth. Rules for English; other languages are picked by their numbers, names and places. */
import { statementIn, type Statement } from "./former-values.ts";

export type Section = "goal" | "fact" | "done" | "open";

/** A statement where people talk: a later one about the same replaces it. Not results, whose members repeat in every record. */
export interface Segment extends Statement {
  readonly text: string;
  readonly score: number;
  readonly section: Section;
}

export interface Entry {
  /** `user`, `assistant`, `call` and `result` of tools, `summary`, or `other`. */
  readonly role: string;
  readonly text: string;
}

const MAX_SEGMENT_CHARS = 280;
/** Of one entry: the rest of a long result is like its beginning, and its end says how it came out. */
const MAX_SEGMENTS_OF_ENTRY = 400;

/** Reads what summarizerText wrote; lines without a tag belong to the entry before them. */
export function entriesOf(record: string): Entry[] {
  const entries: { role: string; lines: string[] }[] = [];
  for (const line of record.split("\n")) {
    const tag = /^([A-Za-z][\w.:/-]{0,31})(?: \[(tool_use|tool_result)([^\]]{0,200})\])?: /.exec(line);
    const role =
      tag === null || (tag[2] === undefined && !ROLES.has(tag[1] as string)) ? undefined : tag[2] === undefined ? (tag[1] as string) : tag[2] === "tool_use" ? "call" : "result";
    if (role !== undefined && tag !== null) {
      const name = role === "call" ? `${(tag[3] ?? "").trim()} ` : tag[3]?.includes("failed") === true ? "failed: " : "";
      entries.push({ role, lines: [`${name}${line.slice(tag[0].length)}`] });
    } else {
      const last = entries.at(-1);
      if (last === undefined) entries.push({ role: "other", lines: [line] });
      else last.lines.push(line);
    }
  }
  return entries.map(({ role, lines }) => ({ role, text: lines.join("\n") }));
}

const ROLES = new Set(["user", "assistant", "tool", "system", "developer"]);

/** Sentences where people talk, else lines; long ones by sentences and JSON members, still longer ones by length. */
export function segmentsOf(text: string, role = "result"): string[] {
  const isTalk = role !== "result" && role !== "call";
  const segments = text.split("\n").flatMap((line) => {
    const short = line.trim();
    // A value and what else is said in its line change apart from each other.
    return (isTalk ? sentencesOf(short) : [short]).flatMap(ofLength);
  });
  if (segments.length <= MAX_SEGMENTS_OF_ENTRY) return segments;
  return [...segments.slice(0, MAX_SEGMENTS_OF_ENTRY / 2), ...segments.slice(-MAX_SEGMENTS_OF_ENTRY / 2)];
}

export function sentencesOf(line: string): string[] {
  return /^[{[<]/.test(line) ? [line] : line.split(SENTENCE_END);
}

/** Not behind one letter or digit, which is a list's or an abbreviation. */
const SENTENCE_END = /(?<=[\p{L}\p{N})"'’]{2}[.!?]["')]?)\s+(?=[\p{Lu}\p{N}"'(/#@$€])/u;

function ofLength(text: string): string[] {
  const short = text.trim();
  if (short.length <= MAX_SEGMENT_CHARS) return short.length < 3 ? [] : [short];
  return packed(short.split(/(?<=[.!?;])\s+|(?<=[}\]"\w],)(?=["{[])/)).flatMap(byLength);
}

/** Members of one JSON object belong together: small pieces are put side by side again. */
function packed(pieces: readonly string[]): string[] {
  const lines: string[] = [];
  for (const piece of pieces) {
    const last = lines.at(-1);
    const isJson = last !== undefined && /[,{[]$/.test(last);
    if (isJson && last.length + piece.length <= MAX_SEGMENT_CHARS) lines[lines.length - 1] = last + piece;
    else lines.push(piece);
  }
  return lines;
}

function byLength(text: string): string[] {
  const pieces: string[] = [];
  let rest = text.trim();
  while (rest.length > MAX_SEGMENT_CHARS) {
    const space = rest.lastIndexOf(" ", MAX_SEGMENT_CHARS);
    const at = space > MAX_SEGMENT_CHARS / 2 ? space : betweenPairs(rest, MAX_SEGMENT_CHARS);
    pieces.push(rest.slice(0, at).trim());
    rest = rest.slice(at).trim();
  }
  return [...pieces, rest].filter((piece) => piece.length >= 3);
}

function betweenPairs(text: string, at: number): number {
  return (text.charCodeAt(at) & 0xfc00) === 0xdc00 ? at - 1 : at;
}

const SIGNS: readonly (readonly [number, RegExp])[] = [
  [4, /\b(?:error|exception|fail(?:ed|s|ure)?|denied|refused|rejected|timed? ?out|invalid|not found|conflict|unavailable|E[A-Z]{4,}|[A-Z]{3,}(?:_[A-Z]+)+)\b/],
  [4, /\b(?:decid(?:ed|e)|decision|agreed|chose|chosen|settled on|instead of|approved|we(?:'ll| will) use|going with)\b/i],
  [4, /\b(?:must|never|always|only|do not|don't|may not|at most|at least|no more than|deadline|budget|requirements?|required|constraints?|prefers?)\b/i],
  [3, /\b(?:done|completed|finished|created|cancelled|canceled|booked|sent|deployed|fixed|merged|deleted|updated|written|verified)\b/i],
  [3, /\b(?:open|todo|pending|waiting|remaining|remains|still|next|blocked|not yet|unresolved|to be done)\b/i],
  [3, /(?:^|[^\w])(?:[#@]\w{2,}|[A-Za-z_-]{0,20}\d[A-Za-z0-9_-]{4,}|[A-Z]{2,}[-_]?\d+|[0-9a-f]{7,})\b/],
  [2, /(?:https?:\/\/|(?:^|[\s"'(=])\.{0,2}\/)[\w.~-]+|[\w-]+\/[\w-]+\.\w{1,5}\b|\b[\w-]+\.(?:ts|js|py|go|rs|md|json|ya?ml|sql|txt|csv|log)\b/],
  [2, /\d/],
];
/** Below this a sentence without a number, name or telling word is a courtesy. */
const MIN_TELLING_CHARS = 20;
const FROM: Readonly<Record<string, number>> = { user: 3, assistant: 1, call: 1, summary: 0, result: 0 };

const IS_OPEN = /\b(?:open|todo|pending|waiting|remaining|remains|blocked|not yet|unresolved|to be done|still (?:to|need|has|have|open)|next(?: step)?:|in progress)\b/i;
const IS_DONE = /\b(?:done|completed|finished|created|cancelled|canceled|booked|sent|deployed|fixed|merged|deleted|updated|written|verified)\b/i;
const IS_GOAL = /\b(?:goal|task|must|never|do not|don't|at most|at least|no more than|deadline|budget|constraints?|prefers?|want|please)\b/i;

export function classifySegment(text: string, role: string): Segment {
  const score = SIGNS.reduce((sum, [worth, sign]) => sum + (sign.test(text) ? worth : 0), 0);
  const isTalk = role !== "result" && role !== "call";
  return {
    text,
    // What the user says counts without a sign, too; "Thanks." and the like do not.
    score: score === 0 && (role !== "user" || text.length < MIN_TELLING_CHARS) ? 0 : score + (FROM[role] ?? 0),
    section: sectionOf(text, role),
    ...(isTalk ? statementIn(text) : {}),
  };
}

function sectionOf(text: string, role: string): Section {
  if (role === "result" || role === "call") return "fact";
  if (IS_OPEN.test(text)) return "open";
  if (IS_DONE.test(text)) return "done";
  return role === "user" || IS_GOAL.test(text) ? "goal" : "fact";
}
