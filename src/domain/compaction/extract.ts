/**
 * A summary by fixed rules, without a language model: it picks sentences and lines, and invents nothing. Newer statements
 * of the same thing replace older ones. For the offline summarizer, and for the last rung of the ladder.
 */
import { Statements } from "./former-values.ts";
import { classifySegment, entriesOf, segmentsOf, type Section, type Segment } from "./segments.ts";

/** The offline model that does nothing but this (src/providers/offline/extractive.ts). */
export const EXTRACTIVE_MODEL = "offline:extractive";

export interface ExtractInput {
  /** As summarizerText writes it. */
  readonly record: string;
  readonly previousSummary?: string | undefined;
  readonly obligations?: readonly string[] | undefined;
  /** UTF-8 bytes of the extract, headings included. */
  readonly maxBytes: number;
}

const HEADINGS: Readonly<Record<Section, string>> = { goal: "GOALS AND CONSTRAINTS", fact: "FACTS", done: "DONE", open: "OPEN" };
const ORDER: readonly Section[] = ["goal", "fact", "done", "open"];
/** No section takes all the room: a long list of facts must not push out what is open. */
const MAX_SHARE: Readonly<Record<Section, number>> = { goal: 0.4, fact: 0.6, done: 0.35, open: 0.4 };

/** Pure: the same record gives the same extract. Empty only for a record without text. */
export function extractSummary({ record, previousSummary = "", obligations = [], maxBytes }: ExtractInput): string {
  const candidates = newest([...previousSegments(previousSummary), ...recordSegments(record)].map((segment, at) => ({ ...segment, at })));
  const chosen = choose(candidates, obligations, maxBytes);
  return render(chosen, obligations, maxBytes);
}

type Candidate = Segment & { readonly at: number };

/** What an earlier extract put under a heading stays there; a heading is a line of its own. */
function previousSegments(summary: string): Segment[] {
  let section: Section | undefined;
  return summary.split("\n").flatMap((line) => {
    const heading = sectionOfHeading(line);
    if (heading !== undefined) {
      section = heading.section;
      return heading.rest === "" ? [] : [withSection(heading.rest, section)];
    }
    return segmentsOf(line, "summary").map((text) => withSection(text, section));
  });
}

/** It was found worth keeping once: it outweighs a like line of the record, not a telling one. */
const KEPT_BEFORE = 2;

function withSection(text: string, section: Section | undefined): Segment {
  const segment = classifySegment(text, "summary");
  return { ...segment, score: segment.score + KEPT_BEFORE, section: section ?? segment.section };
}

function sectionOfHeading(line: string): { readonly section: Section; readonly rest: string } | undefined {
  const match = /^\W{0,4}(goals?(?: and constraints)?|constraints|facts?(?: and values)?|done|open)\W{0,3}(?:$|:\s*)(.*)$/i.exec(line.slice(0, 400));
  if (match === null) return undefined;
  const word = (match[1] as string).toLowerCase();
  const section = word.startsWith("goal") || word.startsWith("constr") ? "goal" : word.startsWith("fact") ? "fact" : word === "done" ? "done" : "open";
  return { section, rest: (match[2] ?? "").trim() };
}

function recordSegments(record: string): Segment[] {
  return entriesOf(record).flatMap(({ role, text }) => segmentsOf(text, role).map((segment) => classifySegment(segment, role)));
}

/** Of what was said twice, and of statements about the same thing, the last stays. */
function newest(candidates: readonly Candidate[]): Candidate[] {
  const last = new Map<string, number>();
  const keysOf = ({ text, key }: Segment): string[] => [`=${text}`, ...(key === undefined ? [] : [`:${key}`])];
  for (const candidate of candidates) for (const key of keysOf(candidate)) last.set(key, candidate.at);
  const replaced = new Set<string>();
  const current = candidates.filter((candidate) => {
    const isLast = keysOf(candidate).every((key) => last.get(key) === candidate.at);
    if (!isLast && candidate.key !== undefined && last.get(`=${candidate.text}`) === candidate.at) replaced.add(candidate.key);
    return isLast;
  });
  return withoutFormer(current.map((candidate) => (candidate.key !== undefined && replaced.has(candidate.key) ? raised(candidate) : candidate)));
}

/** A newer value that is left out would leave the reader with the old one, which may stand elsewhere. */
const raised = (candidate: Candidate): Candidate => ({ ...candidate, score: candidate.score + REPLACES });
const REPLACES = 4;

/** Values that a later sentence changes in other words. */
function withoutFormer(candidates: readonly Candidate[]): Candidate[] {
  const statements = new Statements<Candidate>();
  const former = new Set<number>();
  const kept = candidates.map((candidate) => {
    const replaced = statements.add(candidate);
    for (const { older } of replaced) former.add(older.at);
    return replaced.length === 0 ? candidate : raised(candidate);
  });
  return kept.filter(({ at }) => !former.has(at));
}

function choose(candidates: readonly Candidate[], obligations: readonly string[], maxBytes: number): Candidate[] {
  const left: Record<Section, number> = { goal: 0, fact: 0, done: 0, open: 0 };
  for (const section of ORDER) left[section] = Math.floor(maxBytes * MAX_SHARE[section]);
  let room = maxBytes - ORDER.reduce((sum, section) => sum + HEADINGS[section].length + 2, 0) - obligations.reduce((sum, text) => sum + utf8Bytes(text) + 1, 0);
  const ranked = candidates.toSorted((a, b) => b.score - a.score || b.at - a.at);
  // What tells nothing by our rules is still better than an empty summary.
  const telling = ranked.some(({ score }) => score > 0) ? ranked.filter(({ score }) => score > 0) : ranked;
  const chosen: Candidate[] = [];
  for (const candidate of telling) {
    const bytes = utf8Bytes(candidate.text) + 1;
    if (bytes > room || bytes > left[candidate.section]) continue;
    chosen.push(candidate);
    room -= bytes;
    left[candidate.section] -= bytes;
  }
  return chosen.toSorted((a, b) => a.at - b.at);
}

function render(chosen: readonly Candidate[], obligations: readonly string[], maxBytes: number): string {
  const lines: string[] = [];
  let room = maxBytes;
  for (const section of ORDER) {
    const own = chosen.filter((candidate) => candidate.section === section).map(({ text }) => text);
    const texts = section === "open" ? [...obligations.filter((text) => !own.includes(text)), ...own] : own;
    if (texts.length === 0) continue;
    for (const line of [`${HEADINGS[section]}:`, ...texts]) {
      room -= utf8Bytes(line) + 1;
      if (room < -1) return lines.join("\n");
      lines.push(line);
    }
  }
  return lines.join("\n");
}

const encoder = new TextEncoder();

function utf8Bytes(text: string): number {
  for (let i = 0; i < text.length; i++) if (text.charCodeAt(i) > 0x7f) return encoder.encode(text).length;
  return text.length;
}
