/** Agents with budgets, and what their model says. */
import { z } from "zod";
import { agent, type Agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import type { NoteEffect } from "./effects.ts";
import { CHAOS_MODEL, type ScriptedAnswer } from "./model.ts";

const looking: ScriptedAnswer = { text: "look", calls: [{ name: "look" }] };
const spawning: ScriptedAnswer = {
  text: "spawn",
  calls: [
    {
      name: "agent",
      input: {
        op: "parallel_spawn",
        children: [
          { agent: "saver", input: "a" },
          { agent: "saver", input: "b" },
        ],
      },
    },
  ],
};

export const budgetScripts: Readonly<Record<string, readonly ScriptedAnswer[]>> = {
  saver: [looking, looking, looking, looking, { text: "what there is" }],
  family: [spawning, { text: "joined" }],
};

export function budgetAgents(note: NoteEffect): Agent[] {
  const look = tool({
    name: "look",
    description: "look",
    input: z.object({}),
    effect: "read",
    execute(_, { runId, callId }) {
      note(runId, "read", callId);
      return "seen";
    },
  });
  return [
    agent({ name: "saver", model: CHAOS_MODEL, instructions: "saver", tools: [look], budget: { soft: { turns: 2, tokens: 9 }, hard: { turns: 4 }, wrap_up: true } }),
    agent({ name: "family", model: CHAOS_MODEL, instructions: "family", spawn: { agents: ["saver"] }, budget: { soft: { tokens: 30 }, hard: { tokens: 100_000 } } }),
  ] as Agent[];
}
