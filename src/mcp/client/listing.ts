/** A server's tools as definitions: named for models, bounded, in one order, so that the same list is the same definition. */
import { createHash } from "node:crypto";
import type { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { ListToolsResultSchema, type Tool } from "@modelcontextprotocol/sdk/types.js";
import { toolDefinition, toolNamePattern, type ToolDefinition, type ToolEffect } from "../../domain/definition.ts";
import { canonicalJson, toJsonValue, wellFormedText, type JsonObject } from "../../domain/json.ts";
import { mcpPrefix } from "../../domain/mcp-name.ts";
import type { Log } from "../../engine/ports.ts";
import type { ServerConfig } from "./spec.ts";

export interface ListedTool {
  /** As the server has it. */
  readonly name: string;
  readonly definition: ToolDefinition;
}

/** By the name that models see. */
export type Listing = ReadonlyMap<string, ListedTool>;

const MAX_TOOLS = 512;
const MAX_PAGES = 64;
/** What is left out here would be sent with every request of every run. */
const MAX_DESCRIPTION_CHARS = 8_000;
const MAX_SCHEMA_BYTES = 64 * 1024;
const MAX_NAME_CHARS = 64;

export async function listTools(client: Client, server: ServerConfig, { log, signal }: { readonly log: Log; readonly signal: AbortSignal }): Promise<Listing> {
  const tools: Tool[] = [];
  let cursor: string | undefined;
  for (let page = 0; page < MAX_PAGES && tools.length < MAX_TOOLS; page++) {
    // Not client.listTools, which compiles each tool's output schema: one made to take for ever would hold up the worker.
    const result = await client.request({ method: "tools/list", ...(cursor === undefined ? {} : { params: { cursor } }) }, ListToolsResultSchema, {
      signal,
      timeout: server.connectTimeoutMs,
    });
    tools.push(...result.tools);
    cursor = result.nextCursor;
    if (cursor === undefined) break;
  }
  if (tools.length > MAX_TOOLS || cursor !== undefined)
    log.warn({ mcpServer: server.name, kept: Math.min(tools.length, MAX_TOOLS) }, "an MCP server lists more tools than are taken");
  const listed = tools.slice(0, MAX_TOOLS).flatMap((tool): ListedTool[] => {
    const made = definitionOf(tool, server);
    if (typeof made !== "string") return [{ name: tool.name, definition: made }];
    log.warn({ mcpServer: server.name, tool: tool.name.slice(0, 200), problem: made }, "a tool of an MCP server is left out");
    return [];
  });
  listed.sort((a, b) => (a.definition.name < b.definition.name ? -1 : 1));
  return new Map(listed.map((tool) => [tool.definition.name, tool]));
}

/** What is compared to see whether a list has changed. */
export function listingText(listing: Listing): string {
  return canonicalJson([...listing.values()] as never);
}

/** The definition, or what is wrong with it. */
function definitionOf(tool: Tool, server: ServerConfig): ToolDefinition | string {
  const { $schema: _, ...schema } = tool.inputSchema;
  const json = toJsonValue(schema);
  if (!json.ok) return `its input schema cannot be stored: at ${json.problem.path}, ${json.problem.problem}`;
  if (Buffer.byteLength(JSON.stringify(json.value)) > MAX_SCHEMA_BYTES) return `its input schema has more than ${MAX_SCHEMA_BYTES} bytes`;
  const description = wellFormedText(tool.description ?? tool.title ?? "").slice(0, MAX_DESCRIPTION_CHARS);
  const parsed = toolDefinition.safeParse({
    name: nameForModels(tool.name, server.name),
    description: description.toWellFormed(),
    input_schema: json.value as JsonObject,
    effect: effectOf(tool, server),
    timeout_ms: server.timeoutMs,
  });
  return parsed.success ? parsed.data : parsed.error.issues.map(({ path, message }) => `${path.join(".")}: ${message}`).join("; ");
}

/** A tool that says nothing may do anything: it is called at most once. */
function effectOf({ annotations }: Tool, server: ServerConfig): ToolEffect {
  if (server.annotations === "ignore") return "once";
  if (annotations?.readOnlyHint === true) return "read";
  return annotations?.idempotentHint === true ? "idempotent" : "once";
}

/** What vendors do not take in a name is replaced, and what is too long cut; a digest keeps two that then look alike apart. */
function nameForModels(tool: string, server: string): string {
  const prefix = mcpPrefix(server);
  const plain = `${prefix}${tool}`;
  if (toolNamePattern.test(plain)) return plain;
  const digest = createHash("sha256").update(tool).digest("hex").slice(0, 8);
  const kept = tool.replaceAll(/[^A-Za-z0-9_-]/g, "_").slice(0, MAX_NAME_CHARS - prefix.length - digest.length - 1);
  return `${prefix}${kept}_${digest}`;
}
