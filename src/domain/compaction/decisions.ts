/** Sentences that decide something, by rules for English. */
const MIN_CHARS = 12;
const MAX_CHARS = 240;

const DECIDES = /\b(?:decided|decision|chose|chosen|agreed|settled on|instead of|will use|going with|must(?: not)?|never|only use|confirmed)\b/i;
/** An order. "I don't know" is none: whoever decides so stands before the verb, and an order has nobody there. */
const FORBIDS = /(?:^|[,;:(–-]\s*|\b(?:please|you|and|but|so|then|also|just)\s+)(?:do not|don['’]t)\s+\w/i;
/** Politeness in the form of an order. */
const COURTESY =
  /\b(?:(?:do not|don['’]t|never|no need to)\s+(?:you\s+)?(?:ever\s+)?(?:hesitate|worry|mind|mention|be (?:afraid|shy|sorry)|feel|need to|have to|sweat|fear|panic|bother)|never mind)\b/gi;

export function decidingSentences(text: string): string[] {
  return text
    .split(/(?<=[.!?])\s+|\n/)
    .map((sentence) => sentence.trim())
    .filter((sentence) => sentence.length > MIN_CHARS && sentence.length <= MAX_CHARS && decides(sentence));
}

/** A question is still to be decided. */
function decides(sentence: string): boolean {
  if (sentence.endsWith("?")) return false;
  const plain = sentence.replaceAll(COURTESY, "");
  return DECIDES.test(plain) || FORBIDS.test(plain);
}
