/** Whether a compaction is due by itself: by the bytes of the view, or by its share of the window. */
import type { ResolvedPolicy } from "../domain/compaction/policy.ts";
import { hasReached } from "../domain/compaction/footprint.ts";
import type { CompactionTrigger } from "../domain/compaction/types.ts";
import type { Gauge } from "./context-gauge.ts";
import type { Turn } from "./turn.ts";

export interface Due {
  readonly trigger: CompactionTrigger;
  /** The byte counter fired, not the share of the window. */
  readonly byBytes: boolean;
  /** Early: its summary waits until the percentage is reached. */
  readonly prefetch: boolean;
}

export function dueBy(turn: Turn, policy: ResolvedPolicy, gauge: Gauge): Due | undefined {
  if (policy.after_bytes !== undefined && turn.session.transcriptBytes > policy.after_bytes) return { trigger: "auto", byBytes: true, prefetch: false };
  if (!policy.enabled) return undefined;
  if (gauge.isOverHardLine || hasReached(gauge.usedTokens, gauge.firesAtTokens)) return { trigger: "auto", byBytes: false, prefetch: false };
  return hasReached(gauge.usedTokens, gauge.prefetchAtTokens) ? { trigger: "auto", byBytes: false, prefetch: true } : undefined;
}
