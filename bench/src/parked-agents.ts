/** Agents whose runs park, each for another reason, and the workload's agent beside them. */
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { sleep } from "../../src/agents/deferred.ts";
import { tool } from "../../src/agents/tool.ts";
import type { ModelOutcome } from "../../src/engine/model-port.ts";
import { createCapstan, type Capstan } from "../../src/main.ts";
import { answerTurn, auditor, BENCH_MODEL, finalAnswer, modelsOf, problemsOnly, type BenchCall } from "./bench-agent.ts";

const YEAR_MS = 365 * 86_400_000;
const common = { model: BENCH_MODEL, warnTranscriptBytes: false } as const;
const talks = agent({ name: "talks", ...common, instructions: "Talk.", interactive: true });
const asks = agent({
  name: "asks",
  ...common,
  instructions: "Ask first.",
  tools: [tool({ name: "pay", description: "Pays.", input: z.object({}), effect: "once", approval: true, execute: () => "paid" })],
});
const sleeps = agent({
  name: "sleeps",
  ...common,
  instructions: "Sleep.",
  tools: [tool({ name: "nap", description: "Waits.", input: z.object({}), effect: "idempotent", execute: () => sleep(YEAR_MS) })],
});
const spawns = agent({ name: "spawns", ...common, instructions: "Delegate.", spawn: { agents: ["asks"] } });

/** By the agent whose run is parked: what it waits for, and how many parked runs a copy of it is made of. Its child waits for an approval. */
export const parkedKinds = [
  { agent: "talks", reason: "input", runs: 1 },
  { agent: "sleeps", reason: "timer", runs: 1 },
  { agent: "spawns", reason: "children", runs: 2 },
] as const;

const calls = (name: string, input: object = {}): ModelOutcome => ({
  kind: "responded",
  content: [{ type: "tool_call", call_id: `call_${name}`, name, input: { ...input } as never }],
  finish: { reason: "tool_calls" },
  usage: { input: 100, output: 10, scale: "provider" },
});
const firstAnswers: Readonly<Record<string, ModelOutcome>> = {
  "Talk.": finalAnswer,
  "Ask first.": calls("pay"),
  "Sleep.": calls("nap"),
  "Delegate.": calls("agent", { op: "spawn", agent: "asks", input: "Pay." }),
};

/** `onCall` is told of the workload's calls before they are answered. */
export function openParked(
  url: string,
  { turns, slots, onCall = () => {} }: { readonly turns: number; readonly slots: number; readonly onCall?: (runId: string) => void },
): Capstan {
  const call: BenchCall = (asked, { runId, turn }) => {
    const parking = firstAnswers[asked.system];
    if (parking !== undefined) return Promise.resolve(parking);
    onCall(runId);
    return Promise.resolve(turn > turns ? finalAnswer : answerTurn(turn));
  };
  return createCapstan({
    connectionString: url,
    agents: [auditor, talks, asks, sleeps, spawns],
    models: modelsOf(call),
    // Sweeps ten times as often as in life, so that a short measurement meets many of them.
    worker: { slots, poolMax: 10, sweepMs: 1_000 },
    observability: { log: problemsOnly },
    env: {},
  });
}
