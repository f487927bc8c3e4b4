/**
 * Redacts text that comes in pieces, which end anywhere, also in the middle of a secret. Text is given on only up to a
 * place behind which a whole match would still fit, between words, and only if what has come so far reads the same when
 * cut there. A secret of one word is never cut, however long it is; one of several words is not if it has up to
 * HOLD_CHARS characters, or is recognized by its beginning as a private key is.
 */
import { replacementOf } from "./rules.ts";

/** How far live text is behind. Longer than any rule's words with spaces between them. */
const HOLD_CHARS = 128;
/** A word, or an open private key, that is longer than this: the rest of the answer is not shown live. */
const MAX_PENDING_CHARS = 16 * 1024;
/** Places tried each time: usually the first is good. */
const MAX_TRIES = 8;
const BETWEEN_WORDS = /[\s"'`,;{}[\]<>]/;

export class StreamRedactor {
  readonly #redact: (text: string) => string;
  #pending = "";
  #isWithheld = false;

  constructor(redact: (text: string) => string) {
    this.#redact = redact;
  }

  /** What may be shown now; often nothing. */
  push(text: string): string {
    if (this.#isWithheld) return "";
    this.#pending += text;
    const cut = this.#cut();
    if (cut > 0) {
      const shown = this.#redact(this.#pending.slice(0, cut));
      this.#pending = this.#pending.slice(cut);
      return shown;
    }
    if (this.#pending.length <= MAX_PENDING_CHARS) return "";
    this.#isWithheld = true;
    this.#pending = "";
    return replacementOf("withheld");
  }

  /** The rest. */
  end(): string {
    const shown = this.#redact(this.#pending);
    this.#pending = "";
    return shown;
  }

  #cut(): number {
    const pending = this.#pending;
    let whole: string | undefined;
    let tries = 0;
    for (let at = pending.length - HOLD_CHARS; at > 0 && tries < MAX_TRIES; at--) {
      if (!BETWEEN_WORDS.test(pending.charAt(at - 1))) continue;
      tries++;
      whole ??= this.#redact(pending);
      if (this.#redact(pending.slice(0, at)) + this.#redact(pending.slice(at)) === whole) return at;
    }
    return 0;
  }
}
