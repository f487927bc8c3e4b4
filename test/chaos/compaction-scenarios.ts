/** Agents whose context is compacted in every way there is, and their models. What the model does next goes by the turn, whatever the view has been made to. */
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";
import { contextTool } from "../../src/agents/engine-tools.ts";
import { agent, type Agent } from "../../src/agents/agent.ts";
import { tool, type Tool } from "../../src/agents/tool.ts";
import type { SummarizerEffect } from "../../src/compaction/effect.ts";
import type { JsonObject } from "../../src/domain/json.ts";
import type { CompactionPolicy } from "../../src/domain/compaction/policy.ts";
import type { AssistantPart } from "../../src/domain/transcript/message.ts";
import type { Model, ModelOutcome } from "../../src/engine/model-port.ts";
import { pause } from "../../src/engine/model-step.ts";
import type { NoteEffect } from "./effects.ts";

type Call = { readonly name: string; readonly input?: JsonObject };

export interface CompactionScenario {
  readonly agent: Agent;
  /** What people do, one by one, each when the run waits for input. */
  readonly steps: readonly ("compact" | "input")[];
}

interface Plan {
  readonly calls: (turn: number) => readonly Call[];
  /** Bytes of messages above which the provider refuses. */
  readonly refusesOver?: number;
}

const look = (bytes = 1_600): Call => ({ name: "look", input: { bytes } });
const until =
  (last: number, ...calls: readonly Call[]) =>
  (turn: number): readonly Call[] =>
    turn > last ? [] : calls;
const COMPACT: Call = { name: "context", input: { op: "compact" } };

/** Of an interactive run: every seventh turn answers. */
const exchanges = (turn: number): readonly Call[] => (turn % 7 === 0 ? [] : [look()]);

/** By the agent's name, which is its system prompt too. A turn without calls is an answer. */
const plans: Readonly<Record<string, Plan>> = {
  share: { calls: until(14, look()) },
  bytes: { calls: until(14, look()) },
  hard: { calls: until(9, look(7_000), { name: "pay" }) },
  prefetch: { calls: until(14, look()) },
  overflow: { calls: until(12, look()), refusesOver: 9_000 },
  manual: { calls: exchanges },
  impatient: { calls: exchanges },
  whole: { calls: exchanges },
  self: { calls: (turn) => (turn > 11 ? [] : turn === 6 || turn === 9 ? [look(), COMPACT, look()] : [look()]) },
  "self-once": { calls: (turn) => (turn > 11 ? [] : turn === 6 || turn === 9 ? [{ name: "pay" }, COMPACT, { name: "put" }] : [look(), { name: "pay" }]) },
};

export function compactionScenarios(note: NoteEffect): Record<keyof typeof plans, CompactionScenario> {
  const done = (name: string, effect: "idempotent" | "once"): Tool =>
    tool({
      name,
      description: name,
      input: z.object({}),
      effect,
      async execute(_, { runId, callId }) {
        note(runId, effect, callId);
        await sleep(15);
        return `${name} done by ${callId}`;
      },
    });
  const read = tool({
    name: "look",
    description: "Looks something up.",
    input: z.object({ bytes: z.int() }),
    effect: "read",
    async execute({ bytes }, { runId, callId }) {
      note(runId, "read", callId);
      await sleep(5);
      return pageOf(runId, callId, bytes);
    },
  });
  const of = (name: string, model: string, compaction: CompactionPolicy, more: Partial<Parameters<typeof agent>[0]> = {}): Agent =>
    agent<z.ZodType, z.ZodType>({
      name,
      model,
      instructions: name,
      tools: [read, done("put", "idempotent"), done("pay", "once"), contextTool()],
      compaction,
      settings: { maxOutputTokens: 256 },
      limits: { maxTurns: 100, parallelTools: 2 },
      onWarn() {},
      ...more,
    });
  const alone = (a: Agent): CompactionScenario => ({ agent: a, steps: [] });
  return {
    share: alone(of("share", "chaos:small", { enabled: true, autocompact_at_pct: 50, keep_last_n: 2 })),
    bytes: alone(of("bytes", "chaos:unknown", { after_bytes: 8_192, summarizer: "note", keep_last_n: 2 })),
    hard: alone(of("hard", "chaos:middle", { enabled: true, autocompact_at_pct: 95, keep_last_n: 1 })),
    prefetch: alone(of("prefetch", "chaos:small", { enabled: true, autocompact_at_pct: 60, prefetch_at_pct: 35, keep_last_n: 2 })),
    overflow: alone(of("overflow", "chaos:unknown", { enabled: true, keep_last_n: 1 })),
    manual: { agent: of("manual", "chaos:unknown", { summarizer: "note" }, { interactive: true }), steps: ["input", "compact", "input", "compact"] },
    impatient: { agent: of("impatient", "chaos:unknown", { summarizer: "note" }, { interactive: true, limits: { modelTimeoutMs: 1_500 } }), steps: [] },
    // The exchange alone is too long for its tail: nothing of it is kept, and the run goes on waiting.
    whole: { agent: of("whole", "chaos:tiny", { keep_last_n: 0 }, { interactive: true }), steps: ["input", "compact", "input", "compact"] },
    self: alone(of("self", "chaos:unknown", { keep_last_n: 2 })),
    "self-once": alone(of("self-once", "chaos:unknown", { keep_last_n: 2 })),
  };
}

