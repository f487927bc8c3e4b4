/**
 * What an agent may use. A grant is a pattern over resources such as `model:anthropic:claude-opus-5`, `tool:search`,
 * `mcp:github/create_issue`, `summarizer:built_in`; `*` stands for any text, also none.
 */
import { z } from "zod";
import type { AgentDefinition } from "./definition.ts";
import { toolResource } from "./mcp-name.ts";

/** The kind is spelled out in each pattern: a bare `*` would also grant kinds that are invented later. */
export const grantPattern = z.string().regex(/^(model|tool|mcp|summarizer|agent):\S+$/, 'must be like "model:anthropic:*", "tool:*", "mcp:github/*" or "summarizer:*"');

/** The summarizer that is used where a policy names none. */
export const BUILT_IN_SUMMARIZER = "built_in";

export function isGranted(patterns: readonly string[], resource: string): boolean {
  return patterns.some((pattern) => covers(pattern, resource));
}

/**
 * Whether everything that `child` grants is also granted by `parent`: what a spawn or a fork may hand down. Exact, not
 * only on the safe side: a `*` of the child is a letter that nothing but a `*` of the parent can stand for.
 */
export function isNarrower(child: readonly string[], parent: readonly string[]): boolean {
  return child.every((pattern) => parent.some((wider) => covers(wider, pattern.replaceAll("*", ANYTHING))));
}

/**
 * What both grant: of two patterns the one that the other covers. Two that merely overlap grant nothing together: a
 * pattern for just their common part cannot always be written.
 */
export function narrowGrants(own: readonly string[], handedDown: readonly string[]): string[] {
  return [...new Set([...own.filter((pattern) => isNarrower([pattern], handedDown)), ...handedDown.filter((pattern) => isNarrower([pattern], own))])];
}

/** A character that no resource holds (they have no white space), in the place of a `*` that is matched itself. */
const ANYTHING = "\n";

/** Greedy from star to star: linear in practice, and a pattern from a definition can never be slow the way a regular expression can. */
function covers(pattern: string, text: string): boolean {
  const [head = "", ...rest] = pattern.split("*");
  if (rest.length === 0) return pattern === text;
  if (!text.startsWith(head)) return false;
  let at = head.length;
  const tail = rest.pop() ?? "";
  for (const middle of rest) {
    const found = text.indexOf(middle, at);
    if (found === -1) return false;
    at = found + middle.length;
  }
  return text.length - tail.length >= at && text.endsWith(tail);
}

const known = new WeakMap<AgentDefinition, readonly string[]>();

/** What a definition may use: its grants, or, when it has none, all that it names itself. */
export function grantsOf(definition: AgentDefinition): readonly string[] {
  let grants = known.get(definition);
  if (grants === undefined) {
    grants = definition.grants ?? namedBy(definition);
    known.set(definition, grants);
  }
  return grants;
}

/**
 * A model that a run's or a spawn's policy names is not among them unless the definition names it too: a caller must not
 * send a transcript to a provider that the agent's owner has not chosen. A summarizer may always be named: only
 * registered ones exist, and registering is the operator's act.
 */
function namedBy({ model, fallbacks = [], tools, compaction, spawn }: AgentDefinition): string[] {
  const summaryModel = compaction?.model === undefined ? [] : modelReadings(compaction.model, model);
  return [
    ...[model, ...fallbacks, ...summaryModel].map((name) => `model:${name}`),
    ...tools.map((tool) => toolResource(tool.name)),
    ...(spawn?.agents ?? []).map((name) => `agent:${name}`),
    "summarizer:*",
  ];
}

/** Of src/providers/catalogue.ts; servers and models that an operator adds have names of their own. */
const PROVIDERS = new Set(["anthropic", "openai", "openai-chat", "ollama", "offline"]);

/**
 * Full names that a policy's model may mean, the likeliest first: a bare one is of the run's own provider, one with a
 * prefix says which. `llama3:8b` is bare, with a tag, unless somebody named a server `llama3`: only the catalogue knows.
 */
export function modelReadings(name: string, runModel: string): readonly [string, ...string[]] {
  const own = runModel.slice(0, runModel.indexOf(":"));
  const prefix = /^([a-z][a-z0-9_-]*):./.exec(name)?.[1];
  if (prefix === undefined) return [`${own}:${name}`];
  return PROVIDERS.has(prefix) || prefix === own ? [name] : [name, `${own}:${name}`];
}
