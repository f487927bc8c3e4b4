/** What a starting worker says of its agents. Unsaid, it would be found out by runs that wait, or by a prompt that does not change. */
import { policyWarnings } from "../domain/compaction/policy.ts";
import type { AgentDefinition } from "../domain/definition.ts";
import type { ModelCatalogue } from "../engine/model-port.ts";
import type { Log } from "../engine/ports.ts";

const MODEL_UNAVAILABLE_CODE = "CAPSTAN_MODEL_UNAVAILABLE";

export interface ModelWarningOptions {
  readonly definitions: Iterable<AgentDefinition>;
  readonly models: ModelCatalogue;
  /** Tenants with keys of their own: a model that one of them can use is no mistake. */
  readonly tenants: readonly string[];
  /** The application's own; without one the process's warning, which nobody has to set up to see, is enough. */
  readonly log: Log | undefined;
}

/** Looks models up and sends nothing: an unknown name or a missing key is all that this finds. */
export function warnOfModels({ definitions, models, tenants, log }: ModelWarningOptions): void {
  for (const { name: agent, model: first, fallbacks } of definitions) {
    for (const model of [first, ...(fallbacks ?? [])]) {
      const problem = problemOf(models, model, ["default", ...tenants]);
      if (problem === undefined) continue;
      log?.warn({ agent, model, problem }, "an agent's model cannot be used here: its runs will wait as agent_missing");
      process.emitWarning(`agent ${agent} cannot use its model ${model} here, and its runs will wait as agent_missing: ${problem}`, {
        type: "CapstanWarning",
        code: MODEL_UNAVAILABLE_CODE,
      });
    }
  }
}

/** Settings that work and are likely not meant. */
export function warnOfPolicies(definitions: Iterable<AgentDefinition>, log: Log | undefined): void {
  for (const { name: agent, compaction } of definitions) {
    for (const { path, message } of policyWarnings(compaction)) {
      log?.warn({ agent, field: `compaction.${path}`, problem: message }, "an agent's compaction policy may not do what is meant");
      process.emitWarning(`agent ${agent}: compaction.${path} ${message}`, { type: "CapstanWarning", code: "CAPSTAN_COMPACTION_POLICY" });
    }
  }
}

/** What the first tenant is told; undefined as soon as one of them can use it. An application's own catalogue may throw what it likes. */
function problemOf(models: ModelCatalogue, model: string, tenants: readonly string[]): string | undefined {
  const problems: string[] = [];
  for (const tenant of tenants) {
    try {
      models.resolve(model, tenant);
      return undefined;
    } catch (error) {
      problems.push(error instanceof Error ? error.message : String(error));
    }
  }
  return problems[0];
}

/** New code does not change what runs enqueued by name get until somebody promotes it; whoever has just edited an agent should know. */
export function warnOfUnpromoted(
  here: ReadonlyMap<string, string>,
  promoted: readonly { readonly name: string; readonly promotedSha: string; readonly retired: boolean }[],
  log: Log,
): void {
  for (const { name: agent, promotedSha, retired } of promoted) {
    const sha = here.get(agent);
    if (sha !== undefined && retired) log.warn({ agent }, "an agent of this code is retired: no run is started by its name until it is brought back with capstan agents unretire");
    if (sha === undefined || sha === promotedSha) continue;
    log.warn(
      { agent, sha, promotedSha },
      "an agent's definition in this code is not the promoted one, which runs enqueued by name get: promote it with startWorker({ promote: true }) or --promote",
    );
  }
}
