/** Which tools of which MCP servers an agent has. The servers themselves are configured where the worker is. */
import type { McpUse } from "../engine/code.ts";
import { mcpServerNamePattern } from "../domain/mcp-name.ts";
import { ConfigError } from "./config-error.ts";

/** A server's name is all of its tools; `tools` are names as the server has them, with `*` for any text. */
export type McpUseSpec = string | { readonly server: string; readonly tools?: readonly string[] };

const MAX_SERVERS = 32;

/** Throws ConfigError naming the entry. */
export function parseMcpUses(where: string, specs: readonly McpUseSpec[]): readonly McpUse[] {
  const refuse = (path: string, message: string): ConfigError => new ConfigError(where, [{ path, message }]);
  if (!Array.isArray(specs) || specs.length === 0 || specs.length > MAX_SERVERS)
    throw refuse("mcp", `must be a list of 1 to ${MAX_SERVERS} servers, each a name or { server, tools }`);
  const uses = specs.map((spec: unknown, i): McpUse => {
    const { server, tools = ["*"], ...strange } = (typeof spec === "string" ? { server: spec } : (spec ?? {})) as { server?: unknown; tools?: unknown };
    if (Object.keys(strange).length > 0) throw refuse(`mcp.${i}`, `has fields that are not known: ${Object.keys(strange).join(", ")}; it takes server and tools`);
    if (typeof server !== "string" || !mcpServerNamePattern.test(server))
      throw refuse(`mcp.${i}`, "must name its server: 1 to 24 letters, digits, - and single underscores that stand between others");
    if (!Array.isArray(tools) || tools.length === 0 || !tools.every((tool) => typeof tool === "string" && tool !== ""))
      throw refuse(`mcp.${i}.tools`, 'must be a list of names or patterns, as in ["issues_*"]; leave it out for all tools');
    return { server, tools: tools as string[] };
  });
  const twice = uses.find(({ server }, i) => uses.findIndex((other) => other.server === server) !== i);
  if (twice !== undefined) throw refuse("mcp", `names server ${twice.server} twice; list all of its tools in one entry`);
  return uses;
}
