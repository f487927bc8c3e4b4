import { describe, expect, it } from "vitest";
import { applyExcerpts } from "../../../src/domain/compaction/excerpt.ts";
import { estimateTokens, messageTokens } from "../../../src/domain/compaction/footprint.ts";
import { renderHead } from "../../../src/domain/compaction/head.ts";
import { planCut } from "../../../src/domain/compaction/plan.ts";
import { resolvePolicy } from "../../../src/domain/compaction/policy.ts";
import { unitsOf } from "../../../src/domain/compaction/units.ts";
import { validateView } from "../../../src/domain/compaction/validate.ts";
import type { Message } from "../../../src/domain/transcript/message.ts";
import { calls, cutOf, group, groups, placesOf, plan, results, says, user } from "./messages.ts";

const head = user("head of an earlier compaction");
const long = (name: string): string => `${name} ${"x".repeat(2_000)}`;
const exchange = (name: string): Message[] => [user(`question ${name}`), ...group(`${name}1`, long(name)), ...group(`${name}2`, long(name)), says(`answer ${name}`)];
const viewAfter = (view: readonly Message[], cutIndex: number): Message[] => [head, ...view.slice(cutIndex)];

describe("where it cuts", () => {
  const chat = [user("task"), ...group("t", long("t")), says("done"), ...exchange("a"), ...exchange("b"), ...exchange("c")];

  it("takes the nearest user message before the last units, so that at least those stay", () => {
    const { cut, cutIndex } = cutOf(chat, { keep_last_n: 2 });
    expect(chat[cutIndex]).toEqual(user("question c"));
    expect(cut.kept_units).toBe(4);
    expect(cutOf(chat, { keep_last_n: 5 }).cutIndex).toBe(chat.indexOf(chat.findLast((m) => m.content.some((p) => p.type === "text" && p.text === "question b")) as Message));
  });

  it("tells positions, not counts", () => {
    const { cut, cutIndex } = cutOf(chat, { keep_last_n: 2 });
    const places = placesOf(chat);
    expect(cut).toMatchObject({ from_seq: 1, to_seq: places[cutIndex - 1]?.last, first_kept_seq: places[cutIndex]?.first, keep_first: true });
    expect(cutOf([user("task"), ...groups(9)], { keep_last_n: 0 }).cut).toMatchObject({ to_seq: 19, first_kept_seq: 20, kept_units: 0 });
  });

  it("replaces an earlier head with what came behind it, and begins behind the head's own row", () => {
    const view = [head, ...groups(9)];
    const places = placesOf(view);
    // The head's place is its marker's, which is newer than the rows of the tail.
    const moved = [{ first: 99, last: 99 }, ...places.slice(1)];
    const planned = planCut({ view, places: moved, hasHead: true, nextSeq: 100, policy: resolvePolicy({}), windowTokens: undefined, interactive: false, trigger: "manual" });
    expect(planned).toMatchObject({ kind: "cut", cut: { from_seq: 2, to_seq: places[10]?.last, first_kept_seq: places[11]?.first, kept_units: 4 } });
  });

  it("C01 never cuts among ten parallel results that stand in messages of their own", () => {
    const ids = Array.from({ length: 10 }, (_, i) => `a${i + 1}`);
    const parallel = [calls(...ids), ...ids.map((id) => results({ [id]: long(id) }))];
    const view = [user("task"), ...groups(8, () => long("r")), ...parallel, ...group("z")];
    for (let n = 0; n <= 6; n++) {
      const { cutIndex } = cutOf(view, { keep_last_n: n });
      expect(view[cutIndex]?.role).not.toBe("tool");
      expect(validateView(viewAfter(view, cutIndex))).toEqual([]);
    }
    expect(cutOf(view, { keep_last_n: 2 }).cutIndex).toBe(17);
  });

  it("C02 a trigger right behind results leaves no result without its call", () => {
    const view = [user("task"), ...groups(4), calls("a"), results({ a: long("a") })];
    const { cutIndex } = cutOf(view, { keep_last_n: 0 });
    expect(viewAfter(view, cutIndex).map(({ role }) => role)).toEqual(["user"]);
  });

  it("C04 a second compaction takes the first one's head for what it is: the list it leaves is whole", () => {
    let view: Message[] = [user("task"), ...groups(8)];
    view = viewAfter(view, cutOf(view).cutIndex);
    view = [...view, ...group("x", long("x")), ...group("y", long("y")), ...group("z", long("z"))];
    const second = cutOf(view, {}, { hasHead: true });
    view = viewAfter(view, second.cutIndex);
    expect(view.filter((message) => message === head)).toHaveLength(1);
    expect(validateView(view)).toEqual([]);
  });

  it("C06 an open call at the end stays with its unit: answered as interrupted, the list is whole", () => {
    const view = [user("task"), ...groups(6), calls("open")];
    for (const keep_last_n of [0, 2]) {
      const { cutIndex } = cutOf(view, { keep_last_n });
      const after = viewAfter(view, cutIndex);
      expect(after).toContain(view.at(-1));
      expect(validateView(after)).not.toEqual([]);
      expect(validateView([...after, results({ open: "OUTCOME_UNKNOWN: interrupted" })])).toEqual([]);
    }
  });

  it("C07 the agent's own compact call and its siblings are wholly replaced or wholly kept", () => {
    const view = [user("task"), ...groups(5), calls("read", "compact"), results({ read: "text", compact: "scheduled" })];
    for (const keep_last_n of [0, 1, 2]) {
      const { cutIndex } = cutOf(view, { keep_last_n }, { trigger: "self" });
      const tail = viewAfter(view, cutIndex);
      expect(tail.includes(view[11] as Message)).toBe(tail.includes(view[12] as Message));
      expect(validateView(tail)).toEqual([]);
    }
  });

  it("C09 an autonomous run is cut between its groups, and the list ends with results", () => {
    const view = [user("task"), ...groups(40)];
    const { cutIndex, cut } = cutOf(view, { keep_last_n: 4 });
    expect(cut.kept_units).toBe(4);
    const after = viewAfter(view, cutIndex);
    expect(after[1]?.role).toBe("assistant");
    expect(after.at(-1)?.role).toBe("tool");
    expect(validateView(after)).toEqual([]);
  });

  it("C25 does not cut inside a loop that was thought in at its start; an autonomous one goes as a whole when the window is full", () => {
    const view = [user("task"), ...group("first", long("x"), "T"), ...groups(30, () => long("r"))];
    expect(plan(view, { keep_last_n: 4 })).toMatchObject({ kind: "skip", reason: "nothing_to_cut" });
    const { cut, cutIndex } = cutOf(view, { enabled: true, keep_last_n: 4 }, { windowTokens: 20_000, trigger: "auto" });
    expect(cutIndex).toBe(view.length);
    expect(cut.kept_units).toBe(0);
  });

  it("C25 cuts before a response that begins with signed reasoning", () => {
    const view = [user("task"), ...Array.from({ length: 10 }, (_, i) => group(`g${i}`, long("r"), ...(i % 3 === 0 ? ["T"] : []))).flat()];
    const { cutIndex } = cutOf(view, { keep_last_n: 2 });
    expect((view[cutIndex] as Message).content[0]?.type).toBe("reasoning");
    expect(view.length - cutIndex).toBeGreaterThanOrEqual(4);
  });

  it("C48 the newest user message of an interactive run is in the tail, though keep_last_n is 1", () => {
    const view = [user("skill x"), ...groups(8), says("done"), user("question"), calls("a"), results({ a: "1" })];
    const { cutIndex } = cutOf(view, { keep_last_n: 1 }, { interactive: true });
    expect(view[cutIndex]).toEqual(user("question"));
  });

  it("C51 the list that is cut holds no system prompt: roles are user, assistant and tool, whatever the settings", () => {
    const view = [user("task"), ...groups(9)];
    for (const keep_first of [true, false]) {
      const { cutIndex } = cutOf(view, { keep_first });
      expect(new Set(viewAfter(view, cutIndex).map(({ role }) => role))).toEqual(new Set(["user", "assistant", "tool"]));
    }
    const rendered = renderHead({ version: 1, summary: "s", facts: [], ledger: [], ledger_left_out: 0, obligations: [], tainted: false }, [{ type: "text", text: "task" }]);
    expect(rendered.role).toBe("user");
  });
});

