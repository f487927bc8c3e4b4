/** The MCP server by which an assistant works with runs: lists what its access allows, and refuses the rest with our codes. */
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { CallToolRequestSchema, ListToolsRequestSchema, type CallToolResult, type Tool } from "@modelcontextprotocol/sdk/types.js";
import { z } from "zod";
import { fromPostgres } from "../../client/errors.ts";
import { CapstanError } from "../../domain/error.ts";
import type { JsonObject } from "../../domain/json.ts";
import type { Log } from "../../engine/ports.ts";
import { VERSION } from "../../version.ts";
import { ForbiddenError, mayUse, type McpAccess } from "./access.ts";
import { actTools } from "./act-tools.ts";
import { readTools } from "./read-tools.ts";
import type { McpBackend, RunTool } from "./run-tool.ts";

export interface McpServerOptions extends McpBackend {
  /** Asked at every request: a token that was revoked meanwhile is good for nothing more. */
  access(): Promise<McpAccess>;
  readonly log: Log;
}

const runTools: readonly RunTool[] = [...readTools, ...actTools];

const INSTRUCTIONS =
  "Runs of AI agents: start them, follow them, steer them. Runs go on without you: start one with an idempotency_key, then call follow_run with wait_ms until its state is completed, failed, cancelled or waiting.";

export function createMcpServer(options: McpServerOptions): Server {
  const server = new Server({ name: "capstan", version: VERSION }, { capabilities: { tools: {} }, instructions: INSTRUCTIONS });
  server.setRequestHandler(ListToolsRequestSchema, async () => {
    const access = await options.access();
    return { tools: runTools.filter(({ scope }) => mayUse(access, scope)).map(shown) };
  });
  server.setRequestHandler(CallToolRequestSchema, async ({ params }, { signal }): Promise<CallToolResult> => {
    try {
      return await answer(params.name, params.arguments ?? {}, options, signal);
    } catch (error) {
      return refusal(error, options.log);
    }
  });
  return server;
}

async function answer(name: string, given: unknown, options: McpServerOptions, signal: AbortSignal): Promise<CallToolResult> {
  const access = await options.access();
  const tool = runTools.find((each) => each.name === name);
  if (tool === undefined) return failed("TOOL_UNKNOWN", `there is no tool ${JSON.stringify(name.slice(0, 100))}; the tools are: ${runTools.map((each) => each.name).join(", ")}`);
  if (!mayUse(access, tool.scope)) throw new ForbiddenError(`${name} needs scope ${tool.scope}, which this token does not have`);
  const parsed = tool.input.safeParse(given);
  if (!parsed.success) {
    const issues = parsed.error.issues.flatMap((issue) =>
      issue.code === "unrecognized_keys"
        ? issue.keys.map((key) => ({ path: [...issue.path.map(String), key].join("."), message: "is not a known field" }))
        : [{ path: issue.path.map(String).join("."), message: issue.message }],
    );
    return failed("ARGUMENT_INVALID", issues.map(({ path, message }) => (path === "" ? message : `${path}: ${message}`)).join("; "), { issues });
  }
  return { content: [{ type: "text", text: JSON.stringify(await tool.answer(parsed.data, { ...options, access, signal })) }] };
}

function refusal(error: unknown, log: Log): CallToolResult {
  const known = fromPostgres(error);
  if (known instanceof CapstanError) return failed(known.code, known.message, known.details);
  log.error({ err: error }, "a tool of the MCP server failed");
  return failed("UNEXPECTED", "something unexpected happened, which the server's log tells of; the same call may work later");
}

function failed(code: string, message: string, details: JsonObject = {}): CallToolResult {
  return { isError: true, content: [{ type: "text", text: JSON.stringify({ code, message, ...(Object.keys(details).length === 0 ? {} : { details }) }) }] };
}

function shown({ name, description, input, hints }: RunTool): Tool {
  const { $schema: _, ...schema } = z.toJSONSchema(input, { io: "input" });
  return { name, description, inputSchema: schema as Tool["inputSchema"], annotations: hints };
}
