import { describe, expect, it } from "vitest";
import { validateView, type Protocol } from "../../../src/domain/compaction/validate.ts";
import type { Message } from "../../../src/domain/transcript/message.ts";
import { calls, group, results, says, thinking, user } from "./messages.ts";

const all: readonly Protocol[] = ["anthropic_messages", "chat_completions", "responses", "gemini"];
const refusedBy = (view: readonly Message[], atRest = false): Protocol[] => [...new Set(validateView(view, { atRest }).map(({ protocol }) => protocol))];

describe("what vendors take", () => {
  it.each<[string, Message[]]>([
    ["one user message", [user("go")]],
    ["two user messages in a row", [user("head"), user("go")]],
    ["groups, answers and reasoning", [user("go"), ...group("a", 1, "T"), says("done"), user("more"), ...group("b")]],
    ["parallel results in messages of their own", [user("go"), calls("a", "b"), results({ b: 1 }), results({ a: 1 })]],
    [
      "ids that repeat, even within a response",
      [user("go"), ...group("a"), calls("a", "a"), { role: "tool", content: [...results({ a: 1 }).content, ...results({ a: 2 }).content] } as Message],
    ],
  ])("is %s", (_, view) => {
    expect(validateView(view)).toEqual([]);
  });
});

describe("what every vendor refuses", () => {
  it.each<[string, Message[], string]>([
    ["an empty list", [], "the list is empty"],
    ["a list that begins with an answer", [says("hi"), user("go")], "begins with"],
    ["a list that begins with results", [results({ a: 1 }), user("go")], "no call before it"],
    ["C09 a list that ends with an answer", [user("task and summary"), says("understood")], "ends with an answer"],
    ["C06 a call without a result", [user("go"), calls("a")], "call a has no result"],
    ["a call whose result comes later", [user("go"), calls("a"), user("wait"), results({ a: 1 })], "call a has no result"],
    ["C02 a result without a call", [user("go"), results({ a: 1 })], "no call before it"],
    ["two results of one call", [user("go"), calls("a"), results({ a: 1 }), results({ a: 2 })], "two results"],
    ["C01 the tail of a split response", [user("head"), results({ a5: 1, a6: 1 })], "result a5 has no call"],
    ["a message without parts", [user("go"), { role: "assistant", content: [] }, user("more")], "is empty"],
  ])("is %s", (_, view, problem) => {
    expect(refusedBy(view)).toEqual(all);
    expect(
      validateView(view)
        .map((found) => found.problem)
        .join("; "),
    ).toContain(problem);
  });
});

describe("what single vendors refuse", () => {
  it("Anthropic: signed reasoning that was moved behind the calls", () => {
    const moved: Message = { role: "assistant", content: [...(calls("a").content as never[]), thinking] };
    expect(refusedBy([user("go"), moved, results({ a: 1 })])).toEqual(["anthropic_messages"]);
  });

  it("Responses: reasoning without the item that follows it", () => {
    expect(refusedBy([user("go"), { role: "assistant", content: [thinking] }, user("more")])).toEqual(["responses"]);
  });

  it("Gemini: a result under another name than its call, and calls behind an answer", () => {
    const renamed: Message = { role: "tool", content: [{ type: "tool_result", call_id: "a", name: "other", output: 1 }] };
    expect(refusedBy([user("go"), calls("a"), renamed])).toEqual(["gemini"]);
    expect(refusedBy([user("go"), says("well"), ...group("a")])).toEqual(["gemini"]);
  });
});

it("a run that rests may end with an answer, or with calls that are answered before it goes on", () => {
  expect(refusedBy([user("go"), says("done")], true)).toEqual([]);
  expect(refusedBy([user("go"), calls("a")], true)).toEqual([]);
  expect(refusedBy([user("go"), calls("a"), user("more")], true)).toEqual(all);
});
