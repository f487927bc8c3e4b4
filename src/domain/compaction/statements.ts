/** What a sentence is a statement about, so that a later one about the same takes its place. Rules for English. */
import { tellingWords } from "./telling-words.ts";

/** `Port: 8080`, `the port is now 9090` and `Actually, our port was changed to 9091` are statements about the port. */
export function subjectOf(sentence: string): string | undefined {
  // A question states nothing.
  if (sentence.endsWith("?")) return undefined;
  const plain = sentence
    .replace(LABEL, "")
    .replace(OPENING, "")
    .replace(/^[\W_]{0,4}/, "");
  const match = STATEMENT.exec(plain.slice(0, 160));
  const subject = match?.[1]?.toLowerCase().replaceAll(/\s+/g, " ");
  return subject === undefined || VAGUE.has(subject) || CODE.test(match?.[1] ?? "") || CLAUSE.test(subject) ? undefined : subject;
}

const STATEMENT =
  /^(?:the |our |my |your |its |his |her )?([A-Za-z][\w .#@/-]{0,60}?)\s*(?:[:=]\s|[:=](?=\S)|\b(?:is|are|was|were|has (?:been )?(?:changed|moved)|(?:was |is )?(?:changed|moved))(?: now| still)?(?: to| from \S+ to)?\b)\s*\S/i;

/** Words at the beginning that say how a statement is meant, or that it corrects another. */
const OPENING = /^[\W_]{0,4}(?:actually|correction|sorry|ok(?:ay)?|well|so|and|but|now|please note(?: that)?|note that|remember(?: that)?|by the way|fyi|update)\b[\s,:;–-]*/i;
/** What kind of statement it is, not what it is about: two constraints, or two open points, are no versions of one. */
const LABEL =
  /^[\W_]{0,4}(?:constraints?|decisions?|facts?|notes?|values?|errors?|results?|important|remember|requirements?|rules?|goals?|tasks?|updates?|corrections?|reminder|warning|done|(?:still )?(?:open|pending|waiting|blocked)|(?:open |next )?(?:points?|items?|issues?|questions?)|still to (?:do|be done)|remaining|to ?do|next(?: steps?)?|found)\s*:\s*/i;
const VAGUE = new Set(
  "it this that these those there he she they we i you what which who where when why how here note found error done open todo next https http result id name status value one all everything nothing something failed failure exception timeout reason message output user assistant tool".split(
    " ",
  ),
);
/** "The agent that I asked is": more than the name of a thing. */
const CLAUSE = /\b(?:i|you|we|they|he|she|it|that|which|who|if|when|because|there|what)\b/;

/** A sentence that says of itself that it changes something said before. */
const CHANGES =
  /\b(?:now|no longer|not any ?more|instead|the (?:old|former|previous|earlier|wrong) |changed?|moved|new|corrected|correction|actually|rather than|replac(?:es|ed|ing)|from now on|updated?|as of (?:now|today))\b|^\W{0,3}not\b/i;

/** `E_UNREACHABLE`, `RATE_LIMITED`: a kind of thing that happens again and again, not a thing. */
const CODE = /^[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+$/;
/** More names than this, and the sentence is no statement about one of them. */
const MAX_WORDS = 6;

/** What people say names things; records of tools do not contradict each other. */
export function namesIn(sentence: string): ReadonlySet<string> | undefined {
  if (/[{[]"/.test(sentence)) return undefined;
  const words = new Set([...tellingWords(sentence)].filter((word) => !CODE.test(word)));
  return words.size === 0 || words.size > MAX_WORDS ? undefined : words;
}

/** @param names of the sentence. */
export function changesSomething(sentence: string, names: ReadonlySet<string>): boolean {
  return names.size > 1 && !sentence.endsWith("?") && CHANGES.test(sentence);
}

/**
 * What `older` names in the place of what `newer` names now: the same thing, with other values of the same form. Empty
 * where `older` names something else besides, which would be lost with it.
 */
export function formerOf(older: ReadonlySet<string>, newer: ReadonlySet<string>): readonly string[] {
  const fresh = new Set([...newer].filter((word) => !older.has(word)).map(formOf));
  // Two that share a date or a number only are about two things.
  const isSameThing = [...newer].some((word) => older.has(word) && /\p{L}/u.test(word) && !fresh.has(formOf(word)));
  const former = [...older].filter((word) => !newer.has(word));
  return isSameThing && former.every((word) => fresh.has(formOf(word))) ? former : [];
}

/** `555-01234` and `555-99` have one form, `QX1234Z` another: values of one kind look alike. */
function formOf(word: string): string {
  return word
    .replaceAll(/\d+/g, "9")
    .replaceAll(/\p{Lu}+/gu, "A")
    .replaceAll(/\p{Ll}+/gu, "a");
}
