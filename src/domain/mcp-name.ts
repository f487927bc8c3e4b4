/**
 * Tools of MCP servers are called `mcp__<server>__<tool>` by models. Server and tool follow from the name alone, so grants,
 * taint and replays need nothing but a definition.
 */

/** No two underscores in a row and none at the ends: the first `__` behind a server's name ends it. */
export const mcpServerNamePattern = /^(?=.{1,24}$)[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*$/;

const PREFIX = "mcp__";

/** Of an agent's own tools none may be called so. */
export function isMcpName(name: string): boolean {
  return name.startsWith(PREFIX);
}

/** What all tools of a server begin with. */
export function mcpPrefix(server: string): string {
  return `${PREFIX}${server}__`;
}

export interface McpToolName {
  readonly server: string;
  readonly tool: string;
}

export function mcpToolOf(name: string): McpToolName | undefined {
  if (!isMcpName(name)) return undefined;
  const end = name.indexOf("__", PREFIX.length);
  return end === -1 ? undefined : { server: name.slice(PREFIX.length, end), tool: name.slice(end + 2) };
}

/** What a grant has to cover before a tool is called: `tool:search`, `mcp:github/create_issue`. */
export function toolResource(name: string): string {
  const mcp = mcpToolOf(name);
  return mcp === undefined ? `tool:${name}` : `mcp:${mcp.server}/${mcp.tool}`;
}

/** Where a tool's results come from: `tool:search`, `mcp:github`. */
export function toolOrigin(name: string): string {
  const mcp = mcpToolOf(name);
  return mcp === undefined ? `tool:${name}` : `mcp:${mcp.server}`;
}
