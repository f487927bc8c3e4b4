/** Forks, retries and time travel on a real worker: what a derived run sends, and what its journal gives again. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import { ForkPointError, RunNotFailedError } from "../../src/client/errors.ts";
import { fold } from "../../src/domain/fold.ts";
import type { JsonValue } from "../../src/domain/json.ts";
import { canonicalJson } from "../../src/domain/json.ts";
import type { Model } from "../../src/engine/model-port.ts";
import { remember } from "../../src/engine/run-memory.ts";
import { JournalReader } from "../../src/store/journal-reader.ts";
import { defaultNames, namedSql } from "../../src/store/names.ts";
import { createTestDatabase } from "../support/database.ts";
import { openLab, payloads, typesOf, type Lab } from "./harness.ts";

const database = await createTestDatabase();
const TURNS = 12;

const lookup = tool({
  name: "lookup",
  description: "Looks a page up.",
  input: z.object({ page: z.int() }),
  effect: "read",
  execute: ({ page }) => `page ${page}: ${"the ledger of this month holds entries, and one of them is odd; ".repeat(30)}`,
});

let outage = false;
const called: { runId: string; turn: number; messages: number; system: string }[] = [];

/** Reads page after page; a message of the user's behind the last page is answered at once. */
function pager(name: string, windowTokens: number | undefined): Model {
  return {
    name,
    structuredOutput: false,
    window: windowTokens === undefined ? { tokens: undefined, source: "unknown" } : { tokens: windowTokens, source: "setting" },
    async call(call, { turn, runId }) {
      const usage = { input: 1, output: 1, scale: "estimate" as const };
      const say = (text: string) => ({ kind: "responded" as const, content: [{ type: "text" as const, text }], finish: { reason: "stop" as const }, usage });
      if (call.tools.length === 0) return say("DONE: pages were read. OPEN: the rest.");
      called.push({ runId, turn, messages: call.messages.length, system: call.system });
      if (outage) return { kind: "failed", code: "PROVIDER_AUTH", message: "no key", retryable: false, countsAsAttempt: true };
      const last = call.messages.at(-1);
      const asked = last?.role === "user" && last.content.some((part) => part.type === "text" && part.text.startsWith("Question:"));
      if (asked) return say(`Answer at turn ${turn}.`);
      if (turn > TURNS) return say("All pages are read.");
      return {
        kind: "responded",
        content: [{ type: "tool_call", call_id: `call_${turn}`, name: "lookup", input: { page: turn } }],
        finish: { reason: "tool_calls" },
        usage,
      };
    },
  };
}

const common = { instructions: "Read all pages.", tools: [lookup] };
const plain = agent({ name: "plain", model: "scripted:unknown", ...common });
const compacting = agent({ name: "compacting", model: "scripted:small", compaction: { enabled: true, keep_last_n: 2 }, ...common });
const chatty = agent({ name: "chatty", model: "scripted:unknown", interactive: true, ...common });

let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, { agents: [plain, compacting, chatty], models: [pager("scripted:unknown", undefined), pager("scripted:small", 8_000)] });
});
afterAll(() => lab[Symbol.asyncDispose]());

/** The state as a fold of the whole line gives it, and as a resume reads it. */
async function bothStates(runId: string) {
  const reader = new JournalReader(lab.db, namedSql(defaultNames));
  const loaded = await reader.load(runId);
  if (loaded === undefined) throw new Error("no run");
  const all = [];
  for await (const { event } of reader.walk(runId)) all.push(event);
  expect(all.map(({ seq }) => seq)).toEqual(all.map((_, i) => i + 1));
  return { whole: fold(all), resumed: remember(loaded, 0).state, read: loaded.events.length, all: all.length, row: loaded.row };
}

async function sameStates(runId: string) {
  const states = await bothStates(runId);
  const { whole, resumed } = states;
  expect(canonicalJson(resumed.view as unknown as JsonValue)).toBe(canonicalJson(whole.view as unknown as JsonValue));
  expect({ ...resumed, compaction: undefined }).toEqual({ ...whole, compaction: undefined });
  return states;
}

