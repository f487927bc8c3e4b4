/** A tool of an MCP server as the engine runs it. The definition is the run's own, whatever its server says by now. */
import type { ToolDefinition, ToolEffect } from "../../domain/definition.ts";
import { isGranted } from "../../domain/grants.ts";
import type { JsonObject } from "../../domain/json.ts";
import { DEFAULT_TOOL_TIMEOUT_MS } from "../../domain/limits.ts";
import type { ToolCode } from "../../engine/code.ts";
import type { ServerConnection } from "./connection.ts";
import type { ListedTool } from "./listing.ts";
import { outputOf } from "./result.ts";

const caution: Readonly<Record<ToolEffect, number>> = { read: 0, idempotent: 1, once: 2 };

export function remoteTool(
  connection: ServerConnection,
  definition: ToolDefinition,
  { agent, patterns }: { readonly agent: string; readonly patterns: readonly string[] },
): ToolCode {
  const check = ({ name, definition: offered }: ListedTool): string | undefined => {
    if (!isGranted(patterns, name)) return `is not among those that agent ${agent} has of its server any more`;
    // After a crash it would be repeated, as this run's definition promises, and do its work twice.
    if (caution[offered.effect] > caution[definition.effect]) return "has side effects by now, which this run's definition does not know of; a new run will";
    return undefined;
  };
  return {
    definition,
    // The server is the judge of its arguments: a pattern of its schema could hold up the worker for minutes.
    check: (input) =>
      typeof input === "object" && input !== null && !Array.isArray(input) ? { ok: true, value: input } : { ok: false, issues: [{ path: "", message: "must be an object" }] },
    async execute(input, { signal, saveFile }) {
      const result = await connection.call({
        tool: definition.name,
        check,
        input: input as JsonObject,
        signal,
        timeoutMs: definition.timeout_ms ?? DEFAULT_TOOL_TIMEOUT_MS,
        isRepeatable: definition.effect !== "once",
      });
      return await outputOf(result, definition.name, saveFile);
    },
  };
}
