/** A model that is a pure function of the conversation: whichever process asks, the same messages get the same answer. */
import type { JsonObject } from "../../src/domain/json.ts";
import type { AssistantPart } from "../../src/domain/transcript/message.ts";
import type { Model, ModelCatalogue, ModelOutcome } from "../../src/engine/model-port.ts";
import { pause } from "../../src/engine/model-step.ts";
import type { NoteEffect } from "./effects.ts";

export const CHAOS_MODEL = "chaos:model";

export interface ScriptedAnswer {
  readonly text: string;
  readonly calls?: readonly { readonly name: string; readonly input?: JsonObject }[];
  /** The answer was cut off at the output limit: the engine asks for the rest. */
  readonly cut?: boolean;
  /** Milliseconds that the call takes; default 15. */
  readonly takesMs?: number;
  /** The text comes word by word, so many milliseconds apart; `takesMs` does not apply then. */
  readonly wordMs?: number;
  /** Never answers: only an abort ends the call, and is noted as an effect `m<turn>:aborted`. */
  readonly hangs?: true;
}

/** The system prompt names the script; how many answers the conversation holds says which step is next. */
export function chaosModel(scripts: Readonly<Record<string, readonly ScriptedAnswer[]>>, note: NoteEffect): Model {
  return {
    name: CHAOS_MODEL,
    structuredOutput: false,
    window: { tokens: undefined, source: "unknown" },
    async call(call, { signal, runId, turn, onDelta }): Promise<ModelOutcome> {
      note(runId, "model", `m${turn}`);
      const script = scripts[call.system];
      const step = call.messages.filter((message) => message.role === "assistant").length;
      const answer = script?.[step];
      if (answer === undefined) {
        return { kind: "failed", code: "PROVIDER_BAD_REQUEST", message: `script ${JSON.stringify(call.system)} has no step ${step}`, retryable: false, countsAsAttempt: true };
      }
      for (const word of answer.wordMs === undefined ? [] : answer.text.split(/(?<= )/)) {
        onDelta?.({ kind: "text", text: word });
        await pause(answer.wordMs ?? 0, signal);
      }
      if (answer.wordMs === undefined) await pause(answer.hangs === true ? 600_000 : (answer.takesMs ?? 15), signal);
      if (answer.hangs === true) note(runId, "model", `m${turn}:aborted`);
      if (signal.aborted) return { kind: "aborted" };
      const calls = answer.calls ?? [];
      const content: AssistantPart[] = [
        { type: "text", text: answer.text },
        ...calls.map(({ name, input }, k): AssistantPart => ({ type: "tool_call", call_id: `c${step}_${k}`, name, input: input ?? {} })),
      ];
      return {
        kind: "responded",
        content,
        finish: { reason: answer.cut === true ? "length" : calls.length > 0 ? "tool_calls" : "stop" },
        usage: { input: call.messages.length, output: content.length, scale: "offline" },
      };
    },
  };
}

/** Models by their names, and one for all other names. */
export function catalogueOf(model: Model, others: Readonly<Record<string, Model>> = {}): ModelCatalogue {
  return { resolve: (name) => others[name] ?? model, costUsdMicros: () => undefined };
}
