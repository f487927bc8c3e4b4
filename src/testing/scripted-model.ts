/** A model in this process that says what a test tells it to: no server, no key, no waiting. */
import { setTimeout as sleep } from "node:timers/promises";
import type { CanonicalCall } from "../domain/call.ts";
import { deltasOf } from "../domain/delta.ts";
import type { JsonObject } from "../domain/json.ts";
import type { AssistantPart } from "../domain/transcript/message.ts";
import type { Usage } from "../domain/usage.ts";
import type { FinishReason, Model, ModelCallContext, ModelFailure, ModelFailureCode, ModelOutcome } from "../engine/model-port.ts";
import { estimateUsage } from "../providers/estimate-usage.ts";

export interface ScriptedModelReply {
  readonly text?: string;
  /** The text in pieces, as it comes: an async iterable says when each does. Instead of `text`. */
  readonly stream?: Iterable<string> | AsyncIterable<string>;
  readonly reasoning?: string;
  /** `input` for a call as it should be, `arguments` for one that does not parse. */
  readonly toolCalls?: readonly { readonly id?: string; readonly name: string; readonly input?: JsonObject; readonly arguments?: string }[];
  readonly finish?: FinishReason;
  /** Taken as the provider's own count. Estimated from the characters when absent, and marked as an estimate. */
  readonly usage?: Omit<Usage, "scale">;
  /** Fail instead of answering. */
  readonly failure?: {
    readonly code: ModelFailureCode;
    readonly message?: string;
    readonly retryable?: boolean;
    readonly retryAfterMs?: number;
  };
  /** Ends early, as aborted, when the engine aborts the call. */
  readonly delayMs?: number;
  /** Never answer; only an abort ends the call. */
  readonly hang?: boolean;
  /** Looks at the request and throws if it is not as expected: the call fails, and `assertDone` tells why. */
  readonly expect?: (call: CanonicalCall) => void;
}

/** A text alone stands for an answer with that text. */
export type ScriptedStep = string | ScriptedModelReply | ((call: CanonicalCall, context: ModelCallContext) => ScriptedModelReply | string | Promise<ScriptedModelReply | string>);

export interface ScriptedModelOptions {
  /** Default `scripted:model`. */
  readonly name?: string;
  /**
   * `call` (default): the k-th call gets the k-th step. `turn`: the step is chosen by the number of answers in the
   * transcript, so that another process that takes the run over continues at the right step.
   */
  readonly by?: "call" | "turn";
  readonly windowTokens?: number;
  readonly structuredOutput?: boolean;
}

export interface ScriptedModel extends Model {
  /** The calls as the engine made them, in order. */
  readonly calls: readonly CanonicalCall[];
  /** Throws if a step was not used, a call had no step, or an expectation failed. */
  assertDone(): void;
}

export function scriptedModel(steps: readonly ScriptedStep[], options: ScriptedModelOptions = {}): ScriptedModel {
  const calls: CanonicalCall[] = [];
  const problems: string[] = [];
  const used = new Set<number>();

  const call = async (request: CanonicalCall, context: ModelCallContext): Promise<ModelOutcome> => {
    if (context.signal.aborted) return { kind: "aborted" };
    calls.push(request);
    const at = options.by === "turn" ? request.messages.filter((message) => message.role === "assistant").length : calls.length - 1;
    const step = steps[at];
    if (step === undefined) return failAsTold(problems, `scripted model: no step for ${options.by === "turn" ? "turn" : "call"} ${at + 1}, the script has ${steps.length}`);
    used.add(at);
    let reply: ScriptedModelReply;
    try {
      const given = typeof step === "function" ? await step(request, context) : step;
      reply = typeof given === "string" ? { text: given } : given;
      reply.expect?.(request);
    } catch (error) {
      return failAsTold(problems, `scripted model: step ${at + 1} refused the request: ${error instanceof Error ? error.message : String(error)}`);
    }
    if (reply.hang === true || reply.delayMs !== undefined) await waitOrAbort(reply.hang === true ? undefined : reply.delayMs, context.signal);
    // Read anew: it may have changed while waiting.
    if (isAborted(context.signal)) return { kind: "aborted" };
    if (reply.failure !== undefined) return failure(reply.failure);
    if (reply.stream === undefined) return respond(request, reply, at, context);
    try {
      const streamed = await takeStream(reply.stream, context);
      return streamed === undefined ? { kind: "aborted" } : respond(request, { ...reply, text: streamed }, at, context);
    } catch (error) {
      return failAsTold(problems, `scripted model: the stream of step ${at + 1} failed: ${error instanceof Error ? error.message : String(error)}`);
    }
  };

  return {
    name: options.name ?? "scripted:model",
    structuredOutput: options.structuredOutput ?? false,
    window: options.windowTokens === undefined ? { tokens: undefined, source: "unknown" } : { tokens: options.windowTokens, source: "setting" },
    call,
    calls,
    assertDone() {
      const unused = steps.map((_, i) => i + 1).filter((n) => !used.has(n - 1));
      const all = [...problems, ...(unused.length === 0 ? [] : [`scripted model: steps never used: ${unused.join(", ")}`])];
      if (all.length > 0) throw new Error(all.join("\n"));
    },
  };
}

