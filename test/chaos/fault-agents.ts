/** Agents for single faults: tools that block the event loop, that wait to be aborted, answers that take long. */
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";
import { agent, type Agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import type { NoteEffect } from "./effects.ts";
import { CHAOS_MODEL, type ScriptedAnswer } from "./model.ts";

const ROUNDS = 12;

const words = (count: number): string => Array.from({ length: count }, (_, n) => `word${n}`).join(" ");

export const faultScripts: Readonly<Record<string, readonly ScriptedAnswer[]>> = {
  blocks: [{ text: "block", calls: [{ name: "block" }] }, { text: "unreachable" }],
  "slow-model": [{ text: "slow", takesMs: 60_000 }],
  "slow-answer": [{ text: "slow", takesMs: 4_000, calls: [{ name: "note" }] }, { text: "done" }],
  "slow-once": [{ text: "slow", calls: [{ name: "slow_once" }] }, { text: "done" }],
  "slow-read": [{ text: "slow", calls: [{ name: "slow_read" }] }, { text: "done" }],
  long: [...Array.from({ length: ROUNDS }, (_, n) => ({ text: `round ${n}`, takesMs: 60, calls: [{ name: "note" }, { name: "note_once" }] })), { text: "done" }],
  // Some 300 bytes of transcript a turn: 1,000 are passed in the fourth.
  growing: [...Array.from({ length: 8 }, (_, n) => ({ text: `${n} `.repeat(60), takesMs: 40, calls: [{ name: "note" }] })), { text: "done" }],
  streams: [
    { text: words(60), wordMs: 40, calls: [{ name: "note" }] },
    { text: words(20), wordMs: 40 },
  ],
  "one-tool": [{ text: "one", calls: [{ name: "note" }] }, { text: "done" }],
  paced: [
    { text: "one", takesMs: 150, calls: [{ name: "note" }] },
    { text: "done", takesMs: 150 },
  ],
  big: [{ text: "big", calls: [{ name: "big" }] }, { text: "big", calls: [{ name: "big" }] }, { text: "done" }],
};

export function faultAgents(note: NoteEffect): Agent[] {
  const waiting = (name: string, effect: "read" | "once") =>
    tool({
      name,
      description: name,
      input: z.object({}),
      effect,
      async execute(_, { runId, callId, signal }) {
        note(runId, effect, callId);
        await sleep(60_000, undefined, { signal }).catch(() => note(runId, effect, `${callId}:aborted`));
        return "woke up";
      },
    });
  const noted = (name: string, effect: "idempotent" | "once") =>
    tool({
      name,
      description: name,
      input: z.object({}),
      effect,
      async execute(_, { runId, callId }) {
        note(runId, effect, callId);
        await sleep(10);
        return callId;
      },
    });
  const block = tool({
    name: "block",
    description: "blocks the event loop for good",
    input: z.object({}),
    effect: "idempotent",
    execute(_, { runId, callId }) {
      note(runId, "idempotent", callId);
      for (;;);
    },
  });
  const big = tool({
    name: "big",
    description: "a result that goes to a blob",
    input: z.object({}),
    effect: "idempotent",
    async execute(_, { runId, callId }) {
      note(runId, "idempotent", callId);
      await sleep(10);
      return `${callId} `.repeat(200_000);
    },
  });
  const of = (name: string, ...tools: NonNullable<Parameters<typeof agent>[0]["tools"]>): Agent => agent({ name, model: CHAOS_MODEL, instructions: name, tools }) as Agent;
  return [
    of("blocks", block),
    of("slow-model"),
    of("slow-answer", noted("note", "idempotent")),
    of("slow-once", waiting("slow_once", "once")),
    of("slow-read", waiting("slow_read", "read")),
    of("long", noted("note", "idempotent"), noted("note_once", "once")),
    of("big", big),
    agent({ name: "growing", model: CHAOS_MODEL, instructions: "growing", tools: [noted("note", "idempotent")], warnTranscriptBytes: 1_000 }) as Agent,
    of("streams", noted("note", "idempotent")),
    of("one-tool", noted("note", "idempotent")),
    of("paced", noted("note", "idempotent")),
  ];
}
