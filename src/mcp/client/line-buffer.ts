/** Lines out of chunks: no chunk is copied twice, and no line grows beyond its limit. */
const NEWLINE = 0x0a;

export class LineBuffer {
  readonly #maxBytes: number;
  #parts: Buffer[] = [];
  #bytes = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  /** The lines that a chunk completes, without their ends; "too_long" when one of them, or what has begun, is over the limit. */
  take(chunk: Buffer): readonly string[] | "too_long" {
    const lines: string[] = [];
    let from = 0;
    for (let at = chunk.indexOf(NEWLINE); at !== -1; at = chunk.indexOf(NEWLINE, from)) {
      if (this.#bytes + at - from > this.#maxBytes) return "too_long";
      lines.push(
        Buffer.concat([...this.#parts, chunk.subarray(from, at)])
          .toString("utf8")
          .replace(/\r$/, ""),
      );
      this.#parts = [];
      this.#bytes = 0;
      from = at + 1;
    }
    this.#bytes += chunk.length - from;
    if (this.#bytes > this.#maxBytes) return "too_long";
    if (from < chunk.length) this.#parts.push(chunk.subarray(from));
    return lines;
  }
}