describe("when the tail does not fit", () => {
  it("keeps fewer units than asked for, and says how many", () => {
    const view = [user("task"), ...groups(10, () => "x".repeat(8_000))];
    const { cut, keptTokens } = cutOf(view, { enabled: true, keep_last_n: 8 }, { windowTokens: 20_000, trigger: "auto" });
    expect(cut.kept_units).toBeLessThan(8);
    expect(cut.kept_units).toBeGreaterThan(0);
    expect(keptTokens).toBeLessThan(16_000);
  });

  it("C54 a result of 482,000 tokens becomes an excerpt: its call id and its row stay", () => {
    const view = [user("task"), ...groups(6), calls("a"), results({ a: "x".repeat(482_000 * 4) })];
    const { cut, cutIndex } = cutOf(view, { enabled: true, keep_last_n: 1 }, { windowTokens: 500_000, trigger: "auto" });
    const places = placesOf(view);
    expect(cut.excerpts).toMatchObject([{ seq: places.at(-1)?.first, kind: "excerpt" }]);
    const shown = applyExcerpts(view, places, cut.excerpts ?? []).get(view.length - 1) as Message;
    expect(shown.content[0]).toMatchObject({ type: "tool_result", call_id: "a" });
    expect(messageTokens(shown)).toBeLessThan(250_000);
    expect(validateView([head, ...view.slice(cutIndex, -1), shown])).toEqual([]);
    expect(JSON.stringify(view.at(-1)).length).toBeGreaterThan(482_000 * 4);
  });

  it("shortens nothing that is shortened already: a marker's excerpts are made from the rows", () => {
    const view = [user("task"), ...groups(6), calls("a"), results({ a: "x".repeat(482_000 * 4) })];
    const seq = placesOf(view).at(-1)?.first as number;
    const more = { windowTokens: 500_000, shortened: new Map([[seq, { seq, keep_bytes: 9, kind: "excerpt" } as const]]) };
    expect(plan(view, { keep_last_n: 1 }, { ...more, trigger: "overflow" })).not.toHaveProperty("cut.excerpts");
  });

  it("C54 a user message of 300,000 tokens in a window of 200,000 is irreducible, with the numbers", () => {
    expect(plan([user("x".repeat(300_000 * 4))], { enabled: true }, { windowTokens: 200_000, trigger: "overflow" })).toMatchObject({
      kind: "skip",
      reason: "irreducible",
      detail: { seq: 1, hard_line_tokens: 200_000 },
    });
    const later = [user("task"), ...groups(6), user("x".repeat(300_000 * 4))];
    expect(plan(later, { enabled: true }, { windowTokens: 200_000, trigger: "auto", hard: true })).toMatchObject({ kind: "skip", reason: "irreducible" });
  });

  it("carries the newest question in the head when the exchange about it outgrows its share", () => {
    const view = [user("task"), ...groups(4), says("done"), user("big question"), ...groups(60, () => "x".repeat(2_000))];
    const places = placesOf(view);
    const { cut, cutIndex } = cutOf(view, { enabled: true }, { windowTokens: 30_000, trigger: "auto", interactive: true });
    expect(cutIndex).toBeGreaterThan(10);
    expect(cut.request_seq).toBe(places[10]?.first);
    expect(cut.kept_units).toBeGreaterThanOrEqual(4);
  });

  it("by bytes a newest message that alone is over the limit is skipped without a call", () => {
    const view = [user("task"), ...groups(4), says("x".repeat(60_000))];
    expect(plan(view, { after_bytes: 40_000, keep_last_n: 1 }, { trigger: "auto", byBytes: true })).toMatchObject({
      kind: "skip",
      reason: "single_message",
      detail: { after_bytes: 40_000 },
    });
    const answered = [...view, user("go on"), ...group("a"), ...group("b")];
    expect(plan(answered, { after_bytes: 40_000, keep_last_n: 1 }, { trigger: "auto", byBytes: true }).kind).toBe("cut");
  });
});

