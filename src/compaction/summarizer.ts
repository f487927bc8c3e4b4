/** The summarizer that users register: an ordinary effect around a model. */
import { DEFAULT_SUMMARY_TOKENS, flooredLimit, namedSize } from "../domain/compaction/size.ts";
import { CapstanError } from "../domain/error.ts";
import type { JsonObject } from "../domain/json.ts";
import type { Model } from "../engine/model-port.ts";
import type { ModelSummarizer, SummarizerInput, SummarizerOutput, SummarizerProvider } from "./effect.ts";
import { SummarizerEmptyError, SummarizerRejectedError } from "./errors.ts";
import { DEFAULT_SUMMARIZER_INSTRUCTION } from "./instruction.ts";
import { judgeOutcome } from "./reply.ts";
import { summarizerText } from "./summarizer-text.ts";
import { echoesOf, hasEffortSetting, summaryCall } from "./summary-call.ts";

export interface SummarizerEffectOptions {
  /** The whole system prompt; default DEFAULT_SUMMARIZER_INSTRUCTION. */
  readonly instruction?: string;
  /** Output limit of the call in tokens; default 1,024, never below 512 (a model that reasons thinks within it). */
  readonly maxTokens?: number;
}

/**
 * An effect with the contract `{ messages, target_tokens? } -> { summary }`, to be registered under a name of your choice
 * (`createCapstan({ summarizers: { brief: createSummarizerEffect("openai:…") } })`) and named by `compaction.summarizer`.
 * Throws SummarizerConfigError.
 */
export function createSummarizerEffect(provider: SummarizerProvider, options: SummarizerEffectOptions = {}): ModelSummarizer {
  const instruction = options.instruction ?? DEFAULT_SUMMARIZER_INSTRUCTION;
  const wished: unknown = options.maxTokens ?? DEFAULT_SUMMARY_TOKENS;
  const isProvider = typeof provider === "string" ? provider.includes(":") : typeof provider === "function" || isModel(provider);
  if (!isProvider) throw new SummarizerConfigError("provider", 'must be a Model, a model name with its provider ("openai:…"), or a function that gives a Model');
  if (typeof instruction !== "string" || instruction.trim() === "") throw new SummarizerConfigError("instruction", "must be a text that is not blank");
  if (typeof wished !== "number" || !Number.isInteger(wished) || wished < 1) throw new SummarizerConfigError("maxTokens", "must be a whole number of at least 1");
  const maxTokens = flooredLimit(wished);
  const perform = async (input: SummarizerInput): Promise<SummarizerOutput> => await callDirectly({ provider, instruction, maxTokens }, input);
  return Object.assign(perform, { kind: "model" as const, provider, instruction, maxTokens });
}

/** Outside of a worker: the same call and the same judgement, without ladder, grants and quotas. */
async function callDirectly(
  { provider, instruction, maxTokens }: Pick<ModelSummarizer, "provider" | "instruction" | "maxTokens">,
  input: SummarizerInput,
): Promise<SummarizerOutput> {
  if (typeof provider === "string") {
    throw new SummarizerConfigError(
      "provider",
      `is the name ${JSON.stringify(provider)}, which a worker's catalogue resolves; to call the effect yourself, give createSummarizerEffect a Model`,
    );
  }
  const model = typeof provider === "function" ? await provider({ tenant: "default" }) : provider;
  const signal = input.signal ?? new AbortController().signal;
  const targetTokens = namedSize(maxTokens, input.target_tokens);
  const request = { model: model.name, instruction, record: summarizerText(input.messages), limitTokens: maxTokens, targetTokens, lowEffort: hasEffortSetting(model.name) };
  const reply = judgeOutcome(await model.call(summaryCall(request), { signal, tenant: "default", runId: "", turn: 0 }), echoesOf(request));
  if (reply.kind === "text") return { summary: reply.text, ...(reply.usage === undefined ? {} : { usage: reply.usage }) };
  if (reply.reason === "empty") throw new SummarizerEmptyError(model.name, reply.message);
  throw new SummarizerRejectedError(model.name, reply);
}

function isModel(provider: unknown): provider is Model {
  return typeof provider === "object" && provider !== null && "call" in provider && "name" in provider;
}

/** A summarizer is misconfigured: found when it is made. */
export class SummarizerConfigError extends CapstanError {
  override readonly name = "SummarizerConfigError";
  readonly code = "CONFIG_INVALID";
  override readonly details: JsonObject;
  constructor(field: string, message: string) {
    super(`createSummarizerEffect: ${field} ${message}`);
    this.details = { field };
  }
}
