/** The user's agents: a module that exports them, and models that are not known by name. */
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import type { Agent } from "../agents/agent.ts";
import type { McpServerSpec } from "../mcp/client/spec.ts";
import type { ModelCatalogueOptions } from "../providers/catalogue.ts";
import { CliError } from "./exit.ts";

export interface AgentsModule {
  readonly agents: readonly Agent[];
  /** The module's own `models`, by full name. */
  readonly models: NonNullable<ModelCatalogueOptions["models"]>;
  /** The module's own `mcp`: servers by name. */
  readonly mcp: Readonly<Record<string, McpServerSpec>>;
}

/**
 * Loads modules: every exported agent counts, alone or in a list, whatever its export is called. Throws AGENTS_UNREADABLE
 * and AGENTS_MISSING.
 */
export async function loadAgents(paths: readonly string[]): Promise<AgentsModule> {
  const agents = new Set<Agent>();
  const models: Record<string, never> = {};
  const mcp: Record<string, never> = {};
  for (const path of paths) {
    const exported = await importModule(path);
    const found = Object.values(exported)
      .flatMap((value) => (Array.isArray(value) ? value : [value]))
      .filter(isAgent);
    if (found.length === 0) {
      throw new CliError("AGENTS_MISSING", `${path} exports no agent: export what agent({...}) gives, or a list of them (export default [researcher, writer])`);
    }
    for (const agent of found) agents.add(agent);
    Object.assign(models, exported["models"]);
    Object.assign(mcp, exported["mcp"]);
  }
  return { agents: [...agents], models, mcp };
}

async function importModule(path: string): Promise<Record<string, unknown>> {
  try {
    return (await import(pathToFileURL(resolve(path)).href)) as Record<string, unknown>;
  } catch (error) {
    throw new CliError("AGENTS_UNREADABLE", `cannot load ${path}: ${error instanceof Error ? error.message : String(error)}`, { cause: error });
  }
}

function isAgent(value: unknown): value is Agent {
  if (typeof value !== "object" || value === null) return false;
  const { name, definition, code, parseInput } = value as Partial<Agent>;
  return typeof name === "string" && typeof definition === "object" && typeof code === "object" && typeof parseInput === "function";
}
