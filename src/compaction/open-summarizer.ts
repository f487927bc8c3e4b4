/** From a policy to a summarizer that can be asked: the built-in one on the run's provider, or a registered effect. */
import { EXTRACTIVE_MODEL } from "../domain/compaction/extract.ts";
import type { CompactionPolicy } from "../domain/compaction/policy.ts";
import { MIN_SUMMARY_TOKENS, summaryLimit } from "../domain/compaction/size.ts";
import { CapstanError } from "../domain/error.ts";
import { BUILT_IN_SUMMARIZER, modelReadings } from "../domain/grants.ts";
import type { Message } from "../domain/transcript/message.ts";
import type { Model } from "../engine/model-port.ts";
import { askFunction } from "./ask-function.ts";
import { askModel } from "./ask-model.ts";
import { isModelSummarizer, type ModelSummarizer, type SummarizerEffect } from "./effect.ts";
import { SummarizerMissingError } from "./errors.ts";
import { DEFAULT_SUMMARIZER_INSTRUCTION } from "./instruction.ts";
import type { Reply } from "./reply.ts";
import type { SummarizeDeps, SummarizeInput, SummaryCallReport } from "./summarize.ts";
import { frameBytes, hasEffortSetting } from "./summary-call.ts";
import { MAX_SUMMARIZER_TEXT_BYTES } from "./summarizer-text.ts";

export interface AskRequest {
  readonly messages: readonly Message[];
  readonly previousSummary?: string | undefined;
  readonly obligations: readonly string[];
  readonly limitTokens: number;
  readonly targetTokens: number;
}

export interface OpenSummarizer {
  /** Full name of the model that writes; undefined for a function. */
  readonly model?: string;
  /** Output limit of the final call. */
  readonly limitTokens: number;
  /** Bytes of flattened record that one call can hold. */
  budgetBytes(frame: Omit<AskRequest, "messages">): number;
  ask(request: AskRequest): Promise<Reply>;
}

/** Cautious: text has some four bytes a token, records of JSON and numbers fewer. Too low costs detail, too high a refused call. */
const BYTES_PER_TOKEN = 3;
/** For what a vendor adds around a message. */
const MARGIN_TOKENS = 64;

/** The name by which a marker, a grant and a metric call it. */
export function summarizerName(policy: CompactionPolicy): string {
  return policy.summarizer ?? BUILT_IN_SUMMARIZER;
}

/** Throws SummarizerMissingError. */
export function requireSummarizer(summarizers: ReadonlyMap<string, SummarizerEffect>, name: string): SummarizerEffect {
  const effect = summarizers.get(name);
  if (effect === undefined) throw new SummarizerMissingError(name, [...summarizers.keys()]);
  return effect;
}

/** The model that the built-in summarizer uses: of the policy, else the run's own; offline models cannot write, the extractive one picks. */
function builtInModel({ policy, model, tenant }: SummarizeInput, models: SummarizeDeps["models"]): Model {
  if (policy.model === undefined) return models.resolve(model.startsWith("offline:") ? EXTRACTIVE_MODEL : model, tenant);
  const [likeliest, ...others] = modelReadings(policy.model, model);
  try {
    return models.resolve(likeliest, tenant);
  } catch (error) {
    const [bare] = others;
    if (bare === undefined || !(error instanceof CapstanError) || error.code !== "MODEL_UNKNOWN") throw error;
    // No provider has that name, so that the colon is part of the model's own: `llama3:8b`.
    return models.resolve(bare, tenant);
  }
}

/** Throws SummarizerMissingError, and what the catalogue throws for a model that cannot be used. */
export async function openSummarizer(input: SummarizeInput, deps: SummarizeDeps, calls: SummaryCallReport[]): Promise<OpenSummarizer> {
  const { policy, tenant } = input;
  if (policy.summarizer === undefined) {
    const model = builtInModel(input, deps.models);
    // Rules that run in this process are no other model to be granted: who may use offline models may be summarized by one.
    const granted = policy.model === undefined ? input.model : model.name;
    const instruction = policy.instruction ?? DEFAULT_SUMMARIZER_INSTRUCTION;
    const limitTokens = summaryLimit({ ...input, modelOutputLimit: deps.outputLimitOf?.(model.name) });
    return withModel({ model, instruction, limitTokens, needs: [`summarizer:${BUILT_IN_SUMMARIZER}`, `model:${granted}`] }, input, deps, calls);
  }
  const effect = requireSummarizer(deps.summarizers, policy.summarizer);
  // Naming it was the policy's part, registering it the operator's: its model needs no grant of the agent's own.
  const needs = [`summarizer:${policy.summarizer}`];
  if (isModelSummarizer(effect)) {
    const model = await modelOf(effect, deps, tenant);
    const limitTokens = Math.min(effect.maxTokens, deps.outputLimitOf?.(model.name) ?? Number.POSITIVE_INFINITY);
    return withModel({ model, instruction: effect.instruction, limitTokens, needs }, input, deps, calls);
  }
  // The policy's max_tokens is for the built-in summarizer; a function is told the wanted size only.
  const { max_tokens: _, ...size } = policy;
  return {
    limitTokens: summaryLimit({ ...input, policy: size, modelOutputLimit: undefined }),
    budgetBytes: () => MAX_SUMMARIZER_TEXT_BYTES,
    ask: async (request) => await askFunction({ effect, name: policy.summarizer as string, needs, request }, input, deps, calls),
  };
}

interface ModelSetup {
  readonly model: Model;
  readonly instruction: string;
  readonly limitTokens: number;
  readonly needs: readonly string[];
}

function withModel({ model, instruction, limitTokens, needs }: ModelSetup, input: SummarizeInput, deps: SummarizeDeps, calls: SummaryCallReport[]): OpenSummarizer {
  const windowTokens = model.window.tokens;
  const lowEffort = hasEffortSetting(model.name);
  // Half of a small window is for what is read.
  const limit = windowTokens === undefined ? limitTokens : Math.min(limitTokens, Math.max(MIN_SUMMARY_TOKENS, Math.floor(windowTokens / 2)));
  return {
    model: model.name,
    limitTokens: limit,
    budgetBytes(frame) {
      if (windowTokens === undefined) return MAX_SUMMARIZER_TEXT_BYTES;
      const frameTokens = Math.ceil(frameBytes({ ...frame, model: model.name, instruction, lowEffort }) / BYTES_PER_TOKEN);
      return Math.min(MAX_SUMMARIZER_TEXT_BYTES, Math.floor((windowTokens - frame.limitTokens - frameTokens - MARGIN_TOKENS) * BYTES_PER_TOKEN));
    },
    ask: async (request) => await askModel({ model, instruction, lowEffort, needs, request }, input, deps, calls),
  };
}

async function modelOf({ provider }: ModelSummarizer, deps: SummarizeDeps, tenant: string): Promise<Model> {
  if (typeof provider === "string") return deps.models.resolve(provider, tenant);
  return typeof provider === "function" ? await provider({ tenant }) : provider;
}
