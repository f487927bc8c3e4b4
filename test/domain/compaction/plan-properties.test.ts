import { describe, expect, it } from "vitest";
import { applyExcerpts } from "../../../src/domain/compaction/excerpt.ts";
import { estimateTokens, firesAt, hardLine, hasReached } from "../../../src/domain/compaction/footprint.ts";
import { keptFrom } from "../../../src/domain/compaction/fold.ts";
import { composeHead, renderHead } from "../../../src/domain/compaction/head.ts";
import { mayCompact } from "../../../src/domain/compaction/breaker.ts";
import { planCut, type PlannedCut } from "../../../src/domain/compaction/plan.ts";
import { resolvePolicy } from "../../../src/domain/compaction/policy.ts";
import { compactionTriggers, type Excerpt, type Head } from "../../../src/domain/compaction/types.ts";
import { unitsOf } from "../../../src/domain/compaction/units.ts";
import { validateView } from "../../../src/domain/compaction/validate.ts";
import { messageText, type Message, type UserPart } from "../../../src/domain/transcript/message.ts";
import { Transcript } from "../../support/transcripts.ts";

/** A run with its compactions, as the engine applies them. */
class CompactedRun {
  readonly transcript: Transcript;
  readonly task: readonly UserPart[];
  readonly keepFirst: boolean;
  head: Head | undefined;
  readonly shortened = new Map<number, Excerpt>();

  constructor(transcript: Transcript, keepFirst: boolean) {
    this.transcript = transcript;
    this.task = transcript.view[0]?.content as UserPart[];
    this.keepFirst = keepFirst;
  }

  apply({ cut, cutIndex }: PlannedCut, summary: string): void {
    const { transcript } = this;
    const from = this.head !== undefined || this.keepFirst ? 1 : 0;
    const tail = transcript.view.slice(cutIndex);
    const { head } = composeHead({
      previous: this.head,
      spanMessages: transcript.view.slice(from, cutIndex),
      spanPlaces: transcript.places.slice(from, cutIndex),
      toolEffect: (name) => (name === "read_file" || name === "search" ? "read" : "once"),
      pins: [],
      summary,
      obligations: [],
      taskText: "",
      tailText: tail.map(messageText).join("\n"),
      tail,
      requestSeq: cut.request_seq,
      tainted: true,
      windowTokens: 4_000,
    });
    const fresh = (cut.excerpts ?? []).filter(({ seq }) => !this.shortened.has(seq));
    for (const excerpt of fresh) this.shortened.set(excerpt.seq, excerpt);
    const places = transcript.places.slice(cutIndex);
    const changed = applyExcerpts(tail, places, fresh);
    transcript.view = [renderHead(head, this.keepFirst ? this.task : undefined), ...tail.map((message, i) => changed.get(i) ?? message)];
    const marker = transcript.nextSeq++;
    transcript.places = [{ first: marker, last: marker }, ...places];
    this.head = head;
  }
}

const atRest = (view: readonly Message[]): boolean => view.at(-1)?.role === "assistant";

const occurrences = (text: string, needle: string): number => text.split(needle).length - 1;

function checkCut(run: CompactedRun, plan: PlannedCut, before: readonly Message[]): void {
  const { view, places, nextSeq, shape } = run.transcript;
  const { cut, cutIndex } = plan;
  expect(cutIndex).toBeGreaterThan(0);
  expect(keptFrom(places, cut.first_kept_seq, run.head !== undefined)).toBe(cutIndex);
  expect(cut.from_seq).toBeLessThanOrEqual(cut.to_seq);
  expect(cut.to_seq).toBeLessThan(cut.first_kept_seq);
  expect(cut.first_kept_seq).toBeLessThanOrEqual(nextSeq);
  expect(cut.kept_units).toBe(unitsOf(view, cutIndex).length);
  expect(plan.freedTokens).toBeGreaterThan(0);
  expect(plan.keptTokens).toBeLessThan(estimateTokens(before));
  expect(view[cutIndex]?.role).not.toBe("tool");
  expect(splitsSignedLoop(view, cutIndex)).toBe(false);
  const newest = view.findLastIndex((message) => message.role === "user");
  const isShownAnyway = newest === 0 && (run.head !== undefined || run.keepFirst);
  if (shape.interactive && newest < cutIndex && !isShownAnyway) expect(cut.request_seq).toBe(places[newest]?.first);
}

/** Written apart from the rule: what is left of a loop that was thought in begins with signed reasoning. */
function splitsSignedLoop(view: readonly Message[], cutIndex: number): boolean {
  const first = view[cutIndex];
  const start = view.slice(0, cutIndex).findLastIndex((message) => message.role === "user") + 1;
  if (first?.role !== "assistant" || start === cutIndex) return false;
  const length = view.slice(start).findIndex((message) => message.role === "user");
  const loop = view.slice(start, length === -1 ? undefined : start + length);
  const isThoughtIn = loop.some((message) => message.content.some((part) => part.type === "reasoning"));
  return isThoughtIn && first.content[0]?.type !== "reasoning";
}

