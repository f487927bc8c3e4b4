/** The last look before an event is folded and written: whatever an event says in words, by the rules. Names, digests and numbers of the engine's own stay. */
import type { EventPayload, EventType } from "../event.ts";
import type { JsonObject, JsonValue } from "../json.ts";
import type { AssistantPart } from "../transcript/message.ts";
import { redactedJson, redactedParts } from "./json-text.ts";

/**
 * Fields that hold words from outside. What a compaction writes is not among them: it is put together from what was
 * redacted before, and digests of it are in the same event.
 */
const spoken: { readonly [T in EventType]?: readonly string[] } = {
  "model.failed": ["error"],
  "model.corrected": ["text"],
  "tool.completed": ["output", "executed_input", "context"],
  "tool.failed": ["error", "executed_input"],
  "call.waiting": ["wait"],
  "approval.decided": ["input", "reason"],
  "turn.stopped": ["reason"],
  "input.applied": ["content"],
  "compaction.skipped": ["detail"],
  "compaction.failed": ["detail"],
  "run.parked": ["detail"],
  "run.completed": ["output"],
  "run.failed": ["error"],
};

export function redactedPayload<T extends EventType>(type: T, payload: EventPayload<T>, redact: (text: string) => string): EventPayload<T> {
  if (type === "model.responded") return withParts(payload as EventPayload<"model.responded">, redact) as EventPayload<T>;
  const fields = spoken[type];
  if (fields === undefined) return payload;
  const given = payload as unknown as JsonObject;
  const changed = fields.flatMap((field): [string, JsonValue][] => {
    const value = given[field];
    if (value === undefined) return [];
    const redacted = redactedJson(value, redact);
    return redacted === value ? [] : [[field, redacted]];
  });
  return changed.length === 0 ? payload : { ...payload, ...Object.fromEntries(changed) };
}

function withParts(payload: EventPayload<"model.responded">, redact: (text: string) => string): EventPayload<"model.responded"> {
  const content = redactedParts(payload.content, redact) as AssistantPart[];
  return content === payload.content ? payload : { ...payload, content };
}
