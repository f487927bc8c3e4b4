/** The numbers that a plan is measured against. All of them are estimates in tokens, on one scale. */
import type { Message } from "../transcript/message.ts";
import { isKnown, messageTokens } from "./footprint.ts";
import type { PlanInput } from "./plan.ts";

/** A summary must free this share of what fired it, and of the view: less costs more than it saves. */
const MIN_FREED_SHARE = 0.05;
/** A short span is not summarized to a tenth of itself. */
const SHORT_SUMMARY_TOKENS = 256;

export interface Room {
  readonly sizes: readonly number[];
  readonly viewTokens: number;
  /** What the head shows again: the pinned task, or the old head without its summary. */
  readonly headTokens: number;
  readonly overheadTokens: number;
  /** Where the whole request must be below after a compaction that fires by itself. */
  readonly ceilingTokens: number | undefined;
  /** Where a request does not fit at all. */
  readonly hardTokens: number | undefined;
  readonly tailBudget: number | undefined;
  readonly minFreedTokens: number;
}

export function roomOf(input: PlanInput): Room {
  const { view, policy, windowTokens, trigger, hard = false } = input;
  const byBytes = isByBytes(input);
  const sizes = view.map((message: Message) => messageTokens(message));
  const viewTokens = sizes.reduce((sum, size) => sum + size, 0);
  const overheadTokens = input.overheadTokens ?? 0;
  const headTokens = input.hasHead || policy.keep_first ? Math.max(0, (sizes[0] ?? 0) - (input.hasHead ? (input.headSummaryTokens ?? 0) : 0)) : 0;
  const window = isKnown(windowTokens) ? windowTokens : undefined;
  const hardTokens = input.hardLineTokens ?? window;
  const isByPercentage = trigger === "auto" && !hard && !byBytes;
  const firesAt = isByPercentage ? (input.firesAtTokens ?? lowest(window === undefined ? undefined : (window * policy.autocompact_at_pct) / 100, policy.at_tokens)) : undefined;
  const bytesCeiling = byBytes && policy.after_bytes !== undefined ? overheadTokens + policy.after_bytes / 4 : undefined;
  const ceilingTokens = lowest(firesAt, bytesCeiling, hardTokens);
  // By percentage a compaction must also move the gauge: with a frame of most of the window, 5 % of the view is nothing.
  // What the gauge is measured by is the cap where that is the lower line: 5 % of a large window is more than a low cap.
  const slack = isByPercentage ? Math.ceil((gaugeTokens(policy, window) ?? viewTokens) * MIN_FREED_SHARE) : 0;
  const minFreedTokens = Math.max(Math.ceil(viewTokens * MIN_FREED_SHARE), slack);
  const free = ceilingTokens === undefined ? undefined : Math.max(0, ceilingTokens - overheadTokens - headTokens - summaryTokens(input, viewTokens - headTokens) - slack);
  return {
    sizes,
    viewTokens,
    headTokens,
    overheadTokens,
    ceilingTokens,
    hardTokens,
    // Half of the window, or of what `after_bytes` allows: a tail that fills its limit alone would fire again at once.
    tailBudget: lowest(free, window === undefined ? undefined : window / 2, bytesCeiling === undefined ? undefined : (bytesCeiling - overheadTokens) / 2),
    minFreedTokens,
  };
}

/** The whole of which the trigger is a share: the window, or `at_tokens` where the view never comes near the window's share. */
function gaugeTokens({ at_tokens, autocompact_at_pct }: PlanInput["policy"], window: number | undefined): number | undefined {
  const isCap = at_tokens !== undefined && (window === undefined || at_tokens < (window * autocompact_at_pct) / 100);
  return isCap ? at_tokens : window;
}

/** What a summary of so much is expected to take. */
export function summaryTokens({ policy }: Pick<PlanInput, "policy">, sourceTokens: number): number {
  const wished = Math.max((sourceTokens * policy.target_percentage) / 100, Math.min(SHORT_SUMMARY_TOKENS, sourceTokens / 2));
  return Math.ceil(Math.min(wished, policy.max_tokens ?? wished));
}

/** Where nobody says: the percentage is off, so that only bytes can have fired. */
export function isByBytes({ policy, trigger, byBytes }: Pick<PlanInput, "policy" | "trigger" | "byBytes">): boolean {
  return trigger === "auto" && (byBytes ?? (!policy.enabled && policy.after_bytes !== undefined));
}

function lowest(...values: readonly (number | undefined)[]): number | undefined {
  const known = values.filter((value) => value !== undefined);
  return known.length === 0 ? undefined : Math.floor(Math.min(...known));
}
