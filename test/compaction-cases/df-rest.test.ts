/** Chapters D and F of the reported cases: sub-agents, strings and storage. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { contextTool } from "../../src/agents/engine-tools.ts";
import { tool } from "../../src/agents/tool.ts";
import { composeHead, renderHead } from "../../src/domain/compaction/head.ts";
import type { CompactionPolicy } from "../../src/domain/compaction/policy.ts";
import { createTestDatabase } from "../support/database.ts";
import { openLab, payloads, typesOf, type AnyAgent, type Lab } from "../engine/harness.ts";
import { driver, look, lookTool, patient, ran, reading, sound, SUMMARY, textOf, type Driver } from "./support.ts";

const database = await createTestDatabase();
const TASK = "Read all pages, and name the odd entries.";
const system = "Read.";
const isCompacted = (text: string): boolean => text.includes("<capstan-summary");

/** What a command of another system, another encoding, or another decade gives. */
const oddTool = tool({
  name: "odd",
  description: "Gives odd text.",
  input: z.object({ kind: z.enum(["emoji", "surrogate", "nul", "huge"]), bytes: z.int() }),
  effect: "read",
  maxResultBytes: 900_000,
  execute: ({ kind, bytes }) => {
    const texts = { emoji: "👩‍👩‍👧‍👦🧭🇩🇪é", surrogate: "\uDC00 and \uD83D then ", nul: "W\0s\0l\0 ", huge: "line of a long log\n" };
    const text = texts[kind];
    return (kind === "surrogate" ? "\uDC00" : "x".repeat(bytes % 7)) + text.repeat(Math.ceil(bytes / text.length));
  },
});

const settings = { maxOutputTokens: 500 };
const common = { instructions: system, tools: [lookTool, oddTool, contextTool()], limits: { maxTurns: 500 }, settings };
const models: Driver[] = [];
const agents: AnyAgent[] = [];
const made = (name: string, options: Parameters<typeof driver>[1], compaction: CompactionPolicy, more: { readonly interactive?: boolean } = {}) => {
  const model = driver(name, options);
  models.push(model);
  const its = agent({ ...common, ...more, name, model: model.name, compaction });
  agents.push(its);
  return { model, agent: its };
};
const odd = (kind: string, bytes: number) => ({ name: "odd", input: { kind, bytes } });
const self = { name: "context", input: { op: "self" } };

const large = made("large", { windowTokens: 60_000, turn: reading(14) }, { enabled: true });
const little = made("little", { windowTokens: 7_000, turn: reading(24) }, { enabled: true });
const emoji = made(
  "emoji",
  {
    windowTokens: 9_000,
    turn: ({ turn }) => (turn > 16 ? undefined : { text: "🧭".repeat(turn), asks: [odd(turn % 2 === 0 ? "surrogate" : "emoji", 3_000 + turn * 11), odd("emoji", 60_000)] }),
    summary: ({ nth }) => `${"a".repeat(299)}😀 and \uD83D${nth}`,
  },
  { enabled: true, keep_last_n: 1 },
);
const nul = made(
  "nul",
  { windowTokens: 7_000, turn: ({ turn }) => (turn > 20 ? undefined : { asks: [odd("nul", 2_000)] }), summary: () => "W\0s\0l\0 was read" },
  { enabled: true },
);
const huge = made("huge", { windowTokens: 110_000, turn: ({ turn }) => (turn > 8 ? undefined : { asks: [turn === 5 ? odd("huge", 482_000) : look(turn)] }) }, { enabled: true });
const alone = made("alone", { windowTokens: 50_000, turn: reading(3) }, { enabled: true });
const lossy = made("lossy", { turn: reading(6) }, {}, { interactive: true });
let looks = 0;
/** Once it is compacted it looks at its gauge before there is a new count, and a turn later. */
const gauge = made(
  "gauge",
  {
    windowTokens: 200_000,
    turn: patient(
      () => lab,
      ({ turn, call }) => {
        if (!isCompacted(textOf(call.messages[0]))) return { asks: [look(turn, 100_000), self], usage: { input: Math.min(164_000, turn * 27_000), output: 1, scale: "provider" } };
        return looks++ < 2 ? { asks: [self], usage: { input: 20_000, output: 1, scale: "provider" } } : undefined;
      },
    ),
  },
  { enabled: true, keep_last_n: 0 },
);
const silent = made(
  "silent",
  {
    windowTokens: 200_000,
    turn: ({ turn, call }) =>
      turn > 26 ? undefined : { asks: [look(turn)], usage: { input: Math.min(4_096, Math.ceil(JSON.stringify(call.messages).length / 4)), output: 1, scale: "provider" } },
  },
  { enabled: true },
);

let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, { agents, models, settings: { graceMs: 300 } });
});
afterAll(() => lab[Symbol.asyncDispose]());

describe.concurrent("sub-agents", () => {
  // Children come with a later issue; a child is a run like any other, and what a run compacts by is its own model's window.
  it("C37 each run goes by the window of its own model", async () => {
    const [one, other] = await Promise.all([ran(lab, large.agent, TASK), ran(lab, little.agent, TASK)]);
    expect(typesOf(one.events)).not.toContain("compaction.requested");
    const fired = payloads(other.events, "compaction.requested");
    expect(fired.length).toBeGreaterThan(0);
    expect(fired[0].before.tokens).toBeGreaterThanOrEqual(7_000 * 0.8);
    expect(fired[0].before.tokens).toBeLessThan(7_000);
    await sound(lab, other.id, little.model, { system, task: TASK });
  });

  // Live children are listed by the engine's own tables once there are any; what the head says of them is here already.
  it("C39 open obligations stand in the head by themselves, whatever the summary says, and are renewed each time", () => {
    const compose = (obligations: readonly string[], previous?: Parameters<typeof composeHead>[0]["previous"]) =>
      composeHead({
        previous,
        spanMessages: [],
        spanPlaces: [],
        toolEffect: () => "read",
        pins: [],
        summary: "DONE: all. Nothing is open.",
        obligations,
        taskText: "",
        tailText: "",
        tail: [],
        tainted: false,
      }).head;
    const first = compose(["child 01JCHILD (searcher) is at work since turn 4"]);
    expect(textOf(renderHead(first, undefined))).toContain("child 01JCHILD (searcher) is at work since turn 4");
    expect(textOf(renderHead(compose([], first), undefined))).not.toContain("01JCHILD");
  });
});

