/** `createCapstan({ redact })` and `createClient({ redact })`: read, checked, and turned into rules. */
import { boundedRule } from "./bounded-pattern.ts";
import { isPersonalKind, rulesFor, secretRules, type PersonalKind, type RedactionRule } from "./rules.ts";

export interface RedactPattern {
  /** Stands in the replacement: `[redacted:<name>]`. 1 to 40 of a-z 0-9 _. */
  readonly name: string;
  readonly pattern: RegExp | string;
  /** The same for Postgres (a regular expression of its own kind), for what comes through SQL. Without it Postgres does not look for this. */
  readonly sql?: string;
}

export interface RedactContext {
  /** What the text is part of. */
  readonly place: "input" | "model" | "tool" | "summary" | "file" | "error";
  readonly tenant?: string;
  readonly runId?: string;
  readonly agent?: string;
}

export interface RedactOptions {
  /** Keys, tokens, private keys, passwords in connection strings. Default true. */
  readonly builtIn?: boolean;
  /** People's data too: all kinds, or some of `email`, `phone`, `card`, `national_id`, `bank_account`. Default false. */
  readonly personal?: boolean | readonly PersonalKind[];
  readonly patterns?: readonly (RedactPattern | RegExp)[];
  /**
   * Asked for each text before the patterns are. Gives the text to keep; must not change what it has given before. Where
   * it throws, hangs or gives no text, the text is not kept (REDACTION_FAILED). With a hook no live text is shown.
   */
  readonly hook?: (text: string, context: RedactContext) => string | Promise<string>;
  /** For all texts of one value together; default 10,000. */
  readonly hookTimeoutMs?: number;
}

export interface OptionIssue {
  readonly path: string;
  readonly message: string;
}

const MAX_PATTERN_CHARS = 1_000;
const MAX_PATTERNS = 100;
const HOOK_TIMEOUT_MS = 10_000;
const FLAGS = /^[dgimsuvy]*$/;

/** What is wrong with the options; empty when nothing is. */
export function redactIssues(options: RedactOptions): OptionIssue[] {
  const issues: OptionIssue[] = [];
  const { personal = false, patterns = [], hook, hookTimeoutMs } = options;
  for (const key of Object.keys(options)) {
    if (!["builtIn", "personal", "patterns", "hook", "hookTimeoutMs"].includes(key))
      issues.push({ path: `redact.${key}`, message: "is not known: there are builtIn, personal, patterns, hook, hookTimeoutMs" });
  }
  if (typeof personal !== "boolean")
    for (const kind of personal)
      if (!isPersonalKind(kind)) issues.push({ path: "redact.personal", message: `${JSON.stringify(kind)} is not known: email, phone, card, national_id, bank_account` });
  if (patterns.length > MAX_PATTERNS) issues.push({ path: "redact.patterns", message: `has more than ${MAX_PATTERNS}` });
  for (const [i, given] of patterns.entries()) for (const message of patternProblems(given, i)) issues.push({ path: `redact.patterns.${i}`, message });
  if (hook !== undefined && typeof hook !== "function") issues.push({ path: "redact.hook", message: "is no function" });
  if (hookTimeoutMs !== undefined && !(Number.isInteger(hookTimeoutMs) && hookTimeoutMs >= 1 && hookTimeoutMs <= 600_000))
    issues.push({ path: "redact.hookTimeoutMs", message: "must be a whole number from 1 to 600,000" });
  return issues;
}

function patternProblems(given: RedactPattern | RegExp, i: number): string[] {
  const { name, pattern } = named(given, i) as { readonly name?: unknown; readonly pattern?: unknown };
  if (typeof pattern !== "string" && !(pattern instanceof RegExp)) return ["must be a RegExp, or { name, pattern }"];
  const source = typeof pattern === "string" ? pattern : pattern.source;
  if (typeof name !== "string" || !/^[a-z0-9_]{1,40}$/.test(name)) return [`name ${JSON.stringify(name)} must have 1 to 40 of a-z 0-9 _`];
  if (source.length > MAX_PATTERN_CHARS) return [`the pattern has ${source.length} characters, more than ${MAX_PATTERN_CHARS}`];
  try {
    const expression = new RegExp(pattern);
    if (!FLAGS.test(expression.flags)) return [`the flags ${expression.flags} are not known`];
    return expression.test("") ? ["the pattern matches an empty text"] : [];
  } catch (error) {
    return [`the pattern is no regular expression: ${error instanceof Error ? error.message : String(error)}`];
  }
}

function named(given: RedactPattern | RegExp, i: number): RedactPattern {
  return given instanceof RegExp ? { name: `pattern_${i + 1}`, pattern: given } : given;
}

export function readOptions({ builtIn = true, personal = false, patterns = [], hook, hookTimeoutMs = HOOK_TIMEOUT_MS }: RedactOptions): {
  readonly rules: readonly RedactionRule[];
  readonly hook: RedactOptions["hook"];
  readonly hookTimeoutMs: number;
} {
  const own = patterns.map((given, i) => {
    const { name, pattern, sql } = named(given, i);
    return boundedRule(name, new RegExp(pattern), sql);
  });
  return { rules: [...(builtIn ? secretRules : []), ...rulesFor(personal), ...own], hook, hookTimeoutMs };
}
