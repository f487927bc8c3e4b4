/**
 * The `agent` tool. Everything about every child is checked here, before any of them exists; they are then created by the
 * event that says that the call waits for them, in its commit (migrations/0003: spawn_children).
 */
import { inheritPolicy } from "../domain/compaction/inherit.ts";
import { compactionPolicy, type CompactionPolicy } from "../domain/compaction/policy.ts";
import { DEFAULT_SPAWN_CHILDREN, DEFAULT_SPAWN_CONCURRENCY, DEFAULT_SPAWN_DEPTH, type AgentDefinition } from "../domain/definition.ts";
import { CapstanError } from "../domain/error.ts";
import type { CallWait } from "../domain/event.ts";
import { grantsOf, isGranted } from "../domain/grants.ts";
import { toJsonValue, type JsonObject, type JsonValue } from "../domain/json.ts";
import { handDown } from "./budget-step.ts";
import { Deferred } from "./deferred.ts";
import type { AgentInput } from "./engine-tool-inputs.ts";
import { checkAgainst, issuesText } from "../domain/json-schema.ts";
import type { Turn } from "./turn.ts";

type Child = Extract<CallWait, { kind: "children" }>["children"][number];
type Wanted = { readonly agent: string; readonly input?: unknown; readonly compaction?: Readonly<Record<string, unknown>> | undefined };

/** The model reads it: each child that cannot be started, by its index, and why. Nothing was started. */
export class SpawnRefusedError extends CapstanError {
  override readonly name = "SpawnRefusedError";
  readonly code: "SPAWN_INVALID" | "SPAWN_LIMIT" | "SPAWN_DEPTH";
  constructor(code: SpawnRefusedError["code"], message: string) {
    super(message);
    this.code = code;
  }
}

export async function spawnChildren(turn: Turn, input: AgentInput): Promise<Deferred> {
  const { definition, row } = turn.session.memory;
  if (definition === undefined) throw new Error("a tool is executed only once its run's definition is known");
  const { max_depth = DEFAULT_SPAWN_DEPTH, max_children = DEFAULT_SPAWN_CHILDREN, concurrency = DEFAULT_SPAWN_CONCURRENCY } = definition.spawn ?? {};
  const wanted = wantedChildren(input);
  if (wanted.length > max_children) {
    throw new SpawnRefusedError(
      "SPAWN_LIMIT",
      `one call may start ${max_children} children, not ${wanted.length}; none was started. Start them in several calls, one after the other.`,
    );
  }
  if (row.depth + 1 > max_depth) {
    throw new SpawnRefusedError(
      "SPAWN_DEPTH",
      `children may be started down to depth ${max_depth}, and this run is at depth ${row.depth}; none was started. Do the work yourself.`,
    );
  }
  const problems: string[] = [];
  const children: Child[] = [];
  for (const [index, child] of wanted.entries()) {
    const made = await checkChild(turn, definition, child);
    if (typeof made === "string") problems.push(wanted.length === 1 ? made : `child ${index}: ${made}`);
    else children.push(made);
  }
  const share = handDown(
    turn,
    definition,
    children.map(({ run_id: id }) => id),
  );
  if ("refused" in share && problems.length === 0) throw new SpawnRefusedError("SPAWN_LIMIT", `${share.refused}; none was started. Do the rest yourself, briefly.`);
  if (problems.length > 0) throw new SpawnRefusedError("SPAWN_INVALID", `none of the ${wanted.length} children was started: ${problems.join("; ")}`);
  return new Deferred({ kind: "children", concurrency, children: children.map((child) => ({ ...child, ...share })) });
}

function wantedChildren({ op, agent, input, compaction, children }: AgentInput): readonly Wanted[] {
  if (op === "parallel_spawn") {
    if (children === undefined || children.length === 0) throw new SpawnRefusedError("SPAWN_INVALID", "op=parallel_spawn needs `children`, a list of {agent, input}");
    return children;
  }
  if (agent === undefined) throw new SpawnRefusedError("SPAWN_INVALID", "op=spawn needs `agent`, the name of the agent to start");
  return [{ agent, input, compaction }];
}

/** The child as it is journaled, or what is wrong with it. */
async function checkChild(turn: Turn, parent: AgentDefinition, { agent, input, compaction }: Wanted): Promise<Child | string> {
  const allowed = parent.spawn?.agents ?? [];
  const mayStart = (allowed.includes("*") || allowed.includes(agent)) && isGranted(grantsOf(parent), `agent:${agent}`);
  if (!mayStart) return `agent ${JSON.stringify(agent.slice(0, 100))} is not among those you may start (${allowed.join(", ")})`;
  const found = await turn.deps.definitions.promoted(agent);
  if (found === undefined) return `there is no agent ${JSON.stringify(agent)}`;
  if (found.isRetired) return `agent ${agent} is retired and starts no more runs`;
  const { definition: child, sha } = found;
  const json = input === undefined ? ({ ok: true, value: "" } as const) : toJsonValue(input);
  if (!json.ok) return `its input cannot be stored: at ${json.problem.path}, ${json.problem.problem}`;
  if (child.input_schema !== undefined) {
    const checked = checkAgainst(child.input_schema, json.value);
    if (!checked.ok) return `its input does not fit agent ${agent}: ${issuesText(checked.issues)}`;
  }
  const override = compactionPolicy.safeParse(compaction ?? {});
  if (!override.success) return override.error.issues.map((issue) => `compaction.${issue.path.join(".")} ${issue.message}`).join("; ");
  // The parent's definition is the effective one: what was set for its run alone, and by its own parent, is in it.
  const { set, issues } = inheritPolicy({
    override: override.data,
    parent: parent.compaction,
    child: child.compaction,
    childModel: child.model,
    parentModel: parent.model,
  });
  if (issues.length > 0) return issues.map(({ path, message }) => `compaction.${path} ${message}`).join("; ");
  const deadlineMs = child.limits?.deadline_ms;
  return {
    run_id: turn.deps.newRunId(),
    agent,
    definition_sha: sha,
    input: json.value satisfies JsonValue,
    ...(isInherited(set, child.compaction) ? { compaction: set as unknown as JsonObject } : {}),
    // Without grants of its own the parent hands down what it was handed itself.
    ...(parent.grants === undefined ? {} : { grants: [...parent.grants] }),
    ...(deadlineMs === undefined ? {} : { deadline: new Date(turn.now.getTime() + deadlineMs).toISOString() }),
  };
}

/** A child that inherits nothing is journaled as it was before policies came down. */
function isInherited(set: CompactionPolicy | undefined, own: CompactionPolicy | undefined): boolean {
  return set !== undefined && JSON.stringify(set) !== JSON.stringify(own ?? {});
}
