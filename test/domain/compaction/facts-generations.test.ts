/** Facts over several compactions: what is given before one and used after it. The summary holds nothing. */
import { describe, expect, it } from "vitest";
import { decidingSentences } from "../../../src/domain/compaction/decisions.ts";
import { headSchema, type Head } from "../../../src/domain/compaction/types.ts";
import { call, composeAll } from "./compose.ts";
import { says, user } from "./messages.ts";

const gives = call("read", { page: "one" }, "the booking is QX12345Z");
const uses = call("read", { booking: "QX12345Z" });
const idle = [says("I look around."), ...call("read", { page: "two" }, "nothing new")];
const textsOf = ({ facts }: Head): string[] => facts.map(({ text }) => text);

describe("a value that is given before a compaction", () => {
  it("is kept with its name when a call of the tail uses it, though the tail shows the call", () => {
    const [head] = composeAll([{ span: gives, tail: uses }]);
    expect(head?.facts).toEqual([{ kind: "identifier", text: "QX12345Z", seq: 2, about: "booking" }]);
  });

  it("is not shown twice when the tail gives it itself before it uses it, or the summary holds it", () => {
    expect(composeAll([{ span: gives, tail: [...gives, ...uses] }]).map(textsOf)).toEqual([[]]);
    expect(composeAll([{ span: gives, tail: uses, summary: "The booking QX12345Z stays." }]).map(textsOf)).toEqual([[]]);
  });

  it("is kept when a later span uses it: calls that were made while the summary was", () => {
    const heads = composeAll([{ span: gives }, { span: idle }, { span: uses }, { span: idle }]);
    expect(heads.map(textsOf)).toEqual([[], [], ["QX12345Z"], ["QX12345Z"]]);
  });

  it("outlives a tail that held it: it is looked for again when that is replaced", () => {
    const both = [...gives, ...uses];
    const heads = composeAll([{ span: both, tail: [says("QX12345Z is booked")] }, { span: idle }, { span: idle, tail: [says("about QX12345Z")] }, { span: idle }]);
    expect(heads.map(textsOf)).toEqual([[], ["QX12345Z"], [], ["QX12345Z"]]);
  });

  it("is looked for among 150,000 ids of one call without filling the stack or the head", () => {
    const ids = Array.from({ length: 150_000 }, (_, i) => `id-${i}`);
    const given = call("read", {}, ids.join(" "));
    const [within] = composeAll([{ span: [...given, ...call("read", { ids })] }]);
    const [behind] = composeAll([{ span: given, tail: call("read", { ids }) }]);
    for (const head of [within, behind]) {
      expect(head?.facts.length).toBeGreaterThan(10);
      expect(head?.facts[0]).toMatchObject({ kind: "identifier", about: "ids" });
      expect(JSON.stringify(head).length).toBeLessThan(64_000);
    }
  });

  it("is no fact as long as nobody uses it, and is remembered within a cap, the newest first", () => {
    const many = Array.from({ length: 40 }, (_, i) => call("read", { page: "p" }, `the code of this page is id-${1_000 + i}`)).flat();
    const [head] = composeAll([{ span: many, caps: { factsBytes: 400 } }]);
    expect(head?.facts).toEqual([]);
    const given = head?.given ?? [];
    expect(given.at(-1)?.[1]).toBe("id-1039");
    expect(given.length).toBeGreaterThan(2);
    expect(given.length).toBeLessThan(10);
    expect(headSchema.parse(head)).toEqual(head);
  });

  it("leaves room for others: one long table does not push out what came before it", () => {
    const table = call("read", { page: "p" }, Array.from({ length: 5_000 }, (_, i) => `row-${10_000 + i}`).join(" "));
    const heads = composeAll([{ span: [...gives, ...table], caps: { factsBytes: 4_096 } }, { span: uses }]);
    expect(heads.map(textsOf)).toEqual([[], ["QX12345Z"]]);
  });
});

describe("a value that was said and then said otherwise", () => {
  it("is no fact any more, in the same words or in others", () => {
    const heads = composeAll([
      { span: idle, summary: "Desk d1234: 555-01111\nCall desk d5678 under 555-02222, please." },
      { span: [user("Desk d1234: 555-03333"), user("Not under the old number, please: desk d5678 has 555-04444.")] },
    ]);
    expect(textsOf(heads[1] as Head).toSorted()).toEqual(["d1234", "d5678"]);
  });

  it("stays one where a call used it: it says what was done", () => {
    const heads = composeAll([{ span: [user("Desk d1234: 555-01111"), ...call("dial", { number: "555-01111" }), user("Desk d1234: 555-03333")] }]);
    expect(textsOf(heads[0] as Head)).toEqual(["555-01111"]);
  });
});

describe("a decision", () => {
  it.each([
    "Don't hesitate to ask!",
    "If you need anything else, please don't hesitate to ask!",
    "Please do not worry about that.",
    "Never mind, it is fine now.",
    "I don't remember the reservation number.",
    "We do not see that order here.",
    "You don’t need to do anything.",
    "Would you like to use the card instead of the voucher?",
  ])("is not %s", (sentence) => {
    expect(decidingSentences(sentence)).toEqual([]);
  });

  it.each([
    "Don't restart the database during the day.",
    "Please do not write to box 7.",
    "For now, don’t touch the index.",
    "You must never write to box-1 before noon.",
    "We will use RT-5 for the rest of this.",
    "I decided to go by RT-5 instead of the older one.",
    "Don't hesitate to ask, but never delete rows.",
  ])("is %s", (sentence) => {
    expect(decidingSentences(sentence)).toEqual([sentence]);
  });
});