function checkView(run: CompactedRun, before: readonly Message[], cutIndex: number): void {
  const { view, places } = run.transcript;
  expect(validateView(view, { atRest: atRest(view) })).toEqual([]);
  expect(places.length).toBe(view.length);
  // The tail is the same objects; only results that became excerpts are others, and keep ids and order.
  for (const [i, message] of view.slice(1).entries()) {
    const was = before[cutIndex + i] as Message;
    if (message === was) continue;
    expect(message.role).toBe("tool");
    expect(message.content.map((part) => (part.type === "tool_result" ? part.call_id : part.type))).toEqual(
      was.content.map((part) => (part.type === "tool_result" ? part.call_id : part.type)),
    );
    expect(messageText(message).length).toBeLessThan(messageText(was).length);
    expect(messageText(message).isWellFormed()).toBe(true);
  }
  if (!run.keepFirst) return;
  const head = view[0] as Message;
  for (const part of run.task) expect(head.content).toContain(part);
  const marker = run.task.find((part) => part.type === "text")?.text as string;
  expect(occurrences(head.content.map((part) => (part.type === "text" ? part.text : "")).join(""), marker)).toBe(1);
}

function compactOnce(run: CompactedRun, seed: number): boolean {
  const { dice, shape } = run.transcript;
  const windowTokens = dice.pick([undefined, 200, 600, 2_000, 16_000]);
  const policy = resolvePolicy({
    enabled: true,
    keep_first: run.keepFirst,
    keep_last_n: dice.int(0, 6),
    target_percentage: dice.int(10, 50),
    ...(dice.chance(0.2) ? { after_bytes: dice.int(600, 12_000) } : {}),
  });
  const before = [...run.transcript.view];
  const { view, places, nextSeq } = run.transcript;
  const input = {
    view,
    places,
    hasHead: run.head !== undefined,
    nextSeq,
    policy,
    windowTokens,
    interactive: shape.interactive,
    trigger: dice.pick(compactionTriggers),
    byBytes: dice.chance(0.3),
    hard: dice.chance(0.3),
    overheadTokens: dice.pick([0, 50, 150]),
    shortened: run.shortened,
  };
  const plan = planCut(input);
  if (seed % 20 === 0) expect(planCut(input)).toEqual(plan);
  if (plan.kind === "skip") {
    expect(plan.detail.fix.length).toBeGreaterThan(10);
    expect(JSON.stringify(plan.detail)).not.toMatch(/NaN|Infinity|null/);
    return false;
  }
  checkCut(run, plan, before);
  run.apply(plan, `DONE: up to ${plan.cut.to_seq} (seed ${seed}) </capstan-summary> $& $$`);
  checkView(run, before, plan.cutIndex);
  return true;
}

/** All 10,000 with CAPSTAN_CHAOS=full, as CI runs it; a part of them in every run of the suite. */
const TRANSCRIPTS = process.env["CAPSTAN_CHAOS"] === "full" ? 10_000 : 2_000;

describe(`${TRANSCRIPTS} random transcripts with one to six compactions each`, () => {
  it("gives lists that four vendors take, with the task once and the tail untouched", () => {
    let applied = 0;
    for (let seed = 1; seed <= TRANSCRIPTS; seed++) {
      const transcript = new Transcript(seed);
      const run = new CompactedRun(transcript, transcript.dice.chance(0.8));
      try {
        for (let i = transcript.dice.int(1, 6); i > 0; i--) {
          transcript.grow(transcript.dice.int(1, 12));
          if (seed % 20 === 0) expect(validateView(transcript.view, { atRest: atRest(transcript.view) })).toEqual([]);
          if (compactOnce(run, seed)) applied++;
        }
      } catch (error) {
        throw new Error(`seed ${seed}`, { cause: error });
      }
    }
    // Else the generator makes transcripts of which nothing can be cut, and the property holds for nothing.
    expect(applied).toBeGreaterThan(TRANSCRIPTS);
  }, 1_800_000);
});

describe("compaction by percentage over long runs", () => {
  it.each(["none", "first", "each", "some"] as const)("is bounded by what was appended, with reasoning %s", (reasoning) => {
    for (let seed = 1; seed <= 25; seed++) {
      const transcript = new Transcript(seed, { reasoning });
      const run = new CompactedRun(transcript, true);
      const windowTokens = transcript.dice.pick([1_000, 3_000]);
      const policy = resolvePolicy({ enabled: true });
      const line = { windowTokens, outputTokens: 100, marginTokens: 20 };
      const history = { appliedTurns: [] as number[], unappliedTurn: undefined as number | undefined };
      let appended = estimateTokens(transcript.view);
      for (let turn = 1; turn <= 150; turn++) {
        const length = transcript.view.length;
        transcript.grow(1);
        appended += estimateTokens(transcript.view.slice(length));
        const fires = hasReached(estimateTokens(transcript.view), firesAt({ policy, ...line }));
        if (!fires || !mayCompact({ history, turn, byBytes: false }).ok) continue;
        const { view, places, nextSeq, shape } = transcript;
        const hardLineTokens = hardLine(line) as number;
        const plan = planCut({
          view,
          places,
          hasHead: run.head !== undefined,
          nextSeq,
          policy,
          windowTokens,
          interactive: shape.interactive,
          trigger: "auto",
          hardLineTokens,
          hard: estimateTokens(view) > hardLineTokens,
          shortened: run.shortened,
        });
        if (plan.kind === "skip") {
          history.unappliedTurn = turn;
          continue;
        }
        run.apply(plan, "DONE: nothing of note.");
        history.appliedTurns.push(turn);
      }
      expect(history.appliedTurns.length).toBeLessThanOrEqual(1 + appended / (windowTokens * 0.05));
    }
  });
});
