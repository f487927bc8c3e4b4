/** Text with a bound in UTF-8 bytes. Everything is cut between code points and leaves here well-formed and without NUL. */
import { wellFormedText } from "../domain/json.ts";

export class BoundedText {
  readonly #pieces: string[] = [];
  readonly #maxBytes: number;
  readonly #mark: string;
  #leftBytes: number;
  #isCut = false;

  /** @param mark stands at the end of a text that was cut, within the bound. */
  constructor(maxBytes: number, mark: string) {
    this.#maxBytes = Math.max(0, Math.floor(maxBytes));
    this.#leftBytes = this.#maxBytes;
    this.#mark = mark;
  }

  /** Once true, what is written is lost: a walker stops here. */
  get isCut(): boolean {
    return this.#isCut;
  }

  get isEmpty(): boolean {
    return this.#pieces.length === 0;
  }

  /** No more code units than this are of any use. */
  get leftBytes(): number {
    return this.#leftBytes;
  }

  write(text: string): void {
    if (this.#isCut || text === "") return;
    const fixed = wellFormedText(text.length > this.#leftBytes + 1 ? text.slice(0, this.#leftBytes + 1) : text);
    const sizeBytes = Buffer.byteLength(fixed);
    this.#isCut = sizeBytes > this.#leftBytes || fixed.length < text.length;
    const kept = this.#isCut ? cutText(fixed, this.#leftBytes) : fixed;
    this.#pieces.push(kept);
    this.#leftBytes -= this.#isCut ? Buffer.byteLength(kept) : sizeBytes;
  }

  toString(): string {
    const text = this.#pieces.join("");
    if (!this.#isCut) return text;
    const markBytes = Buffer.byteLength(this.#mark);
    return `${cutText(text, this.#maxBytes - markBytes)}${cutText(this.#mark, this.#maxBytes)}`;
  }
}

const encoder = new TextEncoder();

/** The longest well-formed beginning within `maxBytes`. */
export function cutText(text: string, maxBytes: number): string {
  if (maxBytes <= 0) return "";
  if (text.length * 3 <= maxBytes) return wellFormedText(text);
  // One more than can fit, so that a pair at the end is not taken for half of one.
  const head = wellFormedText(text.slice(0, maxBytes + 1));
  if (head.length === text.length && Buffer.byteLength(head) <= maxBytes) return head;
  return head.slice(0, encoder.encodeInto(head, new Uint8Array(maxBytes)).read);
}

/** The longest well-formed end within `maxBytes`. */
function cutStart(text: string, maxBytes: number): string {
  if (maxBytes <= 0) return "";
  const tail = wellFormedText(text.slice(-(maxBytes + 1)));
  if (tail.length === text.length && Buffer.byteLength(tail) <= maxBytes) return tail;
  let at = tail.length;
  let usedBytes = 0;
  while (at > 0) {
    const isPair = at > 1 && (tail.charCodeAt(at - 1) & 0xfc00) === 0xdc00;
    const code = tail.codePointAt(isPair ? at - 2 : at - 1) as number;
    usedBytes += code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    if (usedBytes > maxBytes) break;
    at -= isPair ? 2 : 1;
  }
  // A half pair that the slice itself made stands at the front and never fits: it is the unit too many.
  return tail.slice(at);
}

/** Head and tail of what is too long, and how much is missing between them; the text itself when it fits. */
export function excerptText(text: string, maxBytes: number): string {
  const sizeBytes = Buffer.byteLength(text);
  if (sizeBytes <= maxBytes) return wellFormedText(text);
  const note = `\n[… ${sizeBytes} bytes in all, the middle left out …]\n`;
  const roomBytes = maxBytes - Buffer.byteLength(note);
  if (roomBytes <= 0) return cutText(`[${sizeBytes} bytes left out]`, maxBytes);
  const headBytes = Math.ceil((roomBytes * 2) / 3);
  return `${cutText(text, headBytes)}${note}${cutStart(text, roomBytes - headBytes)}`;
}
