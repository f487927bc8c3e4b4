/**
 * An MCP server for tests, good and bad, over standard streams or HTTP. Every call is noted in the file MCP_NOTES before
 * anything else is done. MCP_START_AFTER names a file: until it exists the server says nothing. MCP_TOOLS: the tools that
 * it begins with, by comma; default all.
 */
import { appendFileSync, existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { CallToolRequestSchema, ListToolsRequestSchema, type CallToolResult, type Tool } from "@modelcontextprotocol/sdk/types.js";

const READ = { annotations: { readOnlyHint: true } };
const objectSchema = { type: "object" as const, properties: { text: { type: "string" }, until: { type: "string" } } };

const known: Readonly<Record<string, Pick<Tool, "annotations">>> = {
  look: READ,
  put: { annotations: { idempotentHint: true } },
  create: {},
  hang: READ,
  flood: READ,
  chatter: READ,
  garbage: READ,
  die: READ,
  die_once: {},
  fail: READ,
  picture: READ,
  structured: READ,
  linger: READ,
  change: READ,
  turn_dangerous: READ,
  "odd.name/of a tool": READ,
};

export interface NotedCall {
  readonly tool: string;
  readonly text?: string;
  readonly pid: number;
  readonly cancelled?: true;
}

/** A red dot of 1 x 1. */
export const PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
const FLOOD_BYTES = 100 * 1024 * 1024;

export function noteCall(file: string, call: NotedCall): void {
  appendFileSync(file, `${JSON.stringify(call)}\n`);
}

export interface ToolServerOptions {
  readonly notes: string;
  readonly tools?: readonly string[];
  /** The answer, byte for byte, instead of one by the SDK. */
  readonly writeRaw?: (chunk: string) => Promise<void>;
  readonly die?: () => never;
}

export function toolServer({ notes, tools = Object.keys(known), writeRaw, die }: ToolServerOptions): Server {
  const offered = new Map(tools.map((name) => [name, known[name] ?? READ]));
  const server = new Server({ name: "test tools", version: "1" }, { capabilities: { tools: { listChanged: true } } });
  server.setRequestHandler(ListToolsRequestSchema, async () => ({
    tools: [...offered].map(([name, { annotations }]) => ({
      name,
      description: `Does ${name}.`,
      inputSchema: objectSchema,
      ...(annotations === undefined ? {} : { annotations }),
    })),
  }));
  server.setRequestHandler(CallToolRequestSchema, async ({ params: { name, arguments: given = {} } }, { signal, requestId }): Promise<CallToolResult> => {
    const { text, until } = given as { text?: string; until?: string };
    const note = (more: Partial<NotedCall> = {}): void => noteCall(notes, { tool: name, pid: process.pid, ...(text === undefined ? {} : { text }), ...more });
    note();
    signal.addEventListener("abort", () => note({ cancelled: true }));
    while (until !== undefined && !existsSync(until)) await sleep(20);
    switch (name) {
      case "hang":
        await sleep(3_600_000, undefined, { ref: false });
        return textResult("never");
      case "linger":
        process.on("SIGTERM", () => {});
        setInterval(() => {}, 60_000);
        return textResult("I stay");
      case "flood":
        if (writeRaw === undefined) return textResult("x".repeat(FLOOD_BYTES / 4));
        await writeRaw(`{"jsonrpc":"2.0","id":${JSON.stringify(requestId)},"result":{"content":[{"type":"text","text":"`);
        for (let sent = 0; sent < FLOOD_BYTES; sent += 1024 * 1024) await writeRaw("x".repeat(1024 * 1024));
        await writeRaw('"}]}}\n');
        return textResult("flooded");
      case "chatter":
        for (let sent = 0; sent < FLOOD_BYTES; sent += 1_000)
          await writeRaw?.(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"${"y".repeat(900)}"}}\n`);
        return textResult("chattered");
      case "garbage":
        await writeRaw?.('this is no JSON\n{"jsonrpc":"2.0","id":\n{"jsonrpc":"1.0"}\n[]\n');
        return textResult("after the garbage");
      case "die":
      case "die_once":
        return die?.() ?? process.exit(3);
      case "fail":
        return { isError: true, content: [{ type: "text", text: `no such note: ${text ?? ""}` }] };
      case "picture":
        return {
          content: [
            { type: "text", text: "a dot" },
            { type: "image", data: PICTURE, mimeType: "image/png" },
            { type: "resource", resource: { uri: "note://1", mimeType: "text/plain", text: "in the note" } },
          ],
        };
      case "structured":
        return { content: [{ type: "text", text: '{ "n": 1 }' }], structuredContent: { n: 1 } };
      case "change":
        offered.delete("look");
        offered.set("look_closer", READ);
        await server.sendToolListChanged();
        return textResult("changed");
      case "turn_dangerous":
        offered.set("look", {});
        await server.sendToolListChanged();
        return textResult("changed");
      default:
        if (!offered.has(name)) return { isError: true, content: [{ type: "text", text: `Tool ${name} not found` }] };
        return textResult(`${name}: ${text ?? ""}`);
    }
  });
  return server;
}

function textResult(text: string): CallToolResult {
  return { content: [{ type: "text", text }] };
}

if (import.meta.main) {
  const { MCP_NOTES: notes = "", MCP_START_AFTER: startAfter, MCP_TOOLS: tools } = process.env;
  process.stderr.write(`tool server ${process.pid} starts\n`);
  while (startAfter !== undefined && !existsSync(startAfter)) await sleep(20);
  const writeRaw = (chunk: string): Promise<void> => new Promise((resolve, reject) => process.stdout.write(chunk, (error) => (error ? reject(error) : resolve())));
  const server = toolServer({ notes, writeRaw, ...(tools === undefined ? {} : { tools: tools.split(",") }) });
  // The SDK's own does not end with its input.
  process.stdin.on("end", () => process.exit(0));
  await server.connect(new StdioServerTransport());
}
