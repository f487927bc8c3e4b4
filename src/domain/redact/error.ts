/** Errors in other words, for logs and for what is recorded of them: the same class, code and stack, and no secret in any text of theirs. */
import { toJsonValue } from "../json.ts";
import { redactedJson } from "./json-text.ts";

const MAX_CAUSES = 8;
/** Of what hangs on an error (a response, a client) so much is looked at; what is deeper is left out. */
const MAX_DEPTH = 6;

/** Whatever an error or a log line's fields hold. Objects that are no plain ones become what JSON makes of them, or their kind. */
export function redactedThing(thing: unknown, redact: (text: string) => string, depth = 0): unknown {
  if (typeof thing === "string") return redact(thing);
  if (typeof thing !== "object" || thing === null) return typeof thing === "function" || typeof thing === "symbol" ? `(${typeof thing})` : thing;
  if (thing instanceof Error) return redactedError(thing, redact, depth);
  if (thing instanceof Date) return thing;
  if (depth >= MAX_DEPTH) return "(too deep)";
  if (Array.isArray(thing)) return thing.map((item) => redactedThing(item, redact, depth + 1));
  const prototype: unknown = Object.getPrototypeOf(thing);
  if (prototype !== Object.prototype && prototype !== null) {
    const json = toJsonValue(thing);
    return json.ok ? redactedJson(json.value, redact) : `(${(thing as { constructor?: { name?: string } }).constructor?.name ?? "object"})`;
  }
  return Object.fromEntries(Object.entries(thing).map(([name, value]) => [redact(name), redactedThing(value, redact, depth + 1)]));
}

export function redactedError<E extends Error>(error: E, redact: (text: string) => string, depth = 0): E {
  // Not a new one: `instanceof` and getters of its class must go on working.
  const made = Object.create(Object.getPrototypeOf(error) as object) as E;
  const set = (name: PropertyKey, value: unknown, enumerable: boolean): void => void Object.defineProperty(made, name, { value, enumerable, configurable: true, writable: true });
  for (const name of Object.getOwnPropertyNames(error)) {
    let value: unknown;
    try {
      value = (error as unknown as Record<string, unknown>)[name];
    } catch {
      continue;
    }
    const isOwn = name === "message" || name === "stack";
    const shown = name === "cause" && depth >= MAX_CAUSES ? undefined : isOwn ? redact(String(value)) : redactedThing(value, redact, depth + 1);
    set(name, shown, !isOwn && name !== "cause" && Object.prototype.propertyIsEnumerable.call(error, name));
  }
  return made;
}