describe("a fork", () => {
  it("at the last boundary without changes sends exactly the request that the original's next turn sent", async () => {
    const base = await lab.run(plain, "Read the pages.");
    expect(base.status.state).toBe("completed");
    const fork = await base.handle.fork();
    const status = await lab.settled(fork.id);
    expect(status.state).toBe("completed");
    const events = await lab.events(fork.id);
    expect(typesOf(events)).toEqual(["run.created", "model.requested", "model.responded", "run.completed"]);
    expect(events.map(({ seq }) => seq)).toEqual([1, 2, 3, 4]);
    const [first] = payloads(events, "model.requested");
    const last = payloads(base.events, "model.requested").at(-1);
    expect([first.hash, first.size_bytes, first.to_seq]).toEqual([last.hash, last.size_bytes, last.to_seq]);
    expect(events[1]?.turn).toBe(TURNS + 1);
    // Its own calls only.
    expect(status.usage).toMatchObject({ input_tokens: 1, output_tokens: 1 });
    const report = await lab.intact(fork.id);
    expect([report.events, report.requests]).toEqual([4, 1]);
    await sameStates(fork.id);
  });

  it("from any event goes on from there, or says which events are near that it could go on from", async () => {
    const base = await lab.run(plain, "Read the pages.");
    const responded = base.events.find(({ type, turn }) => type === "model.responded" && turn === 5);
    const at = responded?.seq as number;
    const refused = await base.handle.fork({ at }).then(
      () => undefined,
      (error: unknown) => error,
    );
    expect(refused).toBeInstanceOf(ForkPointError);
    expect((refused as ForkPointError).details).toMatchObject({ at, before: at - 2, after: at + 1 });
    const fork = await base.handle.fork({ at: at + 1 });
    expect((await lab.settled(fork.id)).turn).toBe(TURNS + 1);
    const events = await lab.events(fork.id);
    expect(payloads(events, "model.requested")[0].hash).toBe(payloads(base.events, "model.requested")[5].hash);
    expect(payloads(events, "model.requested").at(-1).hash).toBe(payloads(base.events, "model.requested").at(-1).hash);
    await lab.intact(fork.id);
    await sameStates(fork.id);
  });

  it("takes another definition and a message of its own, and a fork of it still has both views before it", async () => {
    const base = await lab.run(plain, "Read the pages.");
    const fork = await base.handle.fork({ overlay: { instructions: "Answer briefly." }, input: "Question: what was odd?", priority: 3 });
    expect((await lab.settled(fork.id)).output).toBe(`Answer at turn ${TURNS + 2}.`);
    const events = await lab.events(fork.id);
    expect(typesOf(events)).toEqual(["run.created", "input.applied", "model.requested", "model.responded", "run.completed"]);
    expect(called.at(-1)).toMatchObject({ runId: fork.id, system: "Answer briefly." });
    await lab.intact(fork.id);
    const again = await fork.fork({ input: "Question: and now?" });
    expect((await lab.settled(again.id)).output).toBe(`Answer at turn ${TURNS + 3}.`);
    await lab.intact(again.id);
    const { row, whole } = await sameStates(again.id);
    expect(row.seqOffset).toBe(base.events.length + events.length);
    expect(whole.view.filter(({ role }) => role === "user")).toHaveLength(3);
    expect((await lab.db.query("select priority from capstan.runs where id = $1", [again.id])).rows).toEqual([{ priority: 3 }]);
  });

  it("of a compacted run reads no more than the marker's tail, and compacts again by itself", async () => {
    const base = await lab.run(compacting, "Read the pages.");
    const markers = payloads(base.events, "context.compacted");
    expect(markers.length).toBeGreaterThanOrEqual(1);
    const at = base.events.find(({ type, seq }) => type === "tool.completed" && seq > (base.events.findLast((e) => e.type === "context.compacted")?.seq ?? 0))?.seq as number;
    const fork = await base.handle.fork({ at });
    const created = await bothStates(fork.id);
    expect(created.read).toBeLessThan(created.all);
    expect((await lab.settled(fork.id)).state).toBe("completed");
    await lab.intact(fork.id);
    await sameStates(fork.id);
    const again = await fork.fork({ overlay: { compaction: { keep_last_n: 0 } } });
    await lab.settled(again.id);
    await lab.intact(again.id);
    const outcome = await (await fork.fork({ interactive: true })).status();
    const interactive = await lab.settled(outcome.run_id);
    expect(interactive.state).toBe("waiting");
    expect((await lab.capstan.run(interactive.run_id).compact()).applied).toBe("live");
    await lab.intact(interactive.run_id);
    const { read, all, whole } = await sameStates(interactive.run_id);
    expect(read).toBeLessThan(all / 3);
    expect(whole.epoch).toBeGreaterThan(markers.length);
    // The newest marker is the fork's own now, with a cut that reaches into its bases.
    const cut = payloads(await lab.events(interactive.run_id), "context.compacted").at(-1).cut;
    expect(cut.to_seq).toBeLessThan(whole.own?.position as number);
    // A fork of the fork begins with that marker.
    const third = await lab.capstan.run(interactive.run_id).fork({ input: "Question: what was read?" });
    await lab.settled(third.id);
    await lab.intact(third.id);
    await sameStates(third.id);
  });

  it("of a run that was compacted after its end begins with that marker", async () => {
    const base = await lab.run(plain, "Read the pages.");
    expect((await base.handle.compact()).applied).toBe("marker");
    expect(await base.handle.status()).toMatchObject({ state: "completed", output: "All pages are read." });
    const fork = await base.handle.fork({ input: "Question: what was odd?" });
    expect((await lab.settled(fork.id)).output).toBe(`Answer at turn ${TURNS + 2}.`);
    expect(called.at(-1)?.messages).toBeLessThan(12);
    for (const id of [base.id, fork.id]) await lab.intact(id);
    const { read, all, whole } = await sameStates(fork.id);
    expect(whole.epoch).toBe(1);
    expect(read).toBeLessThan(all / 2);
  });

  it("of a run that waits for input waits, too", async () => {
    const base = await lab.run(chatty, "Read the pages.");
    expect(base.status.wait_reason).toBe("input");
    const fork = await base.handle.fork();
    expect(await lab.settled(fork.id)).toMatchObject({ state: "waiting", wait_reason: "input" });
    expect(typesOf(await lab.events(fork.id))).toEqual(["run.created", "run.parked"]);
    await sameStates(fork.id);
    const second = await fork.fork({ at: 1 });
    expect(await lab.settled(second.id)).toMatchObject({ state: "waiting", wait_reason: "input" });
    await lab.intact(second.id);
  });
});

