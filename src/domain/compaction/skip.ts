/** Why a plan does nothing: the reason, the numbers it is decided by, and the setting that would help. */
import type { JsonObject } from "../json.ts";
import type { PlanInput } from "./plan.ts";
import { isByBytes, type Room } from "./room.ts";
import type { CompactionReason } from "./types.ts";
import type { Unit } from "./units.ts";

export interface SkipPlan {
  readonly kind: "skip";
  readonly reason: CompactionReason;
  readonly detail: JsonObject & { readonly fix: string };
}

export function skipWith(reason: CompactionReason, detail: SkipPlan["detail"]): SkipPlan {
  return { kind: "skip", reason, detail };
}

/** The advice names the setting that the limit comes from. */
export function singleMessage(input: Pick<PlanInput, "policy" | "trigger" | "byBytes">, detail: JsonObject): SkipPlan {
  const setting = isByBytes(input) ? "raise after_bytes" : input.policy.at_tokens === undefined ? "use a model with a larger window" : "raise at_tokens";
  return skipWith("single_message", { ...detail, fix: `the newest message alone is too large: limit results (max_result_bytes, claimCheck), or ${setting}` });
}

/** What no cut can help: a frame that reaches the trigger alone, or a user message that must stay and does not fit. */
export function tooLarge(input: PlanInput, room: Room, units: readonly Unit[]): SkipPlan | undefined {
  const { view, policy, hasHead, places } = input;
  const { overheadTokens, headTokens, ceilingTokens, hardTokens } = room;
  const composition: JsonObject = { overhead_tokens: overheadTokens, head_tokens: headTokens, view_tokens: room.viewTokens };
  if (input.trigger === "auto" && input.hard !== true && ceilingTokens !== undefined && overheadTokens + headTokens >= ceilingTokens) {
    return skipWith("irreducible", {
      ...composition,
      ceiling_tokens: ceilingTokens,
      fix: "instructions, tools and task alone reach the trigger: shorten them, raise autocompact_at_pct, at_tokens or after_bytes, or use a model with a larger window",
    });
  }
  // Once the model has read and answered it, it is no longer the newest, and goes like the rest.
  const newestTokens = room.sizes.at(-1) ?? 0;
  if (isByBytes(input) && input.hard !== true && newestTokens * 4 >= (policy.after_bytes ?? Number.POSITIVE_INFINITY))
    return singleMessage(input, { ...composition, message_tokens: newestTokens, after_bytes: policy.after_bytes as number });
  if (hardTokens === undefined) return undefined;
  const newest = units.at(-1);
  const stays = [...(hasHead || policy.keep_first ? [0] : []), ...(newest?.kind === "user" ? [newest.start] : [])];
  const at = stays.find((index) => view[index] !== undefined && overheadTokens + (room.sizes[index] as number) >= hardTokens);
  if (at === undefined) return undefined;
  return skipWith("irreducible", {
    ...composition,
    message_tokens: room.sizes[at] as number,
    seq: places[at]?.first ?? 0,
    hard_line_tokens: hardTokens,
    fix: "one user message does not fit into the context window with instructions and tools: send less at once, or use a model with a larger window",
  });
}