/** Different in every call, and it names the run: a summarizer that is given it knows whose it is. */
function pageOf(runId: string, callId: string, bytes: number): string {
  const line = `page ${callId} of run ${runId}; `;
  return line.repeat(Math.ceil(bytes / line.length)).slice(0, bytes);
}

/** Where a summary's call is noted: beside the run's own effects, which the invariants count. */
export const summariesOf = (runId: string): string => `${runId}/summaries`;

/** What a summary's call does: takes so long, or never gives the process's thread back. */
export type SummaryCall = number | "block";

export function compactionModels(note: NoteEffect, summary: SummaryCall = 100): Readonly<Record<string, Model>> {
  const windows = { "chaos:tiny": 4_500, "chaos:small": 6_000, "chaos:middle": 9_000, "chaos:unknown": undefined };
  return Object.fromEntries(Object.entries(windows).map(([name, tokens]) => [name, planned(name, tokens, note, summary)]));
}

function planned(name: string, tokens: number | undefined, note: NoteEffect, summary: SummaryCall): Model {
  return {
    name,
    structuredOutput: false,
    window: tokens === undefined ? { tokens, source: "unknown" } : { tokens, source: "setting" },
    async call(call, { signal, runId, turn }): Promise<ModelOutcome> {
      const plan = plans[call.system];
      if (plan === undefined) {
        note(summariesOf(runId), "model", `s${turn}`);
        if (summary === "block") for (;;);
        await pause(summary, signal);
        return signal.aborted ? { kind: "aborted" } : answered([{ type: "text", text: SUMMARY }]);
      }
      note(runId, "model", `m${turn}`);
      await pause(15, signal);
      if (signal.aborted) return { kind: "aborted" };
      const bytes = Buffer.byteLength(JSON.stringify(call.messages));
      if (bytes > (plan.refusesOver ?? Number.POSITIVE_INFINITY)) {
        return { kind: "failed", code: "CONTEXT_OVERFLOW", message: `${bytes} bytes are too many`, retryable: false, countsAsAttempt: true };
      }
      const calls = plan.calls(turn);
      return answered([
        { type: "text", text: `turn ${turn}` },
        ...calls.map(({ name: called, input = {} }, k): AssistantPart => ({ type: "tool_call", call_id: `c${turn}_${k}`, name: called, input })),
      ]);
    },
  };
}

export const SUMMARY = "DONE: pages were looked up. OPEN: the rest of them.";

function answered(content: AssistantPart[]): ModelOutcome {
  const isAnswer = content.every((part) => part.type === "text");
  return { kind: "responded", content, finish: { reason: isAnswer ? "stop" : "tool_calls" }, usage: { input: 1, output: 1, scale: "estimate" } };
}

export function compactionSummarizers(note: NoteEffect, summary: SummaryCall = 100): Readonly<Record<string, SummarizerEffect>> {
  return {
    async note({ messages }) {
      const runId = /of run ([0-9a-f-]{36})/.exec(JSON.stringify(messages))?.[1] ?? "unknown";
      note(summariesOf(runId), "model", "registered");
      if (summary === "block") for (;;);
      await sleep(summary);
      return { summary: SUMMARY };
    },
  };
}
