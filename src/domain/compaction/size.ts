/** How long a summary may be: the output limit of the call, and the size that the prompt asks for. */
import type { CompactionPolicy } from "./policy.ts";
import type { CompactionTrigger } from "./types.ts";

/** Some 4 KiB of text: what the seed's `after_bytes` advice (twice a summary) is made for. */
export const DEFAULT_SUMMARY_TOKENS = 1_024;
/** Reasoning models spend output on thinking first; 192 tokens were seen to be thought away to the last one. Lower gives empty summaries. */
export const MIN_SUMMARY_TOKENS = 512;
/** For a model whose limit nobody told us: servers refuse a call that asks for more than they can, and a long one helps little. */
export const UNKNOWN_OUTPUT_LIMIT = 4_096;
export const DEFAULT_TARGET_PERCENTAGE = 10;
/** A model told "about N tokens" overshoots often; asked for the whole limit it would be cut off, which costs the call. */
const TARGET_SHARE_OF_LIMIT = 0.8;
/** Less than this holds no goal, no open point and no value. */
const MIN_TARGET_TOKENS = 128;

export interface SummarySizeInput {
  readonly trigger: CompactionTrigger;
  /** The byte counter fired, not the share of the window. */
  readonly byBytes: boolean;
  readonly policy: Pick<CompactionPolicy, "max_tokens" | "target_percentage">;
  /** Estimated tokens of what the summary stands for. */
  readonly replacedTokens: number;
  /** Most output tokens that the summarizer's model gives; undefined when unknown. */
  readonly modelOutputLimit: number | undefined;
}

/**
 * The output limit of the built-in summarizer's call in tokens. `max_tokens` wins; by bytes 1,024; otherwise the wanted
 * share of what is replaced, at least 1,024. Never below 512 nor above what the model can give.
 */
export function summaryLimit({ trigger, byBytes, policy, replacedTokens, modelOutputLimit }: SummarySizeInput): number {
  const byCounter = byBytes && trigger === "auto";
  const wished = policy.max_tokens ?? (byCounter ? DEFAULT_SUMMARY_TOKENS : Math.max(DEFAULT_SUMMARY_TOKENS, shareOf(replacedTokens, policy.target_percentage)));
  const most = modelOutputLimit ?? (policy.max_tokens === undefined ? UNKNOWN_OUTPUT_LIMIT : Number.POSITIVE_INFINITY);
  return Math.min(flooredLimit(wished), most);
}

/** The size that the prompt names: the wanted share of what is replaced, and always less than the limit. */
export function summaryTarget(
  limitTokens: number,
  { replacedTokens, targetPercentage }: { readonly replacedTokens: number; readonly targetPercentage: number | undefined },
): number {
  return namedSize(limitTokens, Math.max(MIN_TARGET_TOKENS, shareOf(replacedTokens, targetPercentage)));
}

/** @param wishedTokens undefined: as long as the limit allows. */
export function namedSize(limitTokens: number, wishedTokens: number | undefined): number {
  const most = Math.max(1, Math.floor(limitTokens * TARGET_SHARE_OF_LIMIT));
  return wishedTokens === undefined || !Number.isFinite(wishedTokens) ? most : Math.max(1, Math.min(most, Math.floor(wishedTokens)));
}

export function flooredLimit(tokens: number): number {
  return Math.max(MIN_SUMMARY_TOKENS, Math.floor(tokens));
}

function shareOf(replacedTokens: number, percentage = DEFAULT_TARGET_PERCENTAGE): number {
  const tokens = Number.isFinite(replacedTokens) ? Math.max(0, replacedTokens) : 0;
  return Math.floor((tokens * Math.min(50, Math.max(10, percentage))) / 100);
}