describe.concurrent("strings and storage", () => {
  it("C52 cuts and summaries through emoji and broken surrogates are stored and sent well-formed", async () => {
    const run = await ran(lab, emoji.agent, TASK);
    expect(run.status.state).toBe("completed");
    const { events } = await sound(lab, run.id, emoji.model, { system, task: TASK });
    const markers = payloads(events, "context.compacted");
    expect(markers.length).toBeGreaterThan(0);
    for (const { head } of markers) expect(head.summary).toMatch(/^a{299}😀 and \uFFFD\d$/u);
    for (const call of emoji.model.summaries(run.id)) expect(textOf(call.messages[0]).isWellFormed()).toBe(true);
    expect(JSON.stringify(events).isWellFormed()).toBe(true);
  });

  it("C53 NUL in results and in the summary", async () => {
    const run = await ran(lab, nul.agent, TASK);
    expect(run.status.state).toBe("completed");
    expect(payloads(run.events, "tool.completed")[0].repaired).toBeGreaterThan(0);
    expect(payloads(run.events, "context.compacted")[0].head.summary).toBe("W\uFFFDs\uFFFDl\uFFFD was read");
    await sound(lab, run.id, nul.model, { system, task: TASK });
  });

  it("C54 one result larger than the budget becomes an excerpt in the view; its row and its pair stay", async () => {
    const run = await ran(lab, huge.agent, TASK);
    expect(run.status.state).toBe("completed");
    const { requests, events } = await sound(lab, run.id, huge.model, { system, task: TASK });
    const row = payloads(events, "tool.completed").find(({ name }) => name === "odd");
    expect(row.output.length).toBeGreaterThan(480_000);
    const shown = requests.flatMap(({ messages }) => messages.filter((message) => message.role === "tool" && textOf(message).includes("line of a long log")));
    expect(shown.length).toBeGreaterThan(0);
    for (const message of shown.slice(-1)) {
      expect(textOf(message)).toContain("of this run's journal holds the whole text");
      expect(message.content[0]).toMatchObject({ call_id: row.call_id });
    }
    for (const { messages } of requests) expect(JSON.stringify(messages).length).toBeLessThan(110_000 * 4);
  });

  it("C54 a user message larger than the window is a typed reason and no loop", async () => {
    const run = await ran(lab, alone.agent, "x ".repeat(150_000));
    expect(run.status).toMatchObject({ state: "waiting", wait_reason: "context_exhausted" });
    expect(payloads(run.events, "compaction.skipped").map(({ reason }) => reason)).toEqual(["irreducible"]);
    expect(alone.model.requests(run.id)).toEqual([]);
    await run.handle.cancel();
  });

  it("C58 a store that drops a field: told, one call, nothing changed", async () => {
    await lab.db.query("create function public.forget() returns trigger language plpgsql as $$ begin new.result := new.result - 'head'; return new; end $$");
    await lab.db.query(
      "create trigger forget before update on capstan.compaction_tasks for each row when (new.agent = 'lossy' and new.result is not null) execute function public.forget()",
    );
    const run = await ran(lab, lossy.agent, TASK);
    expect(await run.handle.compact()).toMatchObject({ applied: "failed", reason: "marker_lost" });
    expect(lossy.model.summaries(run.id)).toHaveLength(1);
    expect((await sound(lab, run.id, lossy.model, { system, task: TASK })).state.epoch).toBe(0);
  });

  it("C61 right after a compaction the gauge shows the new view, and nothing fires before a new count", async () => {
    const run = await ran(lab, gauge.agent, TASK);
    expect(run.status.state).toBe("completed");
    const marker = run.events.find(({ type }) => type === "context.compacted");
    expect(payloads(run.events, "compaction.requested")).toHaveLength(1);
    expect(payloads(run.events, "compaction.requested")[0].before.tokens).toBeGreaterThan(160_000);
    const looked = run.events.filter(({ type, payload, seq }) => type === "tool.completed" && (payload as { name: string }).name === "context" && seq > (marker?.seq ?? 0));
    const first = (looked[0]?.payload as { output: { context: { used_pct: number; used_tokens: number; scale: string } } } | undefined)?.output.context;
    expect(first?.used_pct).toBeLessThan(20);
    const [{ after }] = payloads(run.events, "context.compacted");
    expect(after.scale).toBe("estimate");
    expect(after.tokens).toBeLessThan(40_000);
  });

  it("C63 a server that cuts the prompt and says nothing is told of, and its real window is gone by", async () => {
    const run = await ran(lab, silent.agent, TASK);
    expect(run.status.state).toBe("completed");
    expect(payloads(run.events, "context.compacted").length).toBeGreaterThan(0);
    expect(lab.log.some(({ message, fields }) => fields["runId"] === run.id && message.includes("cut the prompt"))).toBe(true);
    expect(payloads(run.events, "context.compacted")[0].head.summary).toBe(SUMMARY);
  });
});
