/**
 * How a compaction policy comes down to a child: the spawn's own words over the parent's effective policy over the
 * child's definition, field by field. Only what somebody set takes part; defaults come after it, so that a child's
 * definition fills the gaps that its parent left.
 */
import { modelReadings } from "../grants.ts";
import { mergeCompaction, policyIssues, type CompactionPolicy, type PolicyProblem } from "./policy.ts";

export interface InheritInput {
  /** Of this one spawn. A bare model name in it is of the child's provider, whom it was written for. */
  readonly override?: CompactionPolicy | undefined;
  /** What is in force for the parent, its per-run override and what it inherited itself included; no defaults. */
  readonly parent?: CompactionPolicy | undefined;
  /** Of the child's stored definition. */
  readonly child?: CompactionPolicy | undefined;
  /** Full names; they say of which provider a bare name is. */
  readonly childModel: string;
  readonly parentModel?: string | undefined;
  /**
   * Whether a provider of that name is there, where the caller can ask the catalogue: `llama3:8b` is a bare name with a
   * tag, `lab:small` may be a server's. Without it a name that can be read in both ways is not handed to another provider.
   */
  readonly isProvider?: ((name: string) => boolean) | undefined;
}

export interface IgnoredField {
  readonly field: keyof CompactionPolicy;
  readonly reason: string;
}

export interface InheritedPolicy {
  /** What is in force for the child, and what its own children inherit in turn; undefined when nobody set anything. */
  readonly set: CompactionPolicy | undefined;
  /** Set by somebody and without effect here, to be shown and not guessed. */
  readonly ignored: readonly IgnoredField[];
  /** What is wrong between the fields of the merged policy: each may have been right where it was written. */
  readonly issues: readonly PolicyProblem[];
}

export function inheritPolicy({ override, parent, child, childModel, parentModel, isProvider = () => false }: InheritInput): InheritedPolicy {
  const isForeign = parent?.model !== undefined && override?.model === undefined && isBareElsewhere(parent.model, { childModel, parentModel, isProvider });
  const { model, ...rest } = parent ?? {};
  const set = mergeCompaction(mergeCompaction(child, isForeign ? rest : parent), override);
  const foreign: IgnoredField[] = isForeign
    ? [
        {
          field: "model",
          reason: `${JSON.stringify(model)} is a model of the parent's provider and this agent's is ${providerOf(childModel)}; write it with its provider's prefix to hand it down`,
        },
      ]
    : [];
  return { set, ignored: [...foreign, ...fieldsWithoutEffect(set)], issues: policyIssues(set) };
}

/** A registered summarizer decides itself what it calls, what it says and how long it writes. */
const OF_THE_BUILT_IN = ["model", "instruction", "max_tokens"] as const satisfies readonly (keyof CompactionPolicy)[];

/** Fields that are set and have no effect under the same policy's `summarizer`. */
export function fieldsWithoutEffect(policy: CompactionPolicy | undefined): IgnoredField[] {
  if (policy?.summarizer === undefined) return [];
  const reason = `is for the built-in summarizer and compaction.summarizer is ${JSON.stringify(policy.summarizer)}`;
  return OF_THE_BUILT_IN.filter((field) => policy[field] !== undefined).map((field) => ({ field, reason }));
}

interface ModelNames {
  readonly childModel: string;
  readonly parentModel: string | undefined;
  readonly isProvider: (name: string) => boolean;
}

/** Whether `name` means one of the parent's provider that the child, on another, would look for in the wrong place. */
function isBareElsewhere(name: string, { childModel, parentModel, isProvider }: ModelNames): boolean {
  const own = parentModel === undefined ? undefined : providerOf(parentModel);
  if (own === providerOf(childModel)) return false;
  const prefix = name.includes(":") ? providerOf(name) : undefined;
  // With the parent's own prefix it is a full name, for the child too.
  if (prefix !== undefined && (prefix === own || isProvider(prefix))) return false;
  const readings = modelReadings(name, childModel);
  return readings.length > 1 || readings[0] !== name;
}

const providerOf = (model: string): string => model.slice(0, model.indexOf(":"));
