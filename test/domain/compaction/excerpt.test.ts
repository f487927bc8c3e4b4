import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { applyExcerpts, excerptMessage, excerptText } from "../../../src/domain/compaction/excerpt.ts";
import type { Excerpt } from "../../../src/domain/compaction/types.ts";
import type { Message } from "../../../src/domain/transcript/message.ts";
import { rawText } from "../arbitrary-json.ts";
import { calls, placesOf, results, user } from "./messages.ts";

const excerpt = (keep_bytes: number, kind: Excerpt["kind"] = "excerpt"): Excerpt => ({ seq: 57, keep_bytes, kind });
const bytes = (text: string): number => Buffer.byteLength(text);

describe("the excerpt of a text", () => {
  it("is head and tail with a note between them: how much is missing, and where all of it stands", () => {
    const text = excerptText(`${"a".repeat(5_000)}${"z".repeat(5_000)}`, excerpt(1_000));
    expect(text).toMatch(/^a{600}\n\[… 9000 bytes left out.*Event 57.*…\]\nz{400}$/);
  });

  it("says of a pruned one that the tool may be called again", () => {
    expect(excerptText("x".repeat(9_999), excerpt(256, "pruned"))).toContain("call the tool again");
  });

  it("is the text itself when little is saved", () => {
    expect(excerptText("short", excerpt(0))).toBe("short");
    expect(excerptText("x".repeat(1_100), excerpt(1_000))).toBe("x".repeat(1_100));
  });

  it("C52 cuts no emoji in half: 299 letters and one that needs two code units", () => {
    const text = excerptText(`${"a".repeat(299)}😀${"b".repeat(5_000)}`, excerpt(500));
    expect(text.isWellFormed()).toBe(true);
    expect(text).toMatch(/^a{299}\n/);
    expect(excerptText(`${"a".repeat(5_000)}😀${"b".repeat(199)}`, excerpt(500))).toMatch(/\nb{199}$/);
  });

  it("C52 cuts between what a reader sees as characters", () => {
    const family = "👩‍👩‍👧‍👦";
    for (const character of [family, "e\u0301", "🇩🇪", "👍🏽", "\r\n"]) {
      const text = excerptText(character.repeat(2_000), excerpt(997));
      const [head, , tail] = text.split(/\n(?=\[…)|(?<=…\])\n/);
      expect((head as string).replaceAll(character, "")).toBe("");
      expect((tail as string).replaceAll(character, "")).toBe("");
    }
  });

  it("C52 accepts a text that begins with half a pair", () => {
    expect(excerptText(`\uDC00${"x".repeat(5_000)}\uD800`, excerpt(100)).isWellFormed()).toBe(true);
  });

  it("is well-formed, within its bytes and never longer, for any text", () => {
    fc.assert(
      fc.property(fc.array(rawText, { minLength: 20, maxLength: 60 }), fc.nat(400), (pieces, keep) => {
        const text = pieces.join("").repeat(4);
        const shown = excerptText(text, excerpt(keep));
        if (shown === text) return;
        expect(shown.isWellFormed()).toBe(true);
        expect(bytes(shown)).toBeLessThanOrEqual(bytes(text.toWellFormed()));
        // Half pairs become a character of three bytes: a byte for each of them may be added.
        expect(bytes(shown)).toBeLessThanOrEqual(keep + 160);
      }),
    );
  });
});

describe("the excerpt of a message", () => {
  const long = "x".repeat(9_000);
  const message = results({ a: long, b: { rows: [long] }, c: "short" });

  it("changes only the results whose events are named, and keeps ids and order", () => {
    const shown = excerptMessage(message, [7, 6, 5], new Map([[6, { seq: 6, keep_bytes: 300, kind: "excerpt" }]]));
    expect(shown.content[0]).toBe(message.content[0]);
    expect(shown.content[2]).toBe(message.content[2]);
    expect(shown.content[1]).toMatchObject({ type: "tool_result", call_id: "b", name: "tool", output: expect.stringMatching(/^\{"rows":\["x+\n\[… .*Event 6 /) as string });
  });

  it("is the same object when nothing is to be shortened", () => {
    expect(excerptMessage(message, [7, 6, 5], new Map([[9, excerpt(1)]]))).toBe(message);
  });

  it("leaves a JSON result that is short enough JSON", () => {
    const json = results({ a: { rows: [1] } });
    expect(excerptMessage(json, [3], new Map([[3, excerpt(100)]]))).toBe(json);
  });

  it("never touches a response", () => {
    const response = calls("T", "a");
    expect(excerptMessage(response, [3], new Map([[3, excerpt(0)]]))).toBe(response);
  });

  it("shortens the texts of input by their shares and leaves media", () => {
    const file = { type: "file", media_type: "image/png", sha256: "s", size_bytes: 9 } as const;
    const input: Message = { role: "user", content: [{ type: "text", text: long }, file, { type: "text", text: long }] };
    const shown = excerptMessage(input, [3], new Map([[3, { seq: 3, keep_bytes: 1_000, kind: "excerpt" }]]));
    expect(shown.content[1]).toBe(file);
    expect(bytes(JSON.stringify(shown))).toBeLessThan(1_800);
  });

  it("is found by the places of a view", () => {
    const view = [user("task"), calls("a", "b", "c"), message];
    const changed = applyExcerpts(view, placesOf(view), [
      { seq: 1, keep_bytes: 0, kind: "excerpt" },
      { seq: 3, keep_bytes: 300, kind: "excerpt" },
    ]);
    expect([...changed.keys()]).toEqual([2]);
  });
});
