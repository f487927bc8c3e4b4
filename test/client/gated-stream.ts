/** A stream of text whose pieces come when a test says so. */
export interface GatedStream extends AsyncIterable<string> {
  say(...pieces: readonly string[]): void;
  end(): void;
}

export function gatedStream(): GatedStream {
  const pieces: (string | undefined)[] = [];
  let wake = (): void => {};
  const give = (...more: readonly (string | undefined)[]): void => {
    pieces.push(...more);
    wake();
  };
  return {
    say: give,
    end: () => give(undefined),
    async *[Symbol.asyncIterator]() {
      for (;;) {
        while (pieces.length === 0) await new Promise<void>((resolve) => (wake = resolve));
        const piece = pieces.shift();
        if (piece === undefined) return;
        yield piece;
      }
    },
  };
}
