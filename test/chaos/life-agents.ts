/** Agents that wait, start others and are stopped, and what their model says. Their model is a pure function of the conversation, as everywhere here. */
import { setTimeout as pause } from "node:timers/promises";
import { z } from "zod";
import { agent, type Agent } from "../../src/agents/agent.ts";
import { sleep, waitFor } from "../../src/agents/deferred.ts";
import { tool } from "../../src/agents/tool.ts";
import type { NoteEffect } from "./effects.ts";
import { CHAOS_MODEL, type ScriptedAnswer } from "./model.ts";

export const CHILDREN = 32;
const DAY_MS = 86_400_000;

const spawn = (name: string, count: number): NonNullable<ScriptedAnswer["calls"]> => [
  { name: "agent", input: { op: "parallel_spawn", children: Array.from({ length: count }, (_, n) => ({ agent: name, input: `task ${n}` })) } },
];

export const lifeScripts: Readonly<Record<string, readonly ScriptedAnswer[]>> = {
  leaf: [{ text: "leaf" }],
  "slow-leaf": [{ text: "leaf", takesMs: 300 }],
  hanging: [{ text: "never", hangs: true }],
  "branch-of-12": [{ text: "spawn", calls: spawn("hanging", 12) }, { text: "never" }],
  "tree-of-40": [{ text: "spawn", calls: spawn("branch-of-12", 3) }, { text: "never" }],
  "parent-of-32": [{ text: "spawn", calls: spawn("leaf", CHILDREN) }, { text: "joined" }],
  "line-of-3": [{ text: "spawn", calls: spawn("hanging", 3) }, { text: "joined" }],
  "branch-of-3": [{ text: "spawn", calls: spawn("leaf", 3) }, { text: "joined" }],
  "small-tree": [{ text: "spawn", calls: [...spawn("branch-of-3", 3), { name: "signalled" }] }, { text: "joined" }],
  asks: [{ text: "may I", calls: [{ name: "pay" }] }, { text: "done" }],
  expires: [{ text: "may I", calls: [{ name: "pay_soon" }] }, { text: "done" }],
  "expires-late": [{ text: "may I", calls: [{ name: "pay_late" }] }, { text: "done" }],
  sleeps: [{ text: "sleep", calls: [{ name: "nap" }] }, { text: "awake" }],
  steps: [{ text: "one", calls: [{ name: "pay_now" }] }, { text: "two", calls: [{ name: "pay_now" }] }, { text: "three" }],
  // The last turn of an interactive run, and what is said after it.
  talk: [{ text: "look", calls: [{ name: "look" }] }, { text: "first answer" }, { text: "second answer" }, { text: "third answer" }, { text: "fourth answer" }],
  steered: [{ text: "look", calls: [{ name: "look" }] }, { text: "first answer" }, { text: "second answer" }, { text: "third answer" }, { text: "fourth answer" }],
  // Two calls with side effects and an approval beside them: what a stop finds open.
  stoppable: [{ text: "work", calls: [{ name: "pay_slowly" }, { name: "look" }, { name: "pay" }] }, { text: "after the stop" }, { text: "and after that" }],
  "hangs-then-talks": [{ text: "never", hangs: true }],
  listens: Array.from({ length: 40 }, (_, n) => ({ text: `answer ${n}` })),
};

export function lifeAgents(note: NoteEffect): Agent[] {
  const noted = (name: string, effect: "read" | "once", ms: number, approval?: Parameters<typeof tool>[0]["approval"]) =>
    tool({
      name,
      description: name,
      input: z.object({}),
      effect,
      ...(approval === undefined ? {} : { approval }),
      async execute(_, { runId, callId, signal }) {
        note(runId, effect, callId);
        await pause(ms, undefined, { signal }).catch(() => {});
        return { did: name };
      },
    });
  const pay = noted("pay", "once", 5, true);
  const look = noted("look", "read", 5);
  const deferring = (name: string, wait: () => unknown) =>
    tool({
      name,
      description: name,
      input: z.object({}),
      effect: "idempotent",
      execute(_, { runId, callId }) {
        note(runId, "idempotent", callId);
        return wait();
      },
    });
  const of = (name: string, more: Partial<Parameters<typeof agent>[0]> = {}): Agent =>
    agent<z.ZodType, z.ZodType>({ name, model: CHAOS_MODEL, instructions: name, onWarn() {}, ...more });
  return [
    of("leaf"),
    of("slow-leaf"),
    of("hanging"),
    of("branch-of-12", { spawn: { agents: ["hanging"], concurrency: 12 } }),
    of("tree-of-40", { spawn: { agents: ["branch-of-12"] } }),
    of("parent-of-32", { spawn: { agents: ["leaf"], concurrency: 8 } }),
    of("line-of-3", { spawn: { agents: ["hanging"], concurrency: 1 } }),
    of("branch-of-3", { spawn: { agents: ["leaf"] } }),
    of("small-tree", { spawn: { agents: ["branch-of-3"] }, tools: [deferring("signalled", () => waitFor("go"))] }),
    of("asks", { tools: [pay] }),
    of("expires", { tools: [noted("pay_soon", "once", 5, { expiresMs: 5_000 })] }),
    of("expires-late", { tools: [noted("pay_late", "once", 5, { expiresMs: 30 * DAY_MS })] }),
    of("sleeps", { tools: [deferring("nap", () => sleep(30 * DAY_MS))] }),
    of("steps", { tools: [noted("pay_now", "once", 5)] }),
    of("talk", { interactive: true, tools: [look] }),
    of("steered", { tools: [look] }),
    of("stoppable", { interactive: true, tools: [noted("pay_slowly", "once", 400), look, pay] }),
    of("hangs-then-talks", { interactive: true }),
    of("listens", { interactive: true }),
  ];
}
