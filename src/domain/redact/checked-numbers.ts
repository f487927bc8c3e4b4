/** Numbers with a check sum in them: what merely has as many digits is left alone. */
import type { Span } from "./rules.ts";

/** Groups of three digits and more, as cards show them: single digits in a row are something else. */
const DIGIT_GROUPS = /(?<![A-Za-z0-9-])\d{3,}(?:[ -]\d{3,})*(?![A-Za-z0-9-])/g;
const MIN_DIGITS = 13;
const MAX_DIGITS = 19;

/** Card numbers: 13 to 19 digits, perhaps in groups, with an issuer's first digits and the right last one. */
export function cardNumbers(text: string): Span[] {
  const found: Span[] = [];
  for (const match of text.matchAll(DIGIT_GROUPS)) {
    if (match[0].length < MIN_DIGITS) continue;
    const groups = Array.from(match[0].matchAll(/\d+/g), (group) => ({ at: match.index + group.index, digits: group[0] }));
    for (let first = 0; first < groups.length; first++) {
      const last = lastGroup(groups, first);
      if (last === undefined) continue;
      const { at, digits } = groups[last] as (typeof groups)[number];
      found.push({ start: (groups[first] as (typeof groups)[number]).at, end: at + digits.length });
      first = last;
    }
  }
  return found;
}

/** Of the longest card number that begins with this group. */
function lastGroup(groups: readonly { readonly digits: string }[], first: number): number | undefined {
  let found: number | undefined;
  let digits = "";
  for (let i = first; i < groups.length && digits.length <= MAX_DIGITS; i++) {
    digits += (groups[i] as { digits: string }).digits;
    if (digits.length < MIN_DIGITS || digits.length > MAX_DIGITS) continue;
    const numbers = Array.from(digits, Number);
    if (hasIssuer(numbers) && isLuhn(numbers)) found = i;
  }
  return found;
}

function hasIssuer([a = 0, b = 0, c = 0, d = 0]: readonly number[]): boolean {
  const two = a * 10 + b;
  const four = two * 100 + c * 10 + d;
  return a === 4 || (two >= 51 && two <= 55) || (four >= 2221 && four <= 2720) || [30, 34, 35, 36, 37, 38, 39, 60, 62, 64, 65].includes(two);
}

function isLuhn(digits: readonly number[]): boolean {
  let sum = 0;
  for (const [i, digit] of digits.toReversed().entries()) sum += i % 2 === 0 ? digit : digit * 2 > 9 ? digit * 2 - 9 : digit * 2;
  return sum % 10 === 0;
}

const IBAN = /(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}/g;

/** International bank account numbers (ISO 13616), by their remainder of 97; what follows one after a space is not part of it. */
export function bankAccounts(text: string): Span[] {
  const found: Span[] = [];
  for (const match of text.matchAll(IBAN)) {
    for (let length = match[0].length; length >= 15; length--) {
      const candidate = match[0].slice(0, length);
      if (candidate.endsWith(" ") || /^[A-Za-z0-9]/.test(text.slice(match.index + length, match.index + length + 1))) continue;
      if (!isAccount(candidate.replaceAll(" ", ""))) continue;
      found.push({ start: match.index, end: match.index + length });
      break;
    }
  }
  return found;
}

function isAccount(iban: string): boolean {
  let rest = 0;
  for (const char of iban.slice(4) + iban.slice(0, 4)) {
    const value = /\d/.test(char) ? Number(char) : char.charCodeAt(0) - 55;
    rest = (rest * (value > 9 ? 100 : 10) + value) % 97;
  }
  return rest === 1;
}
