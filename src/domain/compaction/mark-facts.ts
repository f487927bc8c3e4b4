/** Which values of a span must not be lost: what a result (or somebody's word) gave and a call used, in the span or in the tail behind it. */
import { canonicalJson, type JsonValue } from "../json.ts";
import { toolOutputText, type Message } from "../transcript/message.ts";
import { decidingSentences } from "./decisions.ts";
import { statementIn, Statements, type Statement } from "./former-values.ts";
import { sentencesOf } from "./segments.ts";
import { MAX_WORD_CHARS, tellingWords } from "./telling-words.ts";
import type { Fact, Head, Place } from "./types.ts";

/** Distinct words looked at: a table of a million ids must not fill memory. */
const MAX_SEEN = 100_000;
/** Of one result or message, as long as nothing uses them: a long table must not push out what all others gave. */
const MAX_GIVEN_OF_EVENT = 16;

/** Of one call: thousands of ids in one argument are a table, and the head has room for some hundred facts. */
const MAX_USED_OF_CALL = 1_000;

type PreviousFacts = Pick<Head, "facts" | "facts_in_tail" | "given" | "summary" | "request">;

export interface SpanInput {
  readonly messages: readonly Message[];
  readonly places: readonly Place[];
  readonly tail: readonly Message[];
  readonly previous: PreviousFacts | undefined;
}

interface MarkedFacts {
  /** In the order of the record; a text may come more than once. */
  readonly facts: readonly Fact[];
  /** Texts that only a call of the tail uses: the tail shows the use, and what it was is shown nowhere. */
  readonly usedInTail: ReadonlySet<string>;
  /** Given, and used by no call so far: seq and word, in the order of the record. */
  readonly given: readonly (readonly [seq: number, word: string])[];
}

export function markFacts({ messages, places, tail, previous }: SpanInput): MarkedFacts {
  const start = places[0]?.first ?? 1;
  const facts: Fact[] = [];
  // Not push(...more): a long text may hold more than a hundred thousand sentences, and arguments stand on the stack.
  const add = (more: readonly Fact[]): void => {
    for (const fact of more) facts.push(fact);
  };
  const seen = new Map<string, number>();
  const given = new Map<string, number>();
  const see = (text: string, seq: number): void => {
    let ofEvent = 0;
    for (const word of tellingWords(text)) {
      if (seen.has(word) || seen.size >= MAX_SEEN) continue;
      seen.set(word, seq);
      if (++ofEvent <= MAX_GIVEN_OF_EVENT) given.set(word, seq);
    }
  };
  if (previous !== undefined) {
    for (const fact of [...previous.facts, ...(previous.facts_in_tail ?? [])]) {
      if (fact.kind === "pin") continue;
      facts.push(fact);
      seen.set(fact.text, fact.seq);
    }
    for (const [seq, word] of previous.given ?? []) if (!seen.has(word)) given.set(word, seq);
    for (const [word, seq] of given) seen.set(word, seq);
    // An earlier summary held these; the next one must too, or they are lost in the second generation.
    for (const word of tellingWords(previous.summary)) {
      facts.push({ kind: kindOf(word), text: word, seq: start });
      if (!seen.has(word)) seen.set(word, start);
    }
    add(decisionsIn(previous.summary, start));
    const { request } = previous;
    for (const part of request?.content ?? []) if (part.type === "text") see(part.text, request?.seq ?? start);
  }
  for (const [at, message] of messages.entries()) {
    const seq = places[at]?.first ?? start;
    for (const [i, part] of message.content.entries()) {
      if (part.type === "tool_result") see(toolOutputText(part.output), places[at]?.parts?.[i] ?? seq);
      else if (part.type === "tool_call") add(usedIn(part.input ?? part.arguments ?? "", part.name, seen));
      else if (part.type === "text") {
        see(part.text, seq);
        add(decisionsIn(part.text, seq));
      }
    }
  }
  // What was only said, and was said otherwise since, would mislead. A value that a call used is told with what it was.
  const former = formerWords([
    previous?.summary ?? "",
    ...messages.flatMap(({ role, content }) => (role === "tool" ? [] : content.flatMap((part) => (part.type === "text" ? [part.text] : [])))),
  ]);
  const used = new Set(facts.filter(({ about }) => about !== undefined).map(({ text }) => text));
  const current = facts.filter(({ kind, text }) => kind === "decision" || used.has(text) || !former.has(text));
  const marked = new Set(current.map(({ text }) => text));
  const later = usesOf(tail, seen).filter(({ text }) => !marked.has(text));
  const usedInTail = new Set(later.map(({ text }) => text));
  return {
    facts: [...current, ...later],
    usedInTail,
    given: [...given].filter(([word]) => !marked.has(word) && !usedInTail.has(word) && !former.has(word)).map(([word, seq]) => [seq, word]),
  };
}

function formerWords(texts: readonly string[]): ReadonlySet<string> {
  const statements = new Statements<Statement>();
  const former = new Set<string>();
  for (const sentence of texts.flatMap((text) => text.split("\n")).flatMap(sentencesOf)) {
    const statement = statementIn(sentence.trim());
    for (const { words } of statements.add(statement)) for (const word of words) former.add(word);
    for (const name of statement.names ?? []) former.delete(name);
  }
  return former;
}

/** What calls of the tail use of what was given before it. What the tail gives itself, first, it also explains. */
function usesOf(tail: readonly Message[], seen: ReadonlyMap<string, number>): Fact[] {
  const own = new Set<string>();
  const uses: Fact[] = [];
  for (const message of tail) {
    for (const part of message.content) {
      if (part.type === "tool_call") {
        for (const use of usedIn(part.input ?? part.arguments ?? "", part.name, seen)) if (!own.has(use.text)) uses.push(use);
      } else if (part.type === "tool_result") for (const word of tellingWords(toolOutputText(part.output))) own.add(word);
      else if (part.type === "text" && message.role === "user") for (const word of tellingWords(part.text)) own.add(word);
    }
  }
  return uses;
}

/** Words of a call's arguments that were seen before it, each once and with the argument that it was. */
function usedIn(value: JsonValue, name: string, seen: ReadonlyMap<string, number>): Fact[] {
  const used = new Map<string, Fact>();
  const look = (member: JsonValue, about: string): void => {
    if (used.size >= MAX_USED_OF_CALL) return;
    if (Array.isArray(member)) {
      for (const item of member as readonly JsonValue[]) look(item, about);
    } else if (member !== null && typeof member === "object") {
      for (const [key, inner] of Object.entries(member)) look(inner, key);
    } else {
      for (const word of tellingWords(typeof member === "string" ? member : canonicalJson(member))) {
        const seq = seen.get(word);
        if (seq === undefined || used.has(word)) continue;
        if (used.size >= MAX_USED_OF_CALL) return;
        used.set(word, { kind: kindOf(word), text: word, seq, about: about.slice(0, MAX_WORD_CHARS).toWellFormed() });
      }
    }
  };
  look(value, name);
  return [...used.values()];
}

function decisionsIn(text: string, seq: number): Fact[] {
  return decidingSentences(text).map((sentence) => ({ kind: "decision", text: sentence.toWellFormed(), seq }));
}

const kindOf = (word: string): Fact["kind"] => (/^[\d.,]+$/.test(word) ? "number" : "identifier");