function respond(request: CanonicalCall, reply: ScriptedModelReply, at: number, context: ModelCallContext): ModelOutcome {
  const toolCalls = reply.toolCalls ?? [];
  const content: AssistantPart[] = [
    ...(reply.reasoning === undefined ? [] : [{ type: "reasoning", text: reply.reasoning } as const]),
    ...(reply.text === undefined || reply.text === "" ? [] : [{ type: "text", text: reply.text } as const]),
    ...toolCalls.map((call, k): AssistantPart => {
      const base = { type: "tool_call", call_id: call.id ?? `call_${at + 1}_${k + 1}`, name: call.name } as const;
      return call.arguments === undefined ? { ...base, input: call.input ?? {} } : { ...base, arguments: call.arguments, invalid: "arguments are not valid JSON" };
    }),
  ];
  for (const delta of deltasOf(content)) if (delta.kind !== "text" || reply.stream === undefined) context.onDelta?.(delta);
  return {
    kind: "responded",
    content,
    finish: { reason: reply.finish ?? (toolCalls.length > 0 ? "tool_calls" : "stop") },
    usage: reply.usage === undefined ? estimateUsage(request, content) : { ...reply.usage, scale: "provider" },
    servedModel: request.model,
    responseId: `scripted_${at + 1}`,
  };
}

/** The whole text; undefined when the call was aborted meanwhile. */
async function takeStream(stream: Iterable<string> | AsyncIterable<string>, { signal, onDelta }: ModelCallContext): Promise<string | undefined> {
  const aborted = waitOrAbort(undefined, signal).then(() => ({ done: true, value: undefined }) as const);
  const pieces = (async function* () {
    yield* stream;
  })();
  let text = "";
  for (;;) {
    // A stream that waits for something of the test's must not keep an aborted call.
    const next = await Promise.race([pieces.next(), aborted]);
    if (signal.aborted) return undefined;
    if (next.done === true) return text;
    text += next.value;
    onDelta?.({ kind: "text", text: next.value });
  }
}

const RETRYABLE: ReadonlySet<ModelFailureCode> = new Set([
  "PROVIDER_RATE_LIMITED",
  "PROVIDER_OVERLOADED",
  "PROVIDER_UNAVAILABLE",
  "PROVIDER_STREAM_CUT",
  "PROVIDER_BAD_RESPONSE",
  "MODEL_TIMEOUT",
]);

function failure(told: NonNullable<ScriptedModelReply["failure"]>): ModelFailure {
  return {
    kind: "failed",
    code: told.code,
    message: told.message ?? `scripted failure ${told.code}`,
    retryable: told.retryable ?? RETRYABLE.has(told.code),
    countsAsAttempt: told.code !== "PROVIDER_RATE_LIMITED",
    ...(told.retryAfterMs === undefined ? {} : { retryAfterMs: told.retryAfterMs }),
  };
}

/** A fault of the test ends the run at once, with words, instead of a hang or a retry. */
function failAsTold(problems: string[], message: string): ModelFailure {
  problems.push(message);
  return { kind: "failed", code: "PROVIDER_BAD_REQUEST", message, retryable: false, countsAsAttempt: true };
}

async function waitOrAbort(ms: number | undefined, signal: AbortSignal): Promise<void> {
  if (ms === undefined) {
    await new Promise<void>((resolve) => {
      if (signal.aborted) resolve();
      else signal.addEventListener("abort", () => resolve(), { once: true });
    });
    return;
  }
  await sleep(ms, undefined, { signal }).catch(() => {});
}

function isAborted(signal: AbortSignal): boolean {
  return signal.aborted;
}
