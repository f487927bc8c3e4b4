/** Chapter A of the reported cases: calls and their results, boundaries, order. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { contextTool } from "../../src/agents/engine-tools.ts";
import { tool } from "../../src/agents/tool.ts";
import { RunBusyError } from "../../src/client/errors.ts";
import type { CanonicalCall } from "../../src/domain/call.ts";
import { planCut } from "../../src/domain/compaction/plan.ts";
import { resolvePolicy, type CompactionPolicy } from "../../src/domain/compaction/policy.ts";
import type { Message } from "../../src/domain/transcript/message.ts";
import { createTestDatabase } from "../support/database.ts";
import { openLab, payloads, typesOf, until, type Lab } from "../engine/harness.ts";
import { calls, driver, gate, look, lookTool, patient, ran, reading, results, sound, textOf, user } from "./support.ts";

const database = await createTestDatabase();
const TASK = "Read all pages, and name the odd entries.";
const system = "Read.";

const parallel = driver("parallel", {
  turn: ({ turn }) => (turn > 6 ? undefined : { asks: Array.from({ length: turn % 2 === 1 ? 10 : 1 }, (_, i) => look(turn * 100 + i, 300)) }),
});
const single = driver("single", { turn: reading(8) });
const byBytes = driver("by-bytes", { turn: patient(() => lab, reading(24)) });
const selfish = driver("selfish", {
  turn: patient(
    () => lab,
    ({ turn }) => (turn > 8 ? undefined : turn === 6 ? { asks: [look(6), { name: "context", input: { op: "compact" } }, look(60)] } : { asks: [look(turn)] }),
  ),
});
const held = gate();
const stuck = driver("stuck", { turn: ({ turn }) => (turn > 6 ? undefined : { asks: [turn === 6 ? { name: "wait", input: {} } : look(turn)] }) });
const dead = driver("dead", {
  turn: patient(
    () => lab,
    ({ turn }) => (turn > 20 ? undefined : { asks: [turn === 2 ? { name: "hang", input: {} } : look(turn)] }),
  ),
});
/** Goes on until it has been compacted three times. */
const slow = driver("slow", { windowTokens: 30_000, turn: ({ turn, call }) => (compactions(call) >= 3 || turn > 150 ? undefined : { asks: [look(turn, 3_000)] }) });
/** Its summaries take some turns, so that markers come to lie inside what the next one keeps. */
const opens = [gate(), gate(), gate()];
const compactions = (call: CanonicalCall): number => Number(/summary (\d) of/.exec(textOf(call.messages[0]))?.[1] ?? 0);

const common = { instructions: system, tools: [lookTool], limits: { maxTurns: 500, parallelTools: 16 } };
const chat = (name: string, model: string, compaction: CompactionPolicy) => agent({ ...common, name, model, interactive: true, compaction });
const wait = tool({ name: "wait", description: "Waits.", input: z.object({}), effect: "read", execute: async () => await held.opened });
const hang = tool({ name: "hang", description: "Hangs.", input: z.object({}), effect: "once", timeoutMs: 300, execute: async () => await new Promise(() => {}) });

const agents = {
  keep6: chat("keep6", parallel.name, { keep_last_n: 6 }),
  keep1: chat("keep1", parallel.name, { keep_last_n: 1 }),
  keep0: agent({ ...common, name: "keep0", model: byBytes.name, compaction: { after_bytes: 12_000, keep_last_n: 0 } }),
  keep4: agent({ ...common, name: "keep4", model: byBytes.name, compaction: { after_bytes: 16_000, keep_last_n: 4 } }),
  single: chat("single", single.name, {}),
  selfish: agent({ ...common, name: "selfish", model: selfish.name, tools: [lookTool, contextTool()] }),
  stuck: agent({ ...common, name: "stuck", model: stuck.name, tools: [lookTool, wait], compaction: { keep_last_n: 1 } }),
  dead: agent({ ...common, name: "dead", model: dead.name, tools: [lookTool, hang], compaction: { after_bytes: 14_000 } }),
  slow: agent({
    ...common,
    name: "slow",
    model: slow.name,
    compaction: { enabled: true, autocompact_at_pct: 50, keep_last_n: 9, summarizer: "slowly" },
    settings: { maxOutputTokens: 500 },
  }),
};

