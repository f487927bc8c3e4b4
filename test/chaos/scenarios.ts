/** The agents that are killed at, and what their model says. Every failpoint must be reachable by at least one of them. */
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";
import { agent, type Agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import type { NoteEffect } from "./effects.ts";
import { CHAOS_MODEL, type ScriptedAnswer } from "./model.ts";

export interface Scenario {
  readonly agent: Agent;
  /** Sent one by one, each when the run waits for input. */
  readonly inputs: readonly string[];
}

export const scripts: Readonly<Record<string, readonly ScriptedAnswer[]>> = {
  // Cut-off answers are corrected by the engine: three turns without a tool.
  answers: [{ text: "first third", cut: true }, { text: "second third", cut: true }, { text: "last third" }],
  conversation: [{ text: "hello" }, { text: "and again" }, { text: "goodbye" }],
  parallel: [
    { text: "look", calls: [{ name: "look" }, { name: "look" }, { name: "put" }, { name: "look" }] },
    { text: "put", calls: [{ name: "put" }, { name: "put" }] },
    { text: "done" },
  ],
  once: [{ text: "one", calls: [{ name: "pay" }] }, { text: "two", calls: [{ name: "pay" }] }, { text: "done" }],
  // More calls than run at once: the later ones with side effects are announced by events of their own.
  mixed: [
    { text: "all", calls: [{ name: "look" }, { name: "pay" }, { name: "put" }, { name: "pay" }] },
    { text: "unknown tool and a failing one", calls: [{ name: "nothing" }, { name: "fail" }] },
    { text: "done" },
  ],
};

export function scenarios(note: NoteEffect): Record<keyof typeof scripts, Scenario> {
  const noted = (name: string, effect: "read" | "idempotent" | "once", ms: number) =>
    tool({
      name,
      description: name,
      input: z.object({}),
      effect,
      async execute(_, { runId, callId }) {
        note(runId, effect, callId);
        await sleep(ms);
        return { did: name, call: callId };
      },
    });
  const look = noted("look", "read", 10);
  const put = noted("put", "idempotent", 30);
  const pay = noted("pay", "once", 25);
  const fail = tool({
    name: "fail",
    description: "fail",
    input: z.object({}),
    effect: "read",
    execute(_, { runId, callId }) {
      note(runId, "read", callId);
      throw new Error("this tool fails");
    },
  });
  const chaosAgent = (name: string, tools: NonNullable<Parameters<typeof agent>[0]["tools"]>, more: Partial<Parameters<typeof agent>[0]> = {}): Agent =>
    agent<z.ZodType, z.ZodType>({ name, model: CHAOS_MODEL, instructions: name, tools, warnTranscriptBytes: 150, onWarn() {}, ...more });
  return {
    answers: { agent: chaosAgent("answers", []), inputs: [] },
    conversation: { agent: chaosAgent("conversation", [], { interactive: true }), inputs: ["second", "third"] },
    parallel: { agent: chaosAgent("parallel", [look, put]), inputs: [] },
    once: { agent: chaosAgent("once", [pay]), inputs: [] },
    mixed: { agent: chaosAgent("mixed", [look, pay, put, fail], { limits: { parallelTools: 2 } }), inputs: [] },
  };
}
