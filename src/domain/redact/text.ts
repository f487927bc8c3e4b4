/**
 * Replaces what the rules find. The same text gives the same replacement, and a text that was redacted is not changed by
 * being redacted again: rounds are made until one finds nothing, so that what a replacement uncovers (a pattern that
 * begins where another's match ended) is found in the same call and not in the next one.
 */
import { replacementOf, type RedactionRule, type Span } from "./rules.ts";

/** Every round replaces characters that no replacement stands for, so rounds end by themselves; more than this no real text takes. */
const MAX_ROUNDS = 16;
/** Shorter than any rule's shortest match. */
const MIN_CHARS = 6;

/** Names of replacements that stand for what could not be looked through. */
export const failureNames = ["unstable", "pattern_failed", "withheld"] as const;

export function textRedactor(rules: readonly RedactionRule[], names: readonly string[] = []): (text: string) => string {
  const known = [...new Set([...rules.map(({ name }) => name), ...names, ...failureNames])];
  // By name: text that only looks like a replacement is looked through like any other.
  const marker = new RegExp(`\\[redacted:(?:${known.map(escaped).join("|")})\\]`, "g");
  return (text) => {
    if (text.length < MIN_CHARS) return text;
    let now = text;
    for (let round = 0; round < MAX_ROUNDS; round++) {
      const markers = now.includes("[redacted:") ? spansOf(marker, now) : [];
      const found = rules.flatMap((rule, rank) =>
        rule
          .find(now)
          .filter((span) => span.end > span.start && !markers.some(({ start, end }) => span.start >= start && span.end <= end))
          .map((span) => ({ ...span, rank })),
      );
      if (found.length === 0) return now;
      now = replaced(now, [...found, ...markers.map((span) => ({ ...span, rank: Number.POSITIVE_INFINITY }))], rules);
    }
    return replacementOf("unstable");
  };
}

type Found = Span & { readonly rank: number };

/** Matches that overlap become one, under the name of the first rule among them; replacements that no match touches stay. */
function replaced(text: string, found: readonly Found[], rules: readonly RedactionRule[]): string {
  const sorted = found.toSorted((a, b) => a.start - b.start || b.end - a.end);
  let out = "";
  let at = 0;
  for (let i = 0; i < sorted.length;) {
    const { start } = sorted[i] as Found;
    let { end, rank } = sorted[i] as Found;
    for (i++; i < sorted.length && (sorted[i] as Found).start < end; i++) {
      end = Math.max(end, (sorted[i] as Found).end);
      rank = Math.min(rank, (sorted[i] as Found).rank);
    }
    const name = rules[rank]?.name;
    out += text.slice(at, start) + (name === undefined ? text.slice(start, end) : replacementOf(name));
    at = end;
  }
  return out + text.slice(at);
}

function spansOf(pattern: RegExp, text: string): Span[] {
  return Array.from(text.matchAll(pattern), (match) => ({ start: match.index, end: match.index + match[0].length }));
}

export function escaped(text: string): string {
  return text.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&");
}