let summariesMade = 0;
let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, {
    agents: Object.values(agents),
    models: [parallel, single, byBytes, selfish, stuck, dead, slow],
    summarizers: {
      slowly: async () => {
        const n = summariesMade++;
        await opens[n]?.opened;
        return { summary: `summary ${n + 1} of what was read` };
      },
    },
  });
});
afterAll(async () => {
  held.open();
  for (const each of opens) each.open();
  await lab[Symbol.asyncDispose]();
});

/** Calls and results of a request: each in one place, none alone. */
function paired({ messages }: CanonicalCall): void {
  const asked = messages.flatMap(({ content }) => content.flatMap((part) => (part.type === "tool_call" ? [part.call_id] : [])));
  const answered = messages.flatMap(({ content }) => content.flatMap((part) => (part.type === "tool_result" ? [part.call_id] : [])));
  expect(answered.toSorted()).toEqual(asked.toSorted());
}

describe.concurrent("pairs, boundaries, order", () => {
  it.each([["keep6"], ["keep1"]] as const)("C01 ten parallel calls and their results go or stay together: %s", async (name) => {
    const run = await ran(lab, agents[name], TASK);
    expect(await run.handle.compact()).toMatchObject({ applied: "live" });
    await run.handle.send("And now?");
    await until("the answer", async () => parallel.requests(run.id).length > 7 && (await run.handle.status()).wait_reason === "input");
    const { requests } = await sound(lab, run.id, parallel, { system, task: TASK });
    const last = requests.at(-1) as CanonicalCall;
    paired(last);
    for (const message of last.messages) if (message.role === "assistant") expect([0, 1, 10]).toContain(message.content.filter(({ type }) => type === "tool_call").length);
    expect(last.messages[1]?.role).toBe("assistant");
  });

  it("C02 a compaction right after a result leaves no result in the head", async () => {
    const run = await ran(lab, agents.keep0, TASK);
    expect(run.status.state).toBe("completed");
    expect(payloads(run.events, "context.compacted").length).toBeGreaterThan(0);
    const { requests } = await sound(lab, run.id, byBytes, { system, task: TASK });
    for (const call of requests) {
      paired(call);
      expect(call.messages[0]?.content.every(({ type }) => type === "text")).toBe(true);
    }
  });

  it("C04 markers inside what a later one keeps say nothing more", async () => {
    const handle = await lab.capstan.enqueue(agents.slow, TASK);
    for (const [n, each] of opens.entries()) {
      const requested = await until(`request ${n + 1}`, async () => {
        const found = (await lab.events(handle.id)).filter(({ type }) => type === "compaction.requested");
        return found[n];
      });
      await until("some turns more", async () => (await handle.status()).turn >= requested.turn + 3);
      each.open();
    }
    await lab.settled(handle.id, 40_000);
    const { events } = await sound(lab, handle.id, slow, { system, task: TASK });
    const markers = events.filter(({ type }) => type === "context.compacted");
    expect(markers.length).toBeGreaterThanOrEqual(3);
    const inside = markers.some(({ payload }, i) => i > 0 && (payload as { cut: { first_kept_seq: number } }).cut.first_kept_seq < (markers[i - 1]?.seq ?? 0));
    expect(inside).toBe(true);
  });

  it("C06 a run that was ended with an open call is not compacted, and a tail with one keeps its caller", async () => {
    const handle = await lab.capstan.enqueue(agents.stuck, TASK);
    await until("the call", async () => (await handle.status()).turn === 6 && typesOf(await lab.events(handle.id)).at(-1) === "model.responded");
    await handle.cancel();
    expect(await handle.compact()).toMatchObject({ applied: "noop", reason: "nothing_to_cut" });
    expect(typesOf(await lab.events(handle.id))).not.toContain("compaction.requested");
    await lab.intact(handle.id);
    const view = [user(TASK), calls("a"), results(["a"]), calls("b"), results(["b"]), calls("c"), results(["c"]), calls("open")];
    for (const keep_last_n of [0, 1, 2, 3]) expect(cutOf(view, { keep_last_n })).toBeLessThanOrEqual(7);
  });

  it("C07 the agent's own call to compact and its siblings are answered before anything changes", async () => {
    const run = await ran(lab, agents.selfish, TASK);
    expect(run.status.state).toBe("completed");
    const [marker] = payloads(run.events, "context.compacted");
    expect(marker.trigger).toBe("self");
    const ends = run.events.filter(({ type, turn }) => type === "tool.completed" && turn === 6);
    expect(ends).toHaveLength(3);
    const requested = run.events.find(({ type }) => type === "compaction.requested");
    for (const { seq } of ends) expect(seq).toBeLessThan(requested?.seq ?? 0);
    const { requests } = await sound(lab, run.id, selfish, { system, task: TASK });
    for (const call of requests) paired(call);
  });

  it("C09 after a compaction of an autonomous run the list ends with what the model is to answer", async () => {
    const run = await ran(lab, agents.keep4, TASK);
    expect(run.status.state).toBe("completed");
    const { requests, events } = await sound(lab, run.id, byBytes, { system, task: TASK });
    expect(payloads(events, "context.compacted").length).toBeGreaterThan(0);
    const compacted = requests.filter(({ messages }) => textOf(messages[0]).includes("<capstan-summary"));
    expect(compacted.length).toBeGreaterThan(0);
    for (const { messages } of compacted) expect(messages.slice(1).some(({ role }) => role === "user")).toBe(false);
    for (const { messages } of compacted) expect(messages.at(-1)?.role).toBe("tool");
    for (const { cut } of payloads(events, "context.compacted")) expect(cut.kept_units).toBeGreaterThanOrEqual(1);
  });

  // Approvals come with a later issue: they hold a call open just so, and its unit stays behind the cut then as now.
  it("C11 an open call blocks the cut at its position, and a run with one is busy", async () => {
    const handle = await lab.capstan.enqueue(agents.stuck, TASK);
    await until("the call", async () => (await handle.status()).turn === 6 && typesOf(await lab.events(handle.id)).at(-1) === "model.responded");
    await expect(handle.compact()).rejects.toThrow(RunBusyError);
    await handle.compact({ when: "boundary" });
    held.open();
    expect(await handle.result({ timeoutMs: 20_000 })).toBe("All is done.");
    const { events, requests } = await sound(lab, handle.id, stuck, { system, task: TASK });
    const end = events.find(({ type, payload }) => type === "tool.completed" && (payload as { name: string }).name === "wait");
    const requested = events.find(({ type }) => type === "compaction.requested");
    expect(requested?.seq).toBeGreaterThan(end?.seq ?? 0);
    expect(events.filter(({ type, payload }) => type === "tool.completed" && (payload as { name: string }).name === "wait")).toHaveLength(1);
    for (const call of requests) paired(call);
    const view = [user(TASK), calls("t"), user("while it waits"), calls("a"), results(["a"]), user("more"), calls("b"), results(["b"])];
    // Behind a dead call there may be cuts (C12); behind the last response's open one there is none.
    expect(cutOf([...view, calls("open", "done"), results(["done"])], { keep_last_n: 0 })).toBeLessThanOrEqual(view.length);
  });

  it("C12 a call whose end nobody knows is closed, and does not block compaction for ever", async () => {
    const run = await ran(lab, agents.dead, TASK);
    expect(run.status.state).toBe("completed");
    expect(payloads(run.events, "tool.interrupted")).toMatchObject([{ name: "hang", reason: "timed_out" }]);
    const markers = payloads(run.events, "context.compacted");
    expect(markers.length).toBeGreaterThan(0);
    // Once it is summarized the ledger says that its outcome is unknown.
    expect(JSON.stringify(markers.at(-1).head.ledger)).toContain('"unknown":1');
    await sound(lab, run.id, dead, { system, task: TASK });
  });

  it("C14 what is due between a call and its result is done behind the result", async () => {
    const run = await ran(lab, agents.keep0, TASK);
    const requested = run.events.filter(({ type }) => type === "compaction.requested");
    expect(requested.length).toBeGreaterThan(0);
    const { events } = await sound(lab, run.id, byBytes, { system, task: TASK });
    for (const { seq } of requested) expect(["tool.completed", "compaction.failed", "context.compacted"]).toContain(events.findLast((event) => event.seq < seq)?.type);
  });
});

/** Where a view without window would be cut by hand. */
function cutOf(view: readonly Message[], policy: CompactionPolicy): number {
  const plan = planCut({
    view,
    places: view.map((_, i) => ({ first: i + 1, last: i + 1 })),
    hasHead: false,
    nextSeq: view.length + 1,
    policy: resolvePolicy(policy),
    windowTokens: undefined,
    interactive: false,
    trigger: "manual",
  });
  return plan.kind === "cut" ? plan.cutIndex : 0;
}
