/** What code supplies for an agent: everything that cannot be stored. src/agents builds these from users' specs. */
import type { ToolDefinition } from "../domain/definition.ts";
import type { JsonValue } from "../domain/json.ts";
import type { Checked } from "../domain/json-schema.ts";
import type { FilePart } from "../domain/transcript/message.ts";
import type { Log, WarnSink } from "./ports.ts";

export interface ToolContext {
  /** Fires on cancel, timeout, shutdown and lost lease. */
  readonly signal: AbortSignal;
  readonly runId: string;
  readonly tenant: string;
  readonly turn: number;
  readonly callId: string;
  /** The same for every try of this call, also on another worker: hand it to services that deduplicate. */
  readonly idempotencyKey: string;
  /** What completes this call from outside when the tool hands back `later()`: for `capstan.complete(token, …)`, also before it does. */
  readonly completionToken: string;
  /** A secret by name, from the worker's own configuration; undefined when it has none of that name. Never journaled. */
  secret(name: string): string | undefined;
  /** Keeps bytes (an image, a document) outside the transcript, under this run: what it gives belongs into the result. */
  saveFile(content: Uint8Array, mediaType: string): Promise<FilePart>;
  readonly log: Log;
}

export interface ToolCode {
  readonly definition: ToolDefinition;
  /** Carried out by the engine (engine-tools.ts), since it asks of the run itself; `execute` is never called. */
  readonly engine?: "context" | "read_blob" | "agent" | "ask_human" | "wait";
  /** For a tool whose calls need approval by their arguments. May throw: then they do. */
  needsApproval?(input: unknown): boolean;
  check(input: JsonValue): Checked;
  /** May throw; may ignore the signal: the engine stops waiting. */
  execute(input: unknown, context: ToolContext): unknown;
}

export interface AgentCode {
  readonly name: string;
  readonly tools: ReadonlyMap<string, ToolCode>;
  readonly onWarn: WarnSink | undefined;
  /** MCP servers whose tools the agent has, and of each which: patterns with `*`. Their definitions come from the servers. */
  readonly mcp?: readonly McpUse[];
  /** Set by the worker for an agent with `mcp`. */
  readonly remote?: RemoteTools;
}

export interface McpUse {
  readonly server: string;
  readonly tools: readonly string[];
}

/** Tools that other processes offer: their list may change under a run, whose definition stays. */
export interface RemoteTools {
  /** Why runs cannot begin on this worker just now, in words; undefined when they can. */
  missing(): string | undefined;
  /** Code for a tool of a stored definition, also for one that its server does not offer any more; undefined when it is of no server of this agent's. */
  toolOf(tool: ToolDefinition): ToolCode | undefined;
}

export function codeOfTool(code: AgentCode | undefined, tool: ToolDefinition): ToolCode | undefined {
  return code?.tools.get(tool.name) ?? code?.remote?.toolOf(tool);
}
