/** A view in units: a user message, or a response with all the results that answer it. What `keep_last_n` counts. */
import type { AssistantMessage, Message } from "../transcript/message.ts";

export interface Unit {
  readonly kind: "user" | "response";
  /** Message indexes, `end` not included. */
  readonly start: number;
  readonly end: number;
}

/** Units from message `from` on. A tool message always belongs to the unit before it, however it came there. */
export function unitsOf(view: readonly Message[], from = 0): Unit[] {
  const units: Unit[] = [];
  let start = from;
  while (start < view.length) {
    let end = start + 1;
    while (view[end]?.role === "tool") end++;
    units.push({ kind: view[start]?.role === "user" ? "user" : "response", start, end });
    start = end;
  }
  return units;
}

export function callIdsOf(message: AssistantMessage): string[] {
  return message.content.flatMap((part) => (part.type === "tool_call" ? [part.call_id] : []));
}
