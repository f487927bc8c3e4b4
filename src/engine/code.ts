/** What code supplies for an agent: everything that cannot be stored. src/agents builds these from users' specs. */
import type { ToolDefinition } from "../domain/definition.ts";
import type { JsonValue } from "../domain/json.ts";
import type { Checked } from "../domain/json-schema.ts";
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
}