describe("when nothing is to be done", () => {
  it("says that there are too few units, also behind a head", () => {
    expect(plan([user("task"), ...group("a"), ...group("b")])).toMatchObject({ kind: "skip", reason: "too_few_units", detail: { units: 3, needed_units: 4 } });
    expect(plan([head, ...group("a"), ...group("b"), ...group("c")], {}, { hasHead: true })).toMatchObject({ kind: "skip", reason: "too_few_units", detail: { units: 3 } });
  });

  it("says that all of it is kept", () => {
    expect(plan([user("task"), ...groups(6)], { keep_last_n: 99 })).toMatchObject({ kind: "skip", reason: "nothing_to_cut", detail: { keep_last_n: 99 } });
    expect(plan([head, ...groups(4)], {}, { hasHead: true })).toMatchObject({ kind: "skip", reason: "nothing_to_cut" });
  });

  it("says when a cut would free less than a twentieth of the view", () => {
    const view = [user("task"), ...group("a", "x"), ...group("b", "x"), ...groups(4, () => "x".repeat(40_000))];
    expect(plan(view, { keep_last_n: 4 })).toMatchObject({ kind: "skip", reason: "too_little_freed" });
  });

  it("C15 a frame of 85 % of the window is irreducible by percentage; at the hard line what can go goes", () => {
    const view = [user("task"), ...groups(40)];
    const more = { windowTokens: 200_000, overheadTokens: 170_000, trigger: "auto", hardLineTokens: 190_000 } as const;
    expect(plan(view, { enabled: true }, more)).toMatchObject({ kind: "skip", reason: "irreducible", detail: { overhead_tokens: 170_000 } });
    expect(plan(view, { enabled: true }, { ...more, hard: true }).kind).toBe("cut");
  });

  it("frees a twentieth of the window or does nothing, when it fires by percentage", () => {
    const view = [user("task"), ...groups(40)];
    const more = { windowTokens: 200_000, overheadTokens: 155_000, trigger: "auto", hardLineTokens: 190_000 } as const;
    expect(estimateTokens(view)).toBeLessThan(10_000);
    expect(plan(view, { enabled: true }, more)).toMatchObject({ kind: "skip" });
    expect(plan(view, { enabled: true }, { ...more, trigger: "manual" }).kind).toBe("cut");
  });
});

it("the numbers are those of the view: what is freed and what is kept make what there was", () => {
  const view = [user("task"), ...groups(20)];
  const { freedTokens, keptTokens, sourceTokens, cutIndex } = cutOf(view);
  expect(freedTokens + keptTokens).toBe(estimateTokens(view));
  expect(sourceTokens).toBe(estimateTokens(view.slice(1, cutIndex)));
  expect(unitsOf(view, cutIndex)).toHaveLength(4);
});
