/**
 * What a secret looks like. Every pattern reads a text in one pass: a look-behind lets a match begin only where no
 * character of its own kind stands before it, so that a long run of such characters is tried once and not at each of
 * its places.
 *
 * The same sources are read by Postgres (regexp_replace), which redacts what comes through SQL: no `\b`, no named
 * groups, counts up to 255.
 */
import { bankAccounts, cardNumbers } from "./checked-numbers.ts";

/** Half-open, in UTF-16 code units. */
export interface Span {
  readonly start: number;
  readonly end: number;
}

export interface RedactionRule {
  /** Stands in the replacement, `[redacted:<name>]`. */
  readonly name: string;
  find(text: string): readonly Span[];
  /** The same for Postgres; absent where only code can tell. */
  readonly sql?: SqlRule;
}

/** `kind` names the function that Postgres uses: a pattern with its replacement, or the check of card or account numbers. */
export type SqlRule = { readonly kind: "pattern"; readonly pattern: string; readonly replacement: string } | { readonly kind: "card" | "account" };

const personalKinds = ["email", "phone", "card", "national_id", "bank_account"] as const;
export type PersonalKind = (typeof personalKinds)[number];

export function replacementOf(name: string): string {
  return `[redacted:${name}]`;
}

/**
 * @param pattern flags `g` and perhaps `i`. With groups: `(what shows that it is one)(the secret)`.
 * @param needs lower-case pieces of which a text must hold one: most texts are done with after this.
 */
