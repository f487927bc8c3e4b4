/**
 * The compaction policy: every field optional, merged per field, one schema for every entrance (definition, run, spawn).
 * Absent is not the same as a default: defaults are applied after the merge.
 */
import { z } from "zod";
import { wholeNumber } from "../ranges.ts";
import { DEFAULT_SUMMARY_TOKENS } from "./size.ts";

export const compactionPolicy = z.strictObject({
  /** Turns the percentage trigger on; an explicit false also switches `after_bytes` off. */
  enabled: z.boolean().optional(),
  /** Share of the context window, in percent, at which compaction fires. */
  autocompact_at_pct: wholeNumber(50, 95).optional(),
  /** Absolute cap in tokens beside the share. */
  at_tokens: wholeNumber(1).optional(),
  /** Fires when the transcript counter exceeds this many bytes. */
  after_bytes: wholeNumber(1).optional(),
  keep_first: z.boolean().optional(),
  keep_last_n: wholeNumber(0).optional(),
  /** Wanted size of the summary, percent of what it replaces. */
  target_percentage: wholeNumber(10, 50).optional(),
  model: z.string().min(1).optional(),
  summarizer: z.string().min(1).optional(),
  instruction: z.string().min(1).optional(),
  max_tokens: wholeNumber(1).optional(),
  prefetch_at_pct: wholeNumber(1, 94).optional(),
});
export type CompactionPolicy = z.infer<typeof compactionPolicy>;

/** True when no field is set: such a policy hashes and merges as none. */
export function isCompactionUnset(policy: CompactionPolicy): boolean {
  return Object.values(policy).every((value) => value === undefined);
}

/** A field that `over` sets wins; the rest stays as in `base`. */
export function mergeCompaction(base: CompactionPolicy | undefined, over: CompactionPolicy | undefined): CompactionPolicy | undefined {
  const set = (p: CompactionPolicy | undefined) => Object.entries(p ?? {}).filter(([, value]) => value !== undefined);
  const merged = Object.fromEntries([...set(base), ...set(over)]) as CompactionPolicy;
  return isCompactionUnset(merged) ? undefined : merged;
}

/**
 * Whether compaction happens by itself under this policy: by percentage (`enabled: true`) or by bytes (`after_bytes`),
 * with an explicit `enabled: false` switching both off. Only then is the growth warning silent (G2).
 */
export function isCompactionConfigured(policy: CompactionPolicy | undefined): boolean {
  if (policy === undefined || policy.enabled === false) return false;
  return policy.enabled === true || policy.after_bytes !== undefined;
}

/** Four UTF-8 bytes a token: what a summary of so many tokens takes in the transcript, roughly. */
const BYTES_PER_TOKEN = 4;

/** The policy with its defaults, in the names of the wire: what `op=self` shows and what a marker records. */
export type ResolvedPolicy = Omit<CompactionPolicy, ResolvedField> & { [F in ResolvedField]: NonNullable<CompactionPolicy[F]> };
type ResolvedField = "enabled" | "autocompact_at_pct" | "keep_first" | "keep_last_n" | "target_percentage";

/** Fields without a default stay absent; `after_bytes` too under an explicit `enabled: false`, which switches it off. */
export function resolvePolicy(policy: CompactionPolicy | undefined): ResolvedPolicy {
  const resolved = { enabled: false, autocompact_at_pct: 80, keep_first: true, keep_last_n: 4, target_percentage: 10, ...mergeCompaction(undefined, policy) } as ResolvedPolicy;
  if (policy?.enabled === false) delete resolved.after_bytes;
  return resolved;
}

export interface PolicyProblem {
  readonly path: keyof CompactionPolicy;
  readonly message: string;
}

/** What is wrong between the fields of a merged policy. Ranges of single fields are the schema's. */
export function policyIssues(policy: CompactionPolicy | undefined): PolicyProblem[] {
  const { autocompact_at_pct, prefetch_at_pct } = resolvePolicy(policy);
  const problems: PolicyProblem[] = [];
  if (prefetch_at_pct !== undefined && prefetch_at_pct >= autocompact_at_pct) {
    problems.push({ path: "prefetch_at_pct", message: `must be below autocompact_at_pct, from 1 to ${autocompact_at_pct - 1}, not ${prefetch_at_pct}` });
  }
  const sizes = bytesAndSummary(policy);
  if (sizes !== undefined && sizes.afterBytes <= sizes.summaryBytes) {
    problems.push({
      path: "after_bytes",
      message: `must be a whole number above ${sizes.summaryBytes} (max_tokens ${sizes.maxTokens} x ${BYTES_PER_TOKEN}), not ${sizes.afterBytes}: the summary alone could be as large; ${advice(sizes.summaryBytes)}`,
    });
  }
  return problems;
}

/** What works but is likely not meant. */
export function policyWarnings(policy: CompactionPolicy | undefined): PolicyProblem[] {
  const sizes = bytesAndSummary(policy);
  if (sizes === undefined || sizes.afterBytes <= sizes.summaryBytes || sizes.afterBytes >= sizes.summaryBytes * 2) return [];
  return [
    {
      path: "after_bytes",
      message: `of ${sizes.afterBytes} is less than twice what a summary may take (${sizes.summaryBytes} bytes), so that it may fire again soon after; ${advice(sizes.summaryBytes)}`,
    },
  ];
}

const advice = (summaryBytes: number): string => `a good value is ${summaryBytes * 4} or more`;

/** Undefined where nothing is to be compared: a summarizer of the user's own decides itself how long it writes. */
function bytesAndSummary(policy: CompactionPolicy | undefined): { readonly afterBytes: number; readonly maxTokens: number; readonly summaryBytes: number } | undefined {
  if (policy?.after_bytes === undefined || policy.summarizer !== undefined) return undefined;
  const maxTokens = policy.max_tokens ?? DEFAULT_SUMMARY_TOKENS;
  return { afterBytes: policy.after_bytes, maxTokens, summaryBytes: maxTokens * BYTES_PER_TOKEN };
}
