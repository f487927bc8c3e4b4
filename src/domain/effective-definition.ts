/** A definition as it holds for one run. */
import { mergeBudget } from "./budget.ts";
import { mergeCompaction } from "./compaction/policy.ts";
import type { AgentDefinition } from "./definition.ts";
import type { RunState } from "./fold.ts";
import { grantsOf, narrowGrants } from "./grants.ts";

/** With the compaction and the budget that were set for the run alone, and no more than it was handed down. Everywhere the same: a summary is made under the grants that its run has. */
export function effectiveDefinition(
  stored: AgentDefinition,
  { ownCompaction, ownBudget, handedDown }: Pick<RunState, "ownCompaction" | "ownBudget" | "handedDown">,
): AgentDefinition {
  if (ownCompaction === undefined && ownBudget === undefined && handedDown === undefined) return stored;
  const compaction = mergeCompaction(stored.compaction, ownCompaction);
  const budget = mergeBudget(stored.budget, ownBudget);
  const own = { ...stored, ...(compaction === undefined ? {} : { compaction }), ...(budget === undefined ? {} : { budget }) };
  // A model that the inherited policy names is among what an agent without grants of its own may use.
  return handedDown === undefined ? own : { ...own, grants: narrowGrants(grantsOf(own), handedDown) };
}
