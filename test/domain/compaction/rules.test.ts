import { describe, expect, it } from "vitest";
import { behindTheHead } from "../../../src/domain/compaction/rules/behind-the-head.ts";
import { legalCuts } from "../../../src/domain/compaction/rules/legal-cuts.ts";
import { newestInput } from "../../../src/domain/compaction/rules/newest-input.ts";
import { noOpenCall } from "../../../src/domain/compaction/rules/no-open-call.ts";
import type { Rule, RuleInput } from "../../../src/domain/compaction/rules/position.ts";
import { signedReasoning } from "../../../src/domain/compaction/rules/signed-reasoning.ts";
import { wholeResponses } from "../../../src/domain/compaction/rules/whole-responses.ts";
import { unitsOf } from "../../../src/domain/compaction/units.ts";
import type { Message } from "../../../src/domain/transcript/message.ts";
import { calls, group, results, says, thinking, user } from "./messages.ts";

const legal = (rule: Rule, view: readonly Message[], more: Partial<RuleInput> = {}): number[] => {
  const allows = rule({ view, hasHead: false, interactive: false, keepFirst: true, ...more });
  return Array.from({ length: view.length + 1 }, (_, i) => i).filter(allows);
};

describe("units", () => {
  it("are a user message, or a response with all its results", () => {
    const view = [user("go"), calls("a", "b"), results({ a: 1 }), results({ b: 2 }), says("done"), user("more")];
    expect(unitsOf(view)).toEqual([
      { kind: "user", start: 0, end: 1 },
      { kind: "response", start: 1, end: 4 },
      { kind: "response", start: 4, end: 5 },
      { kind: "user", start: 5, end: 6 },
    ]);
    expect(unitsOf(view, 4)).toHaveLength(2);
  });
});

describe("whole responses", () => {
  it("allows no place among the results of one response", () => {
    expect(legal(wholeResponses, [user("go"), calls("a", "b"), results({ a: 1 }), results({ b: 2 }), says("x")])).toEqual([0, 1, 4, 5]);
  });

  it("never begins a tail with a result whose call is gone", () => {
    expect(legal(wholeResponses, [results({ stray: 1 }), user("go")])).toEqual([0, 1, 2]);
    expect(legal(wholeResponses, [user("go"), results({ stray: 1 }), user("more")])).toEqual([0, 2, 3]);
  });
});

describe("open calls", () => {
  it("keeps a response whose calls are not all answered, and what follows", () => {
    expect(legal(noOpenCall, [user("go"), ...group("a"), calls("b", "c"), results({ b: 1 })])).toEqual([0, 1, 2, 3]);
    expect(legal(noOpenCall, [user("go"), calls("b")])).toEqual([0, 1]);
  });

  it("is not held for ever by a call that died long ago", () => {
    expect(legal(noOpenCall, [user("go"), calls("dead"), user("again"), ...group("a")])).toEqual([0, 1, 2, 3, 4, 5]);
  });

  it("takes an id that is used twice for two calls", () => {
    expect(legal(noOpenCall, [user("go"), ...group("a"), calls("a")])).toEqual([0, 1, 2, 3]);
  });
});

describe("signed reasoning", () => {
  it("C25 a loop with reasoning at its start only is not cut inside: what is left would begin without", () => {
    expect(legal(signedReasoning, [user("go"), ...group("a", 1, "T"), ...group("b")])).toEqual([0, 1, 2, 4, 5]);
  });

  it("C25 may be cut before each response that begins with signed reasoning of its own", () => {
    const view = [user("go"), ...group("a", 1, "T"), ...group("b", 1, "T"), ...group("c"), ...group("d", 1, "T")];
    expect(legal(signedReasoning, view)).toEqual([0, 1, 2, 3, 4, 6, 7, 8, 9]);
  });

  it("C25 ends the loop with the next user message", () => {
    expect(legal(signedReasoning, [user("go"), ...group("a", 1, "T"), says("done"), user("more"), ...group("b")])).toEqual([0, 1, 2, 4, 5, 6, 7]);
  });

  it("asks nothing of reasoning without a signature", () => {
    const open: Message = { role: "assistant", content: [{ type: "reasoning", text: "hm" }, ...(calls("a").content as never[])] };
    expect(legal(signedReasoning, [user("go"), open, results({ a: 1 }), ...group("b")])).toEqual([0, 1, 2, 3, 4, 5]);
  });

  it("takes a signature on the call itself for one, as Gemini gives it", () => {
    const signedCall = (id: string): Message => ({
      role: "assistant",
      content: [{ type: "tool_call", call_id: id, name: "tool", input: {}, metadata: { google: { thoughtSignature: "s" } } }],
    });
    const view = [user("go"), { role: "assistant", content: [thinking, ...signedCall("a").content] } as Message, results({ a: 1 }), signedCall("b"), results({ b: 1 })];
    expect(legal(signedReasoning, view)).toContain(3);
  });
});

describe("the newest input", () => {
  const view = [user("task"), ...group("a"), says("done"), user("question"), ...group("b")];

  it("stays in an interactive run", () => {
    expect(legal(newestInput, view, { interactive: true })).toEqual([0, 1, 2, 3, 4]);
    expect(legal(newestInput, view)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
  });

  it("stays in every run until a model has read it", () => {
    expect(legal(newestInput, [user("task"), ...group("a"), user("stop that"), user("do this")])).toEqual([0, 1, 2, 3]);
  });

  it("is no matter when the head shows it anyway", () => {
    expect(legal(newestInput, [user("task"), ...group("a")], { interactive: true })).toEqual([0, 1, 2, 3]);
    expect(legal(newestInput, [user("head"), ...group("a")], { interactive: true, hasHead: true, keepFirst: false })).toEqual([0, 1, 2, 3]);
    expect(legal(newestInput, [user("task"), ...group("a")], { interactive: true, keepFirst: false })).toEqual([0]);
  });
});

it("something is replaced that is not shown again anyway", () => {
  expect(legal(behindTheHead, [user("task"), says("a"), user("b")])).toEqual([2, 3]);
  expect(legal(behindTheHead, [user("task"), says("a"), user("b")], { keepFirst: false })).toEqual([1, 2, 3]);
  expect(legal(behindTheHead, [user("head"), says("a"), user("b")], { keepFirst: false, hasHead: true })).toEqual([2, 3]);
});

it("legal is what every rule allows", () => {
  const view = [user("task"), ...group("a", 1, "T"), ...group("b"), ...group("c", 1, "T"), calls("open")];
  expect(legalCuts({ view, hasHead: false, interactive: false, keepFirst: true })).toEqual([5]);
});
