/** The agents that are killed at, and what their model says. Every failpoint must be reachable by at least one of them. */
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";
import { agent, type Agent } from "../../src/agents/agent.ts";
import { sleep as later, waitFor } from "../../src/agents/deferred.ts";
import { tool } from "../../src/agents/tool.ts";
import type { NoteEffect } from "./effects.ts";
import { CHAOS_MODEL, type ScriptedAnswer } from "./model.ts";

export interface Scenario {
  readonly agent: Agent;
  /** Sent one by one, each when the run waits for input. */
  readonly inputs: readonly string[];
  /** Its calls are approved, and signalled `go`, when they wait for it. */
  readonly answered?: true;
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
  // A decision, a signal, children and a timer: what a run rests for without a worker.
  lives: [
    { text: "ask", calls: [{ name: "pay_asked" }, { name: "signalled" }, { name: "look" }] },
    { text: "start three", calls: [{ name: "agent", input: { op: "parallel_spawn", children: Array.from({ length: 3 }, (_, n) => ({ agent: "answers", input: `${n}` })) } }] },
    { text: "sleep", calls: [{ name: "nap" }] },
    { text: "done" },
  ],
};

export function scenarios(note: NoteEffect): Record<keyof typeof scripts, Scenario> {
  const noted = (name: string, effect: "read" | "idempotent" | "once", ms: number, more: { approval?: true; result?: () => unknown } = {}) =>
    tool({
      name,
      description: name,
      input: z.object({}),
      effect,
      ...(more.approval === undefined ? {} : { approval: more.approval }),
      async execute(_, { runId, callId }) {
        note(runId, effect, callId);
        await sleep(ms);
        return more.result === undefined ? { did: name, call: callId } : more.result();
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
    lives: {
      agent: chaosAgent(
        "lives",
        [
          look,
          noted("pay_asked", "once", 5, { approval: true }),
          noted("signalled", "idempotent", 5, { result: () => waitFor("go") }),
          noted("nap", "idempotent", 5, { result: () => later(50) }),
        ],
        { spawn: { agents: ["answers"] } },
      ),
      inputs: [],
      answered: true,
    },
  };
}
