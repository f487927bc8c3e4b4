/**
 * When compaction may begin by itself. States of a run, as far as they are looked at here:
 * - percentage: not in two turns running and not in the turn after a skip or a failure, so that new tokens have come. What was skipped or failed would be skipped or fail again, and a gauge that compaction does not lower (a system
 *   prompt of 85 % of the window) would otherwise cost a summary every turn.
 * - bytes: once a turn. A summary that is larger than `after_bytes` is tried again at the next turn at once; what can
 *   never help (a single newest message that alone is too large) is skipped by the plan, without a call.
 * - breaker: three applied within six turns is every other turn for as long as the run lives. Auto ends there, for both.
 *   Less strict would let a run spend more on summaries than on its task before anybody looks; stricter would stop runs
 *   whose results each fill a third of the window, to which compaction every third turn is right.
 * Manual, self and overflow are not asked here: somebody wants them.
 */
import type { JsonObject } from "../json.ts";
import type { CompactionReason } from "./types.ts";

export const BREAKER_APPLIED = 3;
export const BREAKER_TURNS = 6;

export interface Readiness {
  readonly history: {
    /** Turns at whose top a compaction was applied, oldest first; the last few are enough. */
    readonly appliedTurns: readonly number[];
    /** The same for the last skip or failure. */
    readonly unappliedTurn: number | undefined;
  };
  /** The turn that is about to begin, counted as in `history`. */
  readonly turn: number;
  readonly byBytes: boolean;
}

export type MayCompact =
  | { readonly ok: true }
  /** Without a reason: not at this turn, and nothing to tell anybody. */
  | { readonly ok: false; readonly reason?: Extract<CompactionReason, "breaker_open">; readonly detail?: JsonObject };

export function mayCompact({ history, turn, byBytes }: Readiness): MayCompact {
  const { appliedTurns, unappliedTurn } = history;
  const lately = appliedTurns.slice(-BREAKER_APPLIED);
  if (lately.length === BREAKER_APPLIED && (lately.at(-1) as number) - (lately[0] as number) < BREAKER_TURNS)
    return { ok: false, reason: "breaker_open", detail: openDetail(lately) };
  const last = Math.max(appliedTurns.at(-1) ?? Number.NEGATIVE_INFINITY, unappliedTurn ?? Number.NEGATIVE_INFINITY);
  return { ok: byBytes ? turn > last : turn > last + 1 };
}

function openDetail(appliedTurns: readonly number[]): JsonObject {
  return {
    applied_turns: appliedTurns,
    fix:
      `compaction was applied ${BREAKER_APPLIED} times within ${BREAKER_TURNS} turns and does not make room for long: use a model with a larger window, ` +
      "fewer or smaller tools, a lower keep_last_n, or smaller results (max_result_bytes, claimCheck)",
  };
}
