/** Cuts UTF-8 between code points: half an emoji is refused by parsers that are strict (case C52). */

/** The nearest place at or before `at` where a code point begins. In bytes that are no UTF-8 it looks three back at most. */
export function codePointStart(bytes: Uint8Array, at: number): number {
  let start = Math.max(0, Math.min(at, bytes.length));
  for (let back = 0; back < 3 && start > 0 && isContinuation(bytes[start]); back++) start--;
  return isContinuation(bytes[start]) ? Math.min(at, bytes.length) : start;
}

function isContinuation(byte: number | undefined): boolean {
  return byte !== undefined && (byte & 0xc0) === 0x80;
}