function rule(name: string, pattern: RegExp, needs: readonly string[], sql?: string): RedactionRule {
  const hasGroups = /^\((?!\?)/.test(pattern.source);
  return {
    name,
    find(text) {
      if (!needs.some((piece) => lowered(text).includes(piece))) return [];
      return Array.from(text.matchAll(pattern), (match) => {
        const end = match.index + match[0].length;
        return { start: hasGroups ? match.index + (match[1] ?? "").length : match.index, end };
      });
    },
    sql: {
      kind: "pattern",
      pattern: `${pattern.flags.includes("i") ? "(?i)" : ""}${sql ?? pattern.source}`,
      replacement: `${hasGroups ? "\\1" : ""}${replacementOf(name)}`,
    },
  };
}

let last = { text: "", lower: "" };

/** Every rule asks for the same text. */
function lowered(text: string): string {
  if (last.text !== text) last = { text, lower: text.toLowerCase() };
  return last.lower;
}

const PEM_BEGIN = /-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----/g;
const PEM_END = /-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----/g;

/** A key whose end is not there is one up to the end of the text. By hand: a pattern for it would look for the end from each beginning. */
function privateKeys(text: string): Span[] {
  if (!text.includes("PRIVATE KEY-----")) return [];
  const found: Span[] = [];
  PEM_BEGIN.lastIndex = 0;
  for (let begin = PEM_BEGIN.exec(text); begin !== null; begin = PEM_BEGIN.exec(text)) {
    PEM_END.lastIndex = PEM_BEGIN.lastIndex;
    const close = PEM_END.exec(text);
    const end = close === null ? text.length : PEM_END.lastIndex;
    found.push({ start: begin.index, end });
    PEM_BEGIN.lastIndex = end;
  }
  return found;
}

const TOKEN = "[A-Za-z0-9_-]";

export const secretRules: readonly RedactionRule[] = [
  {
    name: "private_key",
    find: privateKeys,
    sql: {
      kind: "pattern",
      pattern: "-----BEGIN [A-Z0-9 ]{0,40}?PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,40}?PRIVATE KEY-----|$)",
      replacement: replacementOf("private_key"),
    },
  },
  rule("aws_key", /(?<![A-Za-z0-9])(?:AKIA|ASIA|AROA|AIDA|ABIA|ACCA|ANPA)[A-Z0-9]{16}(?![A-Za-z0-9])/g, ["akia", "asia", "aroa", "aida", "abia", "acca", "anpa"]),
  rule("aws_secret", /(secret_?(?:access_?)?key["']?\s{0,5}[:=]\s{0,5}["']?)([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])/gi, ["secret"]),
  rule(
    "provider_key",
    new RegExp(`(?<!${TOKEN})(?:sk-${TOKEN}{16,}|gsk_[A-Za-z0-9]{20,}|xai-[A-Za-z0-9]{20,}|AIza${TOKEN}{35,}|hf_[A-Za-z0-9]{20,}|pplx-[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{20,})`, "g"),
    ["sk-", "gsk_", "xai-", "aiza", "hf_", "pplx-", "r8_"],
  ),
  rule(
    "access_token",
    new RegExp(
      `(?<!${TOKEN})(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-${TOKEN}{16,}|xox[abeoprs]-[A-Za-z0-9-]{10,}|[rsp]k_(?:live|test)_[A-Za-z0-9]{10,}|npm_[A-Za-z0-9]{30,}|SG\\.${TOKEN}{16,}\\.${TOKEN}{16,}|whsec_[A-Za-z0-9+/=]{20,}|cap_${TOKEN}{20,})`,
      "g",
    ),
    ["gh", "glpat-", "xox", "k_live_", "k_test_", "npm_", "sg.", "whsec_", "cap_"],
  ),
  rule("jwt", new RegExp(`(?<!${TOKEN})eyJ${TOKEN}{8,}\\.${TOKEN}{8,}\\.${TOKEN}{8,}`, "g"), ["eyj"]),
  rule("bearer", /((?<![A-Za-z0-9])(?:bearer|basic)\s{1,4})(?=[A-Za-z._~+/=-]{0,255}\d)[A-Za-z0-9._~+/=-]{16,}/gi, ["bearer", "basic"]),
  rule(
    "assigned_key",
    /((?:api[_-]?key|apikey|access[_-]?token|auth[_-]?token|client[_-]?secret)["']?\s{0,5}[:=]\s{0,5}["']?)(?=[A-Za-z._~+/=-]{0,255}\d)[A-Za-z0-9._~+/=-]{16,}/gi,
    ["api", "token", "secret"],
  ),
  rule("connection_string", /((?<![A-Za-z0-9+.-])[a-z][a-z0-9+.-]{1,30}:\/\/[^\s:@/"'<>]{0,255}:)[^\s@/"'<>]+(?=@)/gi, ["://"]),
];

const personalRules: { readonly [Kind in PersonalKind]: readonly RedactionRule[] } = {
  email: [rule("email", /(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}/g, ["@"])],
  phone: [rule("phone", /(?<![A-Za-z0-9+])(?:\+\d{1,3}(?:[ .()/-]{0,2}\d){6,14}|\(\d{3}\) ?\d{3}[ -]\d{4}|\d{3}[-.]\d{3}[-.]\d{4})(?![0-9A-Za-z])/g, "0123456789".split(""))],
  card: [{ name: "card", find: cardNumbers, sql: { kind: "card" } }],
  national_id: [
    // United States, United Kingdom, Brazil: those with a form of their own. Plain runs of digits cannot be told from other numbers.
    rule(
      "national_id",
      /(?<![A-Za-z0-9-])(?:(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}|[A-CEGHJ-PR-TW-Z]{2} ?\d{2} ?\d{2} ?\d{2} ?[A-D]|\d{3}\.\d{3}\.\d{3}-\d{2})(?![A-Za-z0-9-])/g,
      "0123456789".split(""),
    ),
  ],
  bank_account: [{ name: "bank_account", find: bankAccounts, sql: { kind: "account" } }],
};

/** The rules for people's data that were asked for. */
export function rulesFor(personal: boolean | readonly PersonalKind[]): RedactionRule[] {
  const kinds = personal === true ? personalKinds : personal === false ? [] : personalKinds.filter((kind) => personal.includes(kind));
  return kinds.flatMap((kind) => personalRules[kind]);
}

export function isPersonalKind(kind: string): kind is PersonalKind {
  return (personalKinds as readonly string[]).includes(kind);
}
