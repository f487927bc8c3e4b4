/** What the fields of a forked definition must be to each other, and that a fork grants nothing that its base did not. */
import { budgetIssues } from "./budget.ts";
import { policyIssues } from "./compaction/policy.ts";
import { CONTEXT_TOOL, type AgentDefinition, type ToolDefinition } from "./definition.ts";
import { grantsOf, isGranted, isNarrower } from "./grants.ts";
import type { JsonObject } from "./json.ts";
import type { DefinitionIssue } from "./overlay.ts";

/** By these an agent sees what is kept out of its transcript: their own results are never withheld. */
const READERS = [CONTEXT_TOOL, "read_blob"];

/** @param overlay what was changed, by field. */
export function forkIssues(base: AgentDefinition, fork: AgentDefinition, overlay: JsonObject): DefinitionIssue[] {
  return [
    ...policyIssues(fork.compaction).map(({ path, message }) => ({ path: `compaction.${path}`, message })),
    ...budgetIssues(fork.budget).map(({ path, message }) => ({ path: `budget.${path}`, message })),
    ...modelIssues(fork),
    ...claimCheckIssues(fork),
    ...approvalIssues(base, fork),
    ...spawnIssues(base, fork),
    ...grantIssues(base, fork, overlay),
  ];
}

function modelIssues({ model, fallbacks = [] }: AgentDefinition): DefinitionIssue[] {
  const named = [["model", model], ...fallbacks.map((name, i) => [`fallbacks.${i}`, name] as const)] as const;
  return named
    .filter(([, name]) => !/^[a-z][a-z0-9_-]*:.+$/.test(name))
    .map(([path, name]) => ({ path, message: `${JSON.stringify(name)} must name its provider, as in "anthropic:…", "openai:…", "ollama:…" or "offline:auditor"` }));
}

function claimCheckIssues({ claim_check, tools }: AgentDefinition): DefinitionIssue[] {
  const listed = claim_check?.tools ?? [];
  const strangers = listed.filter((tool) => !tools.some(({ name }) => name === tool));
  const readers = listed.filter((tool) => READERS.includes(tool));
  return [
    ...(strangers.length > 0 ? [{ path: "claim_check.tools", message: `names ${strangers.join(", ")}, which the fork does not have` }] : []),
    ...(readers.length > 0 ? [{ path: "claim_check.tools", message: `names ${readers.join(", ")}, by which an agent sees what is kept from it; list the tools that work` }] : []),
  ];
}

/** Whoever may fork may not do away with the people who are asked, nor answer for them by a clock. */
function approvalIssues(base: AgentDefinition, fork: AgentDefinition): DefinitionIssue[] {
  const kept = fork.tools.map(({ name }) => name);
  const strangers = (fork.approvals?.tools ?? []).filter((tool) => tool !== "*" && !kept.includes(tool));
  const freed: string[] = [];
  const laxer: string[] = [];
  for (const tool of fork.tools) {
    const [before, after] = [ruleOf(base, tool), ruleOf(fork, tool)];
    if (before === undefined) continue;
    if (after === undefined || (before.always && !after.always)) freed.push(tool.name);
    else if (after.approvesAfterMs < before.approvesAfterMs) laxer.push(tool.name);
  }
  return [
    ...(strangers.length > 0 ? [{ path: "approvals.tools", message: `names ${strangers.join(", ")}, which the fork does not have` }] : []),
    ...(freed.length > 0 ? [{ path: "approvals.tools", message: `would let ${freed.join(", ")} run unasked; a fork may only add to what waits for a person` }] : []),
    ...(laxer.length > 0 ? [{ path: "approvals.on_expiry", message: `would approve ${laxer.join(", ")} when nobody has decided, or sooner than before; a fork may not` }] : []),
  ];
}

/** What is asked before a tool is executed: always, or by its predicate; and after how long nobody's word counts as a yes. */
function ruleOf({ approvals }: AgentDefinition, tool: ToolDefinition): { readonly always: boolean; readonly approvesAfterMs: number } | undefined {
  const isListed = approvals !== undefined && (approvals.tools.includes("*") || approvals.tools.includes(tool.name));
  const rule = isListed ? approvals : tool.approval;
  if (rule === undefined) return undefined;
  const approves = rule.on_expiry === "approve" && rule.expires_ms !== undefined;
  return { always: isListed || tool.approval?.when !== "predicate", approvesAfterMs: approves ? (rule.expires_ms as number) : Number.POSITIVE_INFINITY };
}

/** By this tool an agent starts others. It comes with `spawn`, and its input schema with the code. */
const SPAWN_TOOL = "agent";

function spawnIssues({ spawn: before }: AgentDefinition, { spawn, tools }: AgentDefinition): DefinitionIssue[] {
  const hasTool = tools.some(({ name }) => name === SPAWN_TOOL);
  if (spawn === undefined) {
    return before !== undefined && hasTool ? [{ path: "spawn", message: `cannot be unset while tool ${SPAWN_TOOL} is kept; leave it out of tools` }] : [];
  }
  if (before === undefined) return [{ path: "spawn", message: `cannot be added: tool ${SPAWN_TOOL}, by which agents are started, comes with the agent's code` }];
  const added = before.agents.includes("*") ? [] : spawn.agents.filter((name) => !before.agents.includes(name));
  return [
    ...(added.length > 0 ? [{ path: "spawn.agents", message: `would add ${added.join(", ")}; a fork may only narrow them, which are ${before.agents.join(", ")}` }] : []),
    ...(hasTool ? [] : [{ path: "spawn", message: `has no effect without tool ${SPAWN_TOOL}; unset it, or keep the tool` }]),
  ];
}

function grantIssues(base: AgentDefinition, fork: AgentDefinition, overlay: JsonObject): DefinitionIssue[] {
  // What the fork would be granted if it said nothing about it: its base's grants, or, without any, what it names.
  const { grants: _, ...rest } = fork;
  const inherited = grantsOf(base.grants === undefined ? rest : { ...rest, grants: base.grants });
  const wider = grantsOf(fork).filter((pattern) => !isNarrower([pattern], inherited));
  if (wider.length > 0) {
    return [{ path: "grants", message: `would add ${wider.join(", ")}; a fork may only narrow what is granted, which is ${inherited.join(", ")}` }];
  }
  if (fork.grants === undefined) return [];
  const granted = fork.grants;
  // A model that is not granted is refused at every call, each time anew.
  const named = [["model", fork.model], ...(fork.fallbacks ?? []).map((name, i) => [`fallbacks.${i}`, name] as const)] as const;
  const isTouched = "grants" in overlay || "model" in overlay || "fallbacks" in overlay;
  return named
    .filter(([, name]) => isTouched && !isGranted(granted, `model:${name}`))
    .map(([path, name]) => ({
      path,
      message: `${JSON.stringify(name)} is not granted: of models there are ${granted.filter((pattern) => pattern.startsWith("model:")).join(", ") || "none"}`,
    }));
}
