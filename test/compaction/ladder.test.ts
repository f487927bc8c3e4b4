import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { SKELETON_NOTE, fitMessages, pieces, skeleton, textBytes } from "../../src/compaction/ladder.ts";
import { summarizerText } from "../../src/compaction/summarizer-text.ts";
import type { Message } from "../../src/domain/transcript/message.ts";
import { hostileSummarizers, narrowSummarizer } from "../../src/testing/hostile-summarizers.ts";
import { rawText } from "../domain/arbitrary-json.ts";
import { bench, calls, result, says, span, user } from "./support.ts";

const OVERHEAD_BYTES = 4_000;

describe("the rungs", () => {
  it("0: leaves what fits as it is, the same objects", () => {
    const messages = span(10);
    expect(fitMessages(messages, 0, textBytes(messages))).toBe(messages);
    expect(fitMessages(messages, 0, textBytes(messages) - 1)).toBeUndefined();
  });

  it("1: caps old results, arguments and texts by head and tail, and keeps the last unit and the call ids", () => {
    const big = `first line\n${"x".repeat(300_000)}\nERROR at the very end`;
    const messages = [user(big), calls("1", "write", { content: big }), result("1", big), says(big), calls("2"), result("2", "the last result")];
    const fitting = fitMessages(messages, 1, 30_000) ?? [];
    const text = summarizerText(fitting);
    expect(textBytes(fitting)).toBeLessThanOrEqual(30_000);
    expect(text.match(/first line/g)).toHaveLength(4);
    expect(text.match(/ERROR at the very end/g)).toHaveLength(4);
    expect(text).toContain("bytes in all, the middle left out");
    expect(fitting.at(-1)).toBe(messages.at(-1));
    expect(JSON.stringify(fitting)).toContain('"call_id":"1"');
  });

  it("2: drops results from the middle outwards, never of the last unit", () => {
    const messages = span(200, 600);
    const fitting = fitMessages(messages, 2, 60_000) ?? [];
    expect(textBytes(fitting)).toBeLessThanOrEqual(60_000);
    const dropped = fitting.flatMap((message, i) => (message.role === "tool" && JSON.stringify(message).includes("result left out") ? [i] : []));
    expect(dropped.length).toBeGreaterThan(50);
    // One block around the middle.
    expect(Math.abs((dropped[0] as number) + (dropped.at(-1) as number) - messages.length)).toBeLessThan(6);
    expect((dropped.at(-1) as number) - (dropped[0] as number)).toBe((dropped.length - 1) * 2);
    expect(fitting.at(-1)).toBe(messages.at(-1));
  });

  it("3: cuts into pieces that never part a call from its result", () => {
    const messages = span(300, 400);
    const found = pieces(messages, 40_000, 6) ?? [];
    expect(found.length).toBeGreaterThan(1);
    expect(found.length).toBeLessThanOrEqual(6);
    for (const piece of found) {
      expect(textBytes(piece)).toBeLessThanOrEqual(40_000);
      expect(piece[0]?.role).not.toBe("tool");
    }
    expect(found.flat()).toHaveLength(messages.length);
    expect(pieces(messages, 1_000, 6)).toBeUndefined();
  });

  it("4: a skeleton is bounded and holds what is open, the end and what it is", () => {
    const text = skeleton({ messages: span(2_000, 500), previousSummary: "The port was 80.", obligations: ["approval of deploy #4"], maxBytes: 4_096 });
    expect(Buffer.byteLength(text)).toBeLessThanOrEqual(4_096);
    expect(text.startsWith(SKELETON_NOTE)).toBe(true);
    expect(text).toContain("OPEN:\napproval of deploy #4");
    expect(text).toContain("Never restart the database.");
    expect(text).toMatch(/LAST STEP:\nassistant \[tool_use lookup\]: \{"id":"c1999"\}\ntool \[tool_result\]: record 1999/);
  });

  it("C52: every rung cuts between code points", () => {
    const message = fc.oneof(
      rawText.map((text) => user(text.repeat(400))),
      rawText.map((text) => result("1", text.repeat(400))),
      rawText.map((text) => calls("1", "t", { text: text.repeat(400) })),
    );
    fc.assert(
      fc.property(fc.array(message, { minLength: 1, maxLength: 6 }), fc.integer({ min: 200, max: 6_000 }), (messages: Message[], budget) => {
        for (const rung of [0, 1, 2] as const) {
          const fitting = fitMessages(messages, rung, budget);
          if (fitting === undefined) continue;
          const text = summarizerText(fitting);
          expect(Buffer.byteLength(text)).toBeLessThanOrEqual(budget);
          expect(text.isWellFormed()).toBe(true);
        }
        const text = skeleton({ messages, maxBytes: budget });
        expect(text.isWellFormed() && Buffer.byteLength(text) <= budget).toBe(true);
      }),
      { numRuns: 100 },
    );
  });
});

