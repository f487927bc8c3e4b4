/**
 * Patterns of the user's own, which may take for ever on some text: each search is bounded in time. A regular expression
 * that is at work cannot be stopped from outside in its own context; one in a context of its own can.
 */
import { createContext, Script, type Context } from "node:vm";
import type { RedactionRule, Span } from "./rules.ts";

/** For the first 64 KiB, and as much again for each further: a good pattern takes a hundredth of it. */
const TIMEOUT_MS = 250;
const TIMEOUT_CHARS = 64 * 1024;
const MAX_MATCHES = 200_000;

const SEARCH = new Script(`(() => {
  const found = [];
  pattern.lastIndex = 0;
  for (let match = pattern.exec(text); match !== null; match = pattern.exec(text)) {
    if (match[0] === "") { pattern.lastIndex++; continue; }
    if (found.push(match.index, match.index + match[0].length) > ${2 * MAX_MATCHES}) throw new Error("it matches too often");
  }
  return found;
})()`);
const PREPARE = new Script("pattern = new RegExp(source, flags)");

/** A pattern that was not done in time, or matched without end: the text it was for must not be kept. */
export class PatternFailed extends Error {}

export function boundedRule(name: string, pattern: RegExp, sql?: string): RedactionRule {
  let context: Context | undefined;
  const open = (): Context => {
    const made = createContext({ source: pattern.source, flags: `${pattern.flags.replaceAll(/[gy]/g, "")}g`, pattern: undefined, text: "" });
    PREPARE.runInContext(made);
    return made;
  };
  return {
    name,
    find(text): Span[] {
      context ??= open();
      context["text"] = text;
      let found: readonly number[];
      try {
        found = SEARCH.runInContext(context, { timeout: TIMEOUT_MS * Math.ceil((text.length + 1) / TIMEOUT_CHARS) }) as readonly number[];
      } catch (error) {
        throw new PatternFailed(`pattern ${name} did not come to an end on a text of ${text.length} characters: ${error instanceof Error ? error.message : String(error)}`);
      } finally {
        context["text"] = "";
      }
      return Array.from({ length: found.length / 2 }, (_, i) => ({ start: found[2 * i] as number, end: found[2 * i + 1] as number }));
    },
    ...(sql === undefined ? {} : { sql: { kind: "pattern", pattern: sql, replacement: `[redacted:${name}]` } }),
  };
}
