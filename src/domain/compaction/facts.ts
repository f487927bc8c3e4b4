/**
 * What must survive a summary is marked by rules, not guessed by a model: pins, identifiers and numbers that a result
 * (or the user) gave and a later call used, and sentences that decide something. After summarizing each is looked for in
 * pinned task, summary and tail; what is missing is appended word for word. Deterministic, and one pass over the text.
 *
 * A value may be given before one compaction and used after it: calls of the tail count as uses, what only the tail
 * holds is looked for again by the next compaction, and what was given and not used yet is remembered for it.
 */
import { utf8Length } from "../transcript/chain.ts";
import { markFacts, type SpanInput } from "./mark-facts.ts";
import { Haystack } from "./telling-words.ts";
import type { Fact, FactsCheck, Head } from "./types.ts";

/** Decisions are long; identifiers must find room beside them. */
const DECISION_SHARE = 0.4;
/** What nobody has used yet is a guess: it is in no request, and takes this share of the cap in the marker. */
const GIVEN_SHARE = 0.25;

interface FactsInput extends SpanInput {
  readonly pins: readonly Fact[];
  readonly summary: string;
  /** What the head shows word for word beside the summary: the pinned task, and the newest request. */
  readonly taskText: string;
  readonly tailText: string;
  readonly capBytes: number;
}

interface CheckedFacts {
  readonly facts: Fact[];
  /** For the next compaction; both within the cap. */
  readonly carried: Pick<Head, "facts_in_tail" | "given">;
  readonly check: FactsCheck;
}

export function checkFacts(input: FactsInput): CheckedFacts {
  const { previous, pins, summary, taskText, tailText, capBytes } = input;
  const pinned = unique([...pins, ...(previous?.facts.filter(({ kind }) => kind === "pin") ?? [])]);
  const { facts, usedInTail, given } = markFacts(input);
  const marked = unique(facts);
  const head = new Haystack([taskText, summary]);
  const tail = new Haystack([tailText]);
  const beyondHead = marked.filter(({ text }) => !head.holds(text));
  const missing = beyondHead.filter(({ text }) => usedInTail.has(text) || !tail.holds(text));
  const lacking = new Set(missing);
  const kept = withinCap(missing, Math.max(0, capBytes - bytesOf(pinned)));
  const heldByTail = withinCap(
    beyondHead.filter((fact) => !lacking.has(fact)),
    capBytes,
  );
  const remembered = newestGiven(
    given.filter(([, word]) => !head.holds(word)),
    capBytes * GIVEN_SHARE,
  );
  return {
    facts: [...pinned, ...kept],
    carried: { ...(heldByTail.length === 0 ? {} : { facts_in_tail: heldByTail }), ...(remembered.length === 0 ? {} : { given: remembered }) },
    check: { marked: marked.length, found: marked.length - missing.length, appended: kept.length, dropped: missing.length - kept.length },
  };
}

export function factText({ text, about }: Fact): string {
  return about === undefined ? text : `${about}: ${text}`;
}

/** The newest facts of each kind win; shown in the order of the journal. */
function withinCap(facts: readonly Fact[], capBytes: number): Fact[] {
  const newest = facts.toSorted((a, b) => b.seq - a.seq);
  let left = capBytes;
  let leftForDecisions = capBytes * DECISION_SHARE;
  const kept = new Set<Fact>();
  for (const fact of newest) {
    const bytes = bytesOf([fact]);
    if (bytes > left || (fact.kind === "decision" && bytes > leftForDecisions)) continue;
    left -= bytes;
    if (fact.kind === "decision") leftForDecisions -= bytes;
    kept.add(fact);
  }
  return facts.filter((fact) => kept.has(fact));
}

const bytesOf = (facts: readonly Fact[]): number => facts.reduce((sum, fact) => sum + utf8Length(factText(fact)) + 3, 0);

/** Brackets, commas, quotes and the seq around a word. */
const PAIR_BYTES = 12;

function newestGiven(given: readonly (readonly [number, string])[], capBytes: number): [number, string][] {
  let left = capBytes;
  const newest = given.toSorted(([a], [b]) => b - a);
  const over = newest.findIndex(([, word]) => (left -= utf8Length(word) + PAIR_BYTES) < 0);
  return (over === -1 ? newest : newest.slice(0, over)).toReversed().map(([seq, word]) => [seq, word]);
}

/** One fact a text, as it was first seen; with the name of what it is, where any sighting has one. */
function unique(facts: readonly Fact[]): Fact[] {
  const byText = new Map<string, Fact>();
  for (const fact of facts) {
    const known = byText.get(fact.text);
    byText.set(fact.text, known === undefined || (known.about === undefined && fact.about !== undefined) ? { ...fact, seq: known?.seq ?? fact.seq } : known);
  }
  return [...byText.values()];
}