describe("C27: a span that does not fit the summarizer", () => {
  it("is applied by the ladder when the window is known, in one call that fits", async () => {
    const windowTokens = 16_000;
    const narrow = narrowSummarizer(windowTokens * 4, windowTokens);
    const messages = span(100, 2_000);
    expect(textBytes(messages)).toBeGreaterThan(windowTokens * 4 * 3);
    const outcome = await bench({ models: [narrow] }).run({ messages });
    expect(outcome).toMatchObject({ kind: "summarized", rung: 2, calls: [{ outcome: "summarized" }] });
    expect(narrow.seenBytes).toHaveLength(1);
  });

  it("is applied by the ladder when only the server knows: each try is smaller, and the rung is told", async () => {
    const messages = span(100, 2_000);
    const narrow = narrowSummarizer(textBytes(messages) / 3);
    const outcome = await bench({ models: [narrow] }).run({ messages });
    expect(outcome).toMatchObject({ kind: "summarized", rung: 1 });
    expect(narrow.seenBytes.length).toBe(outcome.calls.length);
    expect(narrow.seenBytes).toEqual(narrow.seenBytes.toSorted((a, b) => b - a));
    expect(new Set(narrow.seenBytes).size).toBe(narrow.seenBytes.length);
  });

  it("with 7.9 million characters in one message fits a window of 200,000 tokens", async () => {
    const narrow = narrowSummarizer(800_000, 200_000);
    const outcome = await bench({ models: [narrow] }).run({
      messages: [user("Look."), calls("1"), result("1", "line of a log 0x1f\n".repeat(415_000)), calls("2"), result("2", "ok")],
    });
    expect(outcome).toMatchObject({ kind: "summarized", rung: 1 });
  });

  it("that is many small messages is read in pieces and merged, in a bounded number of calls", async () => {
    const narrow = narrowSummarizer(80_000, 16_000);
    const messages = Array.from({ length: 900 }, (_, i) =>
      i % 2 === 0 ? user(`question ${i}: ${"why is it so? ".repeat(10)}`) : says(`answer ${i}: ${"since it was asked for. ".repeat(6)}`),
    );
    const outcome = await bench({ models: [narrow] }).run({ messages, previousSummary: "So far." });
    expect(outcome).toMatchObject({ kind: "summarized", rung: 3 });
    expect(outcome.calls.length).toBeGreaterThan(2);
    expect(outcome.calls.length).toBeLessThanOrEqual(7);
    expect(outcome.usage?.input).toBe(1_000 * outcome.calls.length);
  });

  it("C27, C35: under hard pressure becomes a skeleton when every size is refused, otherwise nothing", async () => {
    const always = hostileSummarizers().find(({ name }) => name === "always_overflows");
    const b = bench({ models: always === undefined ? [] : [always.model] });
    const messages = span(100, 2_000);
    const soft = await b.run({ messages });
    expect(soft).toMatchObject({ kind: "rejected", reason: "input_too_large", retryable: false });
    expect(soft.calls.length).toBeLessThanOrEqual(4);
    const hard = await b.run({ messages, hard: true, obligations: ["child 7 is running"] });
    expect(hard).toMatchObject({ kind: "summarized", rung: 4 });
    expect(hard.kind === "summarized" && hard.summary).toContain("child 7 is running");
    expect(hard.kind === "summarized" && hard.summary).toContain("record 99");
  });

  it("C35: an estimator that is ten times too high and a window that holds nothing end in a skeleton, without a call", async () => {
    const tiny = narrowSummarizer(100, 700);
    const outcome = await bench({ models: [tiny] }).run({ messages: span(50), replacedTokens: 1_000_000, hard: true });
    expect(outcome).toMatchObject({ kind: "summarized", rung: 4, calls: [] });
    expect(tiny.seenBytes).toEqual([]);
  });

  it("is handed to a registered function smaller and smaller, when it says so", async () => {
    const seen: number[] = [];
    const messages = span(100, 2_000);
    const limit = textBytes(messages) / 3;
    const outcome = await bench({
      models: [narrowSummarizer(1)],
      summarizers: {
        narrow: async (input) => {
          seen.push(textBytes(input.messages));
          if ((seen.at(-1) as number) > limit) throw Object.assign(new Error("prompt is too long"), { code: "CONTEXT_OVERFLOW" });
          return { summary: "The port is 8080." };
        },
      },
    }).run({ messages, policy: { summarizer: "narrow" } });
    expect(outcome).toMatchObject({ kind: "summarized", rung: 1 });
    expect(seen).toEqual(seen.toSorted((a, b) => b - a));
  });

  it("leaves room for the answer and the frame in a window that it fits exactly", async () => {
    for (let windowTokens = 3_000; windowTokens <= 9_000; windowTokens += 500) {
      const narrow = narrowSummarizer((windowTokens - 512) * 3 + OVERHEAD_BYTES, windowTokens);
      const outcome = await bench({ models: [narrow] }).run({ messages: span(60, 600) });
      expect(outcome).toMatchObject({ kind: "summarized" });
      expect(narrow.seenBytes.every((bytes) => bytes / 3 <= windowTokens)).toBe(true);
    }
  });
});
