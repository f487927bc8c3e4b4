/** A summarizer's surroundings without a database: a real ring, a catalogue of given models, and spans to be summarized. */
import { createRing, type RingOptions } from "../../src/capabilities/ring.ts";
import type { SummarizerEffect } from "../../src/compaction/effect.ts";
import { summarize, type SummarizeDeps, type SummarizeInput, type SummaryOutcome } from "../../src/compaction/summarize.ts";
import type { CanonicalCall } from "../../src/domain/call.ts";
import { estimateTokens } from "../../src/domain/compaction/footprint.ts";
import type { JsonValue } from "../../src/domain/json.ts";
import type { Message } from "../../src/domain/transcript/message.ts";
import type { Model } from "../../src/engine/model-port.ts";
import type { Effect, EffectReport } from "../../src/engine/ports.ts";
import { createModelCatalogue } from "../../src/providers/catalogue.ts";

export const user = (text: string): Message => ({ role: "user", content: [{ type: "text", text }] });
export const says = (text: string): Message => ({ role: "assistant", content: [{ type: "text", text }] });
export const calls = (id: string, name = "lookup", input: JsonValue = { id }): Message => ({ role: "assistant", content: [{ type: "tool_call", call_id: id, name, input }] });
export const result = (id: string, output: JsonValue, name = "lookup"): Message => ({ role: "tool", content: [{ type: "tool_result", call_id: id, name, output }] });

/** A task and `turns` calls with results of `resultChars`. */
export function span(turns: number, resultChars = 200): Message[] {
  return [
    user("Move the service to port 8080. Never restart the database."),
    ...Array.from({ length: turns }, (_, i) => [
      calls(`c${i}`),
      result(`c${i}`, `record ${i}: ${"the entry holds what was asked for; ".repeat(Math.ceil(resultChars / 36))}`),
    ]).flat(),
  ];
}

export interface Bench {
  readonly metered: { readonly effect: Effect; readonly report: EffectReport }[];
  run(input?: Partial<SummarizeInput>): Promise<SummaryOutcome>;
}

export interface BenchOptions {
  readonly models?: readonly Model[];
  readonly summarizers?: Readonly<Record<string, SummarizerEffect>>;
  readonly ring?: Partial<RingOptions>;
  readonly outputLimitOf?: SummarizeDeps["outputLimitOf"];
}

export function bench({ models = [], summarizers = {}, ring = {}, outputLimitOf }: BenchOptions): Bench {
  const metered: { effect: Effect; report: EffectReport }[] = [];
  let nowMs = 0;
  const clockMs = () => nowMs++;
  const deps: SummarizeDeps = {
    ring: createRing({ meter: (effect, report) => void metered.push({ effect, report }), clockMs, ...ring }),
    models: createModelCatalogue({
      models: Object.fromEntries(models.map((model) => [model.name, model])),
      prices: Object.fromEntries(models.map(({ name }) => [name, { input: 1, output: 2 }])),
    }),
    summarizers: new Map(Object.entries(summarizers)),
    clockMs,
    ...(outputLimitOf === undefined ? {} : { outputLimitOf }),
  };
  return {
    metered,
    async run(given = {}) {
      const messages = given.messages ?? span(20);
      return await summarize(
        {
          runId: "01JRUN",
          tenant: "acme",
          agent: "mover",
          turn: 7,
          attempt: 1,
          grants: ["model:*", "summarizer:*"],
          taint: ["tool:lookup"],
          model: models[0]?.name ?? "offline:auditor",
          policy: { enabled: true },
          trigger: "auto",
          byBytes: false,
          messages,
          replacedTokens: estimateTokens(messages),
          hard: false,
          signal: new AbortController().signal,
          timeoutMs: 60_000,
          ...given,
        },
        deps,
      );
    },
  };
}

export function userText(call: CanonicalCall | undefined): string {
  return (call?.messages ?? []).flatMap(({ content }) => content.flatMap((part) => (part.type === "text" ? [part.text] : []))).join("");
}

/** Processor time: independent of how busy the machine is. For bounds that only something worse than linear breaks. */
export function cpuMs(work: () => unknown): number {
  const started = process.cpuUsage();
  work();
  const { user: userUs, system } = process.cpuUsage(started);
  return (userUs + system) / 1_000;
}
