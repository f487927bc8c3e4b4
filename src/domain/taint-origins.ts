/**
 * Where a view's content came from. What the operator wrote (the definition) and what a caller gave as input is clean;
 * what tools, MCP servers and other agents returned is tainted with its origin, and so is whatever was made from it: a
 * summary, or the arguments of the next call. Guards read the origins; a system prompt never holds tainted content.
 */
import type { CapstanEvent } from "./event.ts";
import { toolOrigin } from "./mcp-name.ts";
import type { Message } from "./transcript/message.ts";

/** Of what a summarizer is given, the transcript as a whole, whatever of it was the operator's own; and of the summary that comes of it. */
export const SUMMARIZER_INPUT_ORIGIN = "agent:summarizer-input";

export interface TaintSources {
  readonly messages: readonly Message[];
  /** The view begins with a summary of tainted content. */
  readonly summaryIsTainted?: boolean;
  /** Origin of a tool's results, where its name does not tell: `tool:<name>`, or `mcp:<server>` for a tool of an MCP server. */
  readonly originOf?: (toolName: string) => string | undefined;
}

/** Distinct origins of a view, sorted. Its messages carry none: it follows from which tool answered. */
export function taintOfView({ messages, summaryIsTainted = false, originOf }: TaintSources): string[] {
  const origins = new Set<string>(summaryIsTainted ? [SUMMARIZER_INPUT_ORIGIN] : []);
  for (const message of messages) {
    if (message.role !== "tool") continue;
    for (const { name } of message.content) origins.add(originOf?.(name) ?? toolOrigin(name));
  }
  return [...origins].toSorted();
}

/** The same from a stretch of a journal, whose rows carry their origin: for who summarizes, shows or exports it. */
export function taintOfEvents(events: Iterable<CapstanEvent>): string[] {
  const origins = new Set<string>();
  for (const event of events) {
    if (event.origin !== undefined) origins.add(event.origin);
    if (event.type === "context.compacted" && event.payload.head.tainted) origins.add(SUMMARIZER_INPUT_ORIGIN);
  }
  return [...origins].toSorted();
}
