import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { cutText, deltasOf, parseAnnouncement, parseLiveMessage } from "../../src/domain/delta.ts";
import { wellFormedText } from "../../src/domain/json.ts";

const jsonBytes = (text: string): number => Buffer.byteLength(JSON.stringify(text)) - 2;

describe("cutText", () => {
  it("loses nothing, keeps pairs together and stays within its limit, unless the first character alone does not fit", () => {
    fc.assert(
      fc.property(fc.string({ unit: "binary", maxLength: 300 }).map(wellFormedText), fc.integer({ min: 1, max: 64 }), (text, limit) => {
        const [head, rest] = cutText(text, limit);
        expect(head + rest).toBe(text);
        expect(head.isWellFormed()).toBe(true);
        if (text !== "") expect(head).not.toBe("");
        if (head.length > String.fromCodePoint(text.codePointAt(0) ?? 0).length) expect(jsonBytes(head)).toBeLessThanOrEqual(limit);
      }),
    );
  });

  it("takes as much as fits", () => {
    expect(cutText("€€€", 6)).toEqual(["€€", "€"]);
    expect(cutText('a"b', 3)).toEqual(['a"', "b"]);
    expect(cutText("abc", 3)).toEqual(["abc", ""]);
  });
});

describe("what is read from a channel", () => {
  it.each([undefined, "", "{", "null", "[]", '{"is":"delta"}', '{"is":"appended","run_id":7}', '{"is":"something newer"}'])("is nothing when it is not ours: %j", (payload) => {
    expect(parseLiveMessage(payload)).toBeUndefined();
    expect(parseAnnouncement(payload)).toBeUndefined();
  });
});

it("an answer that came whole is one delta for each part that has text, calls counted", () => {
  const deltas = deltasOf([
    { type: "reasoning", text: "hm" },
    { type: "text", text: "" },
    { type: "text", text: "so" },
    { type: "tool_call", call_id: "a", name: "look", input: { b: 1 } },
    { type: "tool_call", call_id: "b", name: "look", arguments: "{", invalid: "no JSON" },
  ]);
  expect(deltas).toEqual([
    { kind: "reasoning", text: "hm" },
    { kind: "text", text: "so" },
    { kind: "tool_arguments", text: '{"b":1}', index: 0, name: "look" },
    { kind: "tool_arguments", text: "{", index: 1, name: "look" },
  ]);
});
