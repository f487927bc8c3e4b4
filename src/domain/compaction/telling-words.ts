/** Words that stand for one thing and cannot be guessed: identifiers, paths, addresses and numbers. Words of a language are none. */
const MIN_CHARS = 3;
export const MAX_WORD_CHARS = 120;

export function tellingWords(text: string): Set<string> {
  const telling = new Set<string>();
  for (const [word] of text.matchAll(WORD)) {
    if (word.length >= MIN_CHARS && word.length <= MAX_WORD_CHARS && !telling.has(word) && isTelling(word)) telling.add(word);
  }
  return telling;
}

/** A path keeps its beginning. */
const WORD = /(?:~?\/|\.{1,2}\/)?[\p{L}\p{N}](?:[\p{L}\p{N}_\-./:@#+]*[\p{L}\p{N}])?/gu;

function isTelling(word: string): boolean {
  if (/^\p{L}+$/u.test(word)) return false;
  if (/^[\d.,:]+$/.test(word)) return word.replaceAll(/\D/g, "").length >= 3 || /^\d+\.\d+$/.test(word);
  return /\d/.test(word) || /[@/_]/.test(word) || /\w\.[a-z]{1,5}$/i.test(word);
}

/** Where words and sentences are looked for: by word at once, else by text between other words. */
export class Haystack {
  readonly #texts: readonly string[];
  readonly #words: ReadonlySet<string>;

  constructor(texts: readonly string[]) {
    this.#texts = texts;
    this.#words = new Set(texts.flatMap((part) => [...tellingWords(part)]));
  }

  holds(text: string): boolean {
    return this.#words.has(text) || this.#texts.some((hay) => standsIn(hay, text));
  }
}

/** "42" does not stand in "1423". */
function standsIn(hay: string, needle: string): boolean {
  for (let at = hay.indexOf(needle); at !== -1; at = hay.indexOf(needle, at + 1)) {
    if (!/[\p{L}\p{N}]/u.test(hay.charAt(at - 1)) && !/[\p{L}\p{N}]/u.test(hay.charAt(at + needle.length))) return true;
  }
  return false;
}
