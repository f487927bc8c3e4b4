/** Token counts as a vendor reports them, brought to one scale. Absent means that the vendor did not say. */
import { z } from "zod";

/**
 * `scale` says whose counting the numbers are: `provider` (reported), `estimate` (ours) or `offline` (an offline model's
 * own word count). Numbers of different scales are never added into one gauge.
 */
export const tokenScale = z.enum(["provider", "estimate", "offline"]);
export type TokenScale = z.infer<typeof tokenScale>;

export const usageSchema = z.object({
  /** All input tokens, cached ones included: the prompt's footprint in the window. */
  input: z.number().nonnegative(),
  output: z.number().nonnegative(),
  cache_read: z.number().nonnegative().optional(),
  cache_write: z.number().nonnegative().optional(),
  reasoning: z.number().nonnegative().optional(),
  scale: tokenScale,
});
export type Usage = z.infer<typeof usageSchema>;

export type UsageTotals = {
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly cacheReadTokens: number;
  readonly cacheWriteTokens: number;
  readonly costUsdMicros: number;
};

export const noUsage: UsageTotals = { inputTokens: 0, outputTokens: 0, cacheReadTokens: 0, cacheWriteTokens: 0, costUsdMicros: 0 };

export function addUsage(totals: UsageTotals, usage: Usage, costUsdMicros: number): UsageTotals {
  return {
    inputTokens: totals.inputTokens + usage.input,
    outputTokens: totals.outputTokens + usage.output,
    cacheReadTokens: totals.cacheReadTokens + (usage.cache_read ?? 0),
    cacheWriteTokens: totals.cacheWriteTokens + (usage.cache_write ?? 0),
    costUsdMicros: totals.costUsdMicros + costUsdMicros,
  };
}