describe("a retry", () => {
  it("goes on from the last good place under the same numbers, once while it is alive", async () => {
    outage = true;
    const base = await lab.run(plain, "Read the pages.");
    outage = false;
    expect(base.status).toMatchObject({ state: "failed", error: { code: "PROVIDER_AUTH" } });
    const retry = await base.handle.retry();
    expect((await lab.settled(retry.id)).state).toBe("completed");
    const [created] = await lab.events(retry.id);
    expect(created?.payload).toMatchObject({ origin: "retry", base: { run_id: base.id, seq: 1, position: 1 } });
    await lab.intact(retry.id);
    await expect(retry.retry()).rejects.toBeInstanceOf(RunNotFailedError);
    expect((await base.handle.retry()).id).not.toBe(retry.id);
  });
});

describe("a run at one of its events", () => {
  it("is shown as it was", async () => {
    const base = await lab.run(plain, "Read the pages.");
    const then = await base.handle.at(4);
    expect(then).toMatchObject({ seq: 4, state: "running", turn: 1, phase: "boundary", inherited: 0 });
    expect(then.messages).toHaveLength(3);
    const fork = await base.handle.fork({ at: 4 });
    await lab.settled(fork.id);
    const view = await fork.at(1);
    expect(view).toMatchObject({ seq: 1, state: "queued", turn: 1, inherited: 3 });
    expect(view.messages).toEqual(then.messages);
    await expect(fork.at(10_000)).rejects.toThrow("has the events 1 to");
  });
});
