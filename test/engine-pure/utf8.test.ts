import { describe, expect, it } from "vitest";
import { codePointStart } from "../../src/engine/utf8.ts";

const bytes = Buffer.from("aé€😀z");

describe("a cut between code points", () => {
  it.each([
    [0, 0],
    [1, 1],
    [2, 1],
    [3, 3],
    [4, 3],
    [5, 3],
    [6, 6],
    [7, 6],
    [9, 6],
    [10, 10],
    [11, 11],
    [99, 11],
    [-1, 0],
  ])("at %i is at %i", (at, start) => {
    expect(codePointStart(bytes, at)).toBe(start);
    expect(bytes.subarray(0, start).toString()).not.toContain("\uFFFD");
  });

  it("looks three bytes back and no further in what is no UTF-8", () => {
    expect(codePointStart(new Uint8Array(10).fill(0x80), 8)).toBe(8);
    expect(codePointStart(new Uint8Array(0), 0)).toBe(0);
  });
});
