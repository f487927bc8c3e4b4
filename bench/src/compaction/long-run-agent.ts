/** The agent of the long run: it reads page after page, uses what it read, posts now and then, and pins one thing. */
import { z } from "zod";
import { agent } from "../../../src/agents/agent.ts";
import { contextTool } from "../../../src/agents/engine-tools.ts";
import { tool } from "../../../src/agents/tool.ts";
import type { Model, ModelOutcome } from "../../../src/engine/model-port.ts";
import { prose, seeded } from "../workload.ts";

export const LONG_MODEL = "bench:long";
export const WINDOW_TOKENS = 32_000;
export const PINNED = "The ledger's key is LK-440917.";
const RESULT_BYTES = 2_000;
const POST_EVERY = 10;
const pages = Array.from({ length: 64 }, (_, i) => prose(RESULT_BYTES, 7_000 + i));
const remarks = Array.from({ length: 64 }, (_, i) => prose(200, 8_000 + i));

/** What is found on a page, and what the call after it is made with. */
const idOn = (page: number): string => `E${Math.floor(seeded(page)() * 1e7)}`;

export const reader = agent({
  name: "reader",
  model: LONG_MODEL,
  instructions: "Read the ledger page by page; post what is odd.",
  tools: [
    tool({
      name: "lookup",
      description: "Looks a page up.",
      input: z.object({ page: z.int(), after: z.string() }),
      effect: "read",
      execute: ({ page }) => `entry ${idOn(page)}: ${pages[page % pages.length]}`,
    }),
    tool({ name: "post", description: "Posts an entry.", input: z.object({ entry: z.string() }), effect: "idempotent", execute: () => "posted" }),
    contextTool(),
  ],
  limits: { maxTurns: 1_000_000 },
  // Named, so that the agent may use it: the run's own model is asked for turns only.
  compaction: { enabled: true, model: "offline:extractive" },
});

/** Asked in the middle of a run, the answer depends on the turn alone. `before` is awaited first, `after` is called as the answer is given. */
export function longModel(turns: number, before: (turn: number) => Promise<void>, after: (turn: number) => void): Model {
  return {
    name: LONG_MODEL,
    structuredOutput: false,
    window: { tokens: WINDOW_TOKENS, source: "setting" },
    async call(_call, { turn }) {
      await before(turn);
      after(turn);
      return turn > turns ? text("All pages are read.") : answer(turn);
    },
  };
}

function answer(turn: number): ModelOutcome {
  const call = (name: string, input: { [key: string]: string | number }) => ({ type: "tool_call", call_id: `call_${turn}`, name, input }) as const;
  const made =
    turn === 3
      ? call("context", { op: "pin", text: PINNED })
      : turn % POST_EVERY === 0
        ? call("post", { entry: idOn(turn - 1) })
        : call("lookup", { page: turn, after: idOn(turn - 1) });
  return { ...text(remarks[turn % remarks.length] as string), content: [{ type: "text", text: remarks[turn % remarks.length] as string }, made], finish: { reason: "tool_calls" } };
}

function text(said: string): Extract<ModelOutcome, { kind: "responded" }> {
  return { kind: "responded", content: [{ type: "text", text: said }], finish: { reason: "stop" }, usage: { input: 1, output: 1, scale: "estimate" } };
}
