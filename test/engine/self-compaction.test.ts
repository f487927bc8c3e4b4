/** An agent compacts itself: what it pinned stays, and the side effects that the head has no room for can be listed. */
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { contextTool } from "../../src/agents/engine-tools.ts";
import { tool } from "../../src/agents/tool.ts";
import type { CanonicalCall } from "../../src/domain/call.ts";
import { ledgerText } from "../../src/domain/compaction/ledger.ts";
import type { JsonObject } from "../../src/domain/json.ts";
import type { Model } from "../../src/engine/model-port.ts";
import { createTestDatabase } from "../support/database.ts";
import { openLab, payloads, until, type Lab } from "./harness.ts";

const database = await createTestDatabase();
const ROUNDS = 6;
const SENDS = 20;
const PIN = "the customer's number is 4711-😀";

type Page = { readonly lines: readonly string[]; readonly total: number };
type Ask = { readonly name: string; readonly input: JsonObject };
const context = (input: JsonObject): Ask => ({ name: "context", input });

/** What the agent does next, by the turn and by what it sees. */
function plan({ messages }: CanonicalCall, turn: number): Ask[] {
  if (turn === 1) return [context({ op: "pin", text: PIN }), { name: "stamp", input: {} }];
  if (turn <= ROUNDS)
    return Array.from({ length: SENDS }, (_, i) => ({
      name: "send",
      input: { to: `customer-${turn}-${i}`, text: "your order is on its way ".repeat(3), signed: "the people of the shop ".repeat(3) },
    }));
  if (turn === ROUNDS + 1) return [context({ op: "compact" }), { name: "look", input: {} }];
  const wasCompacted = JSON.stringify(messages[0]).includes("<capstan-summary");
  if (!wasCompacted) return [{ name: "look", input: {} }];
  const last = messages.at(-1)?.content.at(-1);
  const output = last?.type === "tool_result" && last.name === "context" ? (last.output as JsonObject) : undefined;
  if (output?.["lines"] === undefined) return [context({ op: "ledger" })];
  if (output["next_offset"] !== undefined) return [context({ op: "ledger", offset: output["next_offset"] })];
  return [];
}

const model: Model = {
  name: "scripted:sender",
  structuredOutput: false,
  window: { tokens: 40_000, source: "setting" },
  async call(call, { turn }) {
    const usage = { input: 1, output: 1, scale: "estimate" as const };
    const answer = (text: string) => ({ kind: "responded" as const, content: [{ type: "text" as const, text }], finish: { reason: "stop" as const }, usage });
    if (call.tools.length === 0) return answer("DONE: messages were sent. OPEN: nothing.");
    const asks = plan(call, turn);
    if (asks.length === 0) return answer("All is sent.");
    return { ...answer(""), content: asks.map((ask, i) => ({ type: "tool_call" as const, call_id: `call_${turn}_${i}`, ...ask })), finish: { reason: "tool_calls" } };
  },
};

const any = z.looseObject({});
const sender = agent({
  name: "sender",
  model: model.name,
  instructions: "Send.",
  limits: { maxTurns: 10_000, parallelTools: 64 },
  compaction: { keep_last_n: 2 },
  tools: [
    contextTool(),
    tool({ name: "send", description: "Sends.", input: any, effect: "idempotent", execute: () => "sent" }),
    tool({ name: "stamp", description: "Stamps.", input: any, effect: "once", execute: () => "stamped" }),
    tool({ name: "look", description: "Looks.", input: any, effect: "read", execute: () => sleep(15, "nothing new") }),
  ],
});

let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, { agents: [sender], models: [model] });
});
afterAll(() => lab[Symbol.asyncDispose]());

it("is compacted once at its own wish, keeps its pin, and lists the rest of its ledger page by page", async () => {
  const run = await lab.run(sender, "Send what is to be sent.");
  expect(run.status.state).toBe("completed");
  const markers = payloads(run.events, "context.compacted");
  expect(markers.map(({ trigger }: { trigger: string }) => trigger)).toEqual(["self"]);
  const { head, carry } = markers[0];
  expect(carry.pins.map(({ text }: { text: string }) => text)).toEqual([PIN]);
  expect(JSON.stringify(head.facts)).toContain(PIN);

  const pages = payloads(run.events, "tool.completed").flatMap(({ name, output }: { name: string; output: Partial<Page> }) =>
    name === "context" && output.lines !== undefined ? [output as Page] : [],
  );
  expect(pages.length).toBeGreaterThan(1);
  const listed: string[] = pages.flatMap((page) => page.lines);
  const shown: string[] = head.ledger.map(ledgerText);
  expect(new Set(pages.map((page) => page.total))).toEqual(new Set([listed.length]));
  expect(listed).toHaveLength(head.ledger_left_out);
  // Every call with a side effect that was summarized stands in one of the two, once; calls of the tail and reads in neither.
  const cut = markers[0].cut.first_kept_seq;
  const done = run.events.filter(({ type, seq, payload }) => type === "tool.completed" && seq < cut && ["send", "stamp"].includes((payload as { name: string }).name));
  expect(new Set([...listed, ...shown]).size).toBe(listed.length + shown.length);
  expect(listed.length + shown.length).toBe(done.length);
  expect(done.length).toBeGreaterThan(SENDS);
  expect(listed.at(-1)).toBe("stamp {}: 1 ok");
  await lab.intact(run.id);
});

it("answers the compact call and its siblings before the view changes", async () => {
  const run = await lab.run(sender, "Send once more.");
  const marker = await until("the marker", () => run.events.find(({ type }) => type === "context.compacted"));
  const asked = run.events.find(({ type, payload }) => type === "tool.completed" && (payload as { context?: { op: string } }).context?.op === "compact");
  const requested = run.events.find(({ type }) => type === "compaction.requested");
  expect(asked?.turn).toBe(ROUNDS + 1);
  const siblings = run.events.filter(({ type, turn }) => type === "tool.completed" && turn === ROUNDS + 1);
  expect(siblings).toHaveLength(2);
  for (const { seq } of siblings) expect(seq).toBeLessThan(requested?.seq ?? 0);
  expect(requested?.seq).toBeLessThan(marker.seq);
});
