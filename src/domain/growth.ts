/** When a transcript's size is worth a word: pure functions of the counter (G1, G5, G7). Who says it is engine/growth-warning.ts. */
import { isCompactionConfigured } from "./compaction/policy.ts";
import type { AgentDefinition } from "./definition.ts";

/**
 * 256 KiB, about 64k tokens. In a layout that journals whole inputs this is turn 107 and 16 MB of state of an ordinary
 * run, when compacting is still cheap; 128 KiB would be noise, 1 MB past Postgres's JSONB cap (docs/scaling.md).
 */
export const DEFAULT_STATE_GROWTH_WARN_BYTES = 262_144;
export const CRITICAL_TRANSCRIPT_BYTES = 16 * 1024 * 1024;
export const CRITICAL_JOURNAL_BYTES = 64 * 1024 * 1024;
/** Percent of the context window. */
export const CRITICAL_WINDOW_PCT = 80;

/** 0 none, 1 warned, 2 critical. Kept on the run's row, so that everybody sees it. */
export type GrowthLevel = 0 | 1 | 2;

/** The counter above which this agent's owner is warned; undefined when silenced or when compaction takes care of it. */
export function warnThreshold(definition: AgentDefinition): number | undefined {
  if (isCompactionConfigured(definition.compaction)) return undefined;
  if (definition.warn_transcript_bytes === false) return undefined;
  return definition.warn_transcript_bytes ?? DEFAULT_STATE_GROWTH_WARN_BYTES;
}

export interface GrowthNumbers {
  readonly transcriptBytes: number;
  readonly journalBytes: number;
  readonly contextTokens: number | undefined;
  readonly windowTokens: number | undefined;
}

export function isCritical(n: GrowthNumbers): boolean {
  if (n.transcriptBytes > CRITICAL_TRANSCRIPT_BYTES || n.journalBytes > CRITICAL_JOURNAL_BYTES) return true;
  return n.contextTokens !== undefined && n.windowTokens !== undefined && n.contextTokens * 100 >= n.windowTokens * CRITICAL_WINDOW_PCT;
}

export function growthLevel(definition: AgentDefinition, n: GrowthNumbers): GrowthLevel {
  if (isCritical(n)) return 2;
  const threshold = warnThreshold(definition);
  return threshold !== undefined && n.transcriptBytes > threshold ? 1 : 0;
}
