/** The agents of interleavings.test.ts, and the model that says what a sequence's script says, turn by turn. */
import { AsyncLocalStorage } from "node:async_hooks";
import { z } from "zod";
import { agent, type Agent } from "../../src/agents/agent.ts";
import { ask, later, sleep, waitFor } from "../../src/agents/deferred.ts";
import { contextTool } from "../../src/agents/engine-tools.ts";
import { tool } from "../../src/agents/tool.ts";
import type { SummarizerEffect } from "../../src/compaction/effect.ts";
import type { JsonObject } from "../../src/domain/json.ts";
import type { AssistantPart } from "../../src/domain/transcript/message.ts";
import type { Model, ModelCatalogue } from "../../src/engine/model-port.ts";
import { estimateUsage } from "../../src/providers/estimate-usage.ts";
import { spawned, type CallKind, type Script } from "./reference-model.ts";

const HALF_AN_HOUR = 1_800_000;
const LONG = "The harbour master wrote down every ship that came in, its cargo and its captain. ".repeat(8);

/** The job that is at work, as its model and its tools see it. */
export interface Job {
  readonly isDead: () => boolean;
  readonly isDown: () => boolean;
  readonly scriptOf: (runId: string, task: string) => Script;
  /** Something from outside may happen now. */
  readonly between: () => Promise<void>;
  readonly executed: (runId: string, callId: string) => void;
}
export const atWork = new AsyncLocalStorage<Job>();
const job = (): Job => atWork.getStore() as Job;

/** A process that is gone does nothing any more, and gives nothing back either. */
const never = new Promise<never>(() => {});

const working = (name: string, effect: "read" | "once", approval?: Parameters<typeof tool>[0]["approval"]) =>
  tool({
    name,
    description: name,
    input: z.object({}),
    effect,
    ...(approval === undefined ? {} : { approval }),
    async execute(_, { runId, callId }) {
      if (job().isDead()) return await never;
      job().executed(runId, callId);
      await job().between();
      return effect === "read" ? LONG : name;
    },
  });

const waiting = (name: string, wait: () => unknown) => tool({ name, description: name, input: z.object({}), effect: "idempotent", execute: wait });

const tools = [
  working("read", "read"),
  working("once", "once"),
  working("pay", "once", true),
  working("pay_soon", "once", { expiresMs: HALF_AN_HOUR }),
  waiting("ask", () => ask("Which?")),
  waiting("ask_soon", () => ask("Which?", { timeoutMs: HALF_AN_HOUR })),
  waiting("go", () => waitFor("go")),
  waiting("go_soon", () => waitFor("go_soon", { timeoutMs: HALF_AN_HOUR })),
  waiting("nap", () => sleep(HALF_AN_HOUR)),
  waiting("later", () => later()),
  contextTool(),
];

const common = { instructions: "Work.", tools, spawn: { agents: ["kid"], concurrency: 2 }, model: "scripted:interleaved", warnTranscriptBytes: false } as const;
const byHand = { summarizer: "brief", keep_last_n: 1 };
const alone = { ...byHand, after_bytes: 2_500 };

export const agents: readonly Omit<Agent, "types">[] = [
  agent({ ...common, name: "task", compaction: byHand }),
  agent({ ...common, name: "talk", interactive: true, compaction: byHand }),
  agent({ ...common, name: "task-auto", compaction: alone }),
  agent({ ...common, name: "talk-auto", interactive: true, compaction: alone }),
  agent({ ...common, name: "kid" }),
] as readonly Omit<Agent, "types">[];

export const summarizers: ReadonlyMap<string, SummarizerEffect> = new Map([["brief", async () => ({ summary: "Ships came in." })]]);

/** A call's id is the same whoever makes the request: what was executed is told by it. */
const callOf = (kind: CallKind, turn: number, index: number): AssistantPart => {
  const base = { type: "tool_call", call_id: `c${turn}.${index}` } as const;
  const made = (name: string, input: JsonObject): AssistantPart => ({ ...base, name, input });
  if (kind === "compact") return made("context", { op: "compact" });
  if (kind === "spawn1" || kind === "spawn3") return made("agent", { op: "parallel_spawn", children: spawned[kind].map((input) => ({ agent: "kid", input })) });
  return made(kind, {});
};

const interleaved: Model = {
  name: "scripted:interleaved",
  structuredOutput: false,
  window: { tokens: undefined, source: "unknown" },
  async call(request, { runId, turn, signal }) {
    if (job().isDead()) return await never;
    if (signal.aborted) return { kind: "aborted" };
    await job().between();
    if (signal.aborted) return { kind: "aborted" };
    if (job().isDown()) return { kind: "failed", code: "PROVIDER_RATE_LIMITED", message: "come back later", retryable: true, retryAfterMs: HALF_AN_HOUR, countsAsAttempt: false };
    const first = request.messages[0]?.content[0];
    const kinds = job().scriptOf(runId, first?.type === "text" ? first.text : "")[turn - 1] ?? [];
    const content: AssistantPart[] = [{ type: "text", text: `Turn ${turn}. ${LONG}` }, ...kinds.map((kind, index) => callOf(kind, turn, index))];
    return { kind: "responded", content, finish: { reason: kinds.length > 0 ? "tool_calls" : "stop" }, usage: estimateUsage(request, content), servedModel: request.model };
  },
};

export const models: ModelCatalogue = { resolve: () => interleaved, costUsdMicros: () => undefined };
