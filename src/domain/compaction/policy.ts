/**
 * The compaction policy: every field optional, merged per field, one schema for every entrance (definition, run, spawn).
 * Absent is not the same as a default: defaults are applied after the merge.
 */
import { z } from "zod";
import { wholeNumber } from "../ranges.ts";

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
