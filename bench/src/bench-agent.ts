/** Capstan with the workload's agent: one tool, and a model in this process that answers by the transcript it is shown. */
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import type { CanonicalCall } from "../../src/domain/call.ts";
import type { Model, ModelCallContext, ModelCatalogue, ModelOutcome } from "../../src/engine/model-port.ts";
import type { Log } from "../../src/engine/ports.ts";
import { FINAL_TEXT, TOOL_NAME, turnTexts } from "./workload.ts";

export const BENCH_MODEL = "bench:instant";

export const lookupTool = tool({
  name: TOOL_NAME,
  description: "Looks something up.",
  input: z.object({ query: z.string() }),
  effect: "read",
  execute: (_input, { callId }) => turnTexts(Number(callId.slice("call_".length))).result,
});

export const auditor = agent({
  name: "auditor",
  model: BENCH_MODEL,
  instructions: "Audit the ledger, one lookup at a time.",
  tools: [lookupTool],
  limits: { maxTurns: 1_000_000 },
});

export function modelsOf(call: Model["call"]): ModelCatalogue {
  const model: Model = { name: BENCH_MODEL, structuredOutput: false, window: { tokens: undefined, source: "unknown" }, call };
  return { resolve: () => model, costUsdMicros: () => undefined };
}

export type BenchCall = (call: CanonicalCall, context: ModelCallContext) => Promise<ModelOutcome>;

/** Turns (from 0) that the transcript holds: one user message, then answer and result by turns. */
export function turnsIn(call: CanonicalCall): number {
  return (call.messages.length - 1) / 2;
}

export function answerTurn(turn: number): ModelOutcome {
  const { callId, text, query } = turnTexts(turn);
  return {
    kind: "responded",
    content: [
      { type: "text", text },
      { type: "tool_call", call_id: callId, name: TOOL_NAME, input: { query } },
    ],
    finish: { reason: "tool_calls" },
    usage: { input: 100 + 600 * turn, output: 95, scale: "provider" },
  };
}

export const finalAnswer: ModelOutcome = {
  kind: "responded",
  content: [{ type: "text", text: FINAL_TEXT }],
  finish: { reason: "stop" },
  usage: { input: 10, output: 5, scale: "provider" },
};

export const problemsOnly: Log = {
  debug() {},
  info() {},
  warn: (fields, message) => console.error("warn:", message, fields),
  error: (fields, message) => console.error("error:", message, fields),
};
