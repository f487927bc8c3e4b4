/** One agent as the code before a deploy has it and as the code after: another prompt, one more tool. */
import { z } from "zod";
import { agent, type Agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import type { Release } from "./deploy-worker.ts";
import type { NoteEffect } from "./effects.ts";
import { CHAOS_MODEL, type ScriptedAnswer } from "./model.ts";

const TURN_MS = 200;

/** By prompt: which one a run sees is what its answers show. */
export const deployScripts: Readonly<Record<string, readonly ScriptedAnswer[]>> = {
  "old prompt": [
    { text: "1", takesMs: TURN_MS, calls: [{ name: "note" }] },
    { text: "2", takesMs: TURN_MS, calls: [{ name: "note" }] },
    { text: "3", takesMs: TURN_MS, calls: [{ name: "note" }] },
    { text: "done by the old prompt", takesMs: TURN_MS },
  ],
  "new prompt": [
    { text: "1", takesMs: TURN_MS, calls: [{ name: "note" }, { name: "extra" }] },
    { text: "done by the new prompt", takesMs: TURN_MS },
  ],
};

export function deployedAgent(release: Release, note: NoteEffect): Agent {
  const noting = (name: string, effect: "idempotent" | "once") =>
    tool({
      name,
      description: name,
      input: z.object({}),
      effect,
      execute(_, { runId, callId }) {
        note(runId, effect, callId);
        return callId;
      },
    });
  const tools = release === "old" ? [noting("note", "idempotent")] : [noting("note", "idempotent"), noting("extra", "once")];
  return agent({ name: "deployed", model: CHAOS_MODEL, instructions: `${release} prompt`, tools }) as Agent;
}
