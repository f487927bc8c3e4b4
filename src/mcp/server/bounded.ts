/** Answers that an assistant can take in: what is long is cut, and says so. */
import type { RunEvent } from "../../client/handle.ts";
import type { JsonObject, JsonValue } from "../../domain/json.ts";

/** Of one answer: some 12,000 tokens. Less would make many calls of one look; more fills an assistant's context with one. */
const MAX_ANSWER_CHARS = 48_000;
const MAX_VALUE_CHARS = 4_000;

/** The value, or what it begins with. */
export function bounded(value: JsonValue | undefined, maxChars = MAX_VALUE_CHARS): JsonValue {
  if (value === undefined) return null;
  const text = typeof value === "string" ? value : JSON.stringify(value);
  if (text.length <= maxChars) return value;
  return { truncated: true, chars: text.length, begins: text.slice(0, maxChars).toWellFormed() };
}

/** As many events as one answer holds, at least one. */
export function boundedEvents(events: readonly RunEvent[]): { readonly events: readonly JsonObject[]; readonly nextAfter: number | undefined } {
  const shown: JsonObject[] = [];
  let chars = 0;
  let nextAfter: number | undefined;
  for (const { payload, ...event } of events) {
    const entry = { ...event, payload: bounded(payload) } as JsonObject;
    chars += JSON.stringify(entry).length;
    if (shown.length > 0 && chars > MAX_ANSWER_CHARS) break;
    shown.push(entry);
    nextAfter = event.seq;
  }
  return { events: shown, nextAfter };
}
