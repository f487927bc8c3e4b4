/**
 * The errors that users meet. `code` is interface: logs, journal events, exit messages and (later) HTTP bodies carry the
 * same string. The message says what happened and what to do.
 */
import type { JsonObject, JsonValue } from "./json.ts";
import { toJsonValue, wellFormedText } from "./json.ts";

export abstract class CapstanError extends Error {
  abstract readonly code: string;
  /** Whether the same request may succeed when it is simply made again. */
  readonly retryable: boolean = false;
  /** Facts for machines, beside the sentence for people. */
  readonly details: JsonObject = {};
}

/** An error as it stands in a journal: bounded, without secrets of the process (no stack unless asked for). */
export interface RecordedError {
  readonly code: string;
  readonly message: string;
  readonly details?: JsonObject;
  readonly cause?: string[];
}

const MAX_MESSAGE_CHARS = 4_000;
const MAX_CAUSES = 5;

/**
 * The one serialiser of errors. `thrown` may be anything; a non-error is described, not dropped. Never throws, and what
 * it gives can be stored: an error of a user's tool may carry a message that is no string, or getters that throw.
 */
export function recordError(thrown: unknown, fallbackCode: string): RecordedError {
  const message = messageOf(thrown);
  const code = thrown instanceof CapstanError ? thrown.code : fallbackCode;
  const causes: string[] = [];
  let cause = causeOf(thrown);
  while (cause !== undefined && causes.length < MAX_CAUSES) {
    causes.push(messageOf(cause));
    cause = causeOf(cause);
  }
  const details = thrown instanceof CapstanError ? toJsonValue(thrown.details) : undefined;
  const known = details?.ok === true && Object.keys(details.value as JsonObject).length > 0 ? { details: details.value as JsonObject } : {};
  return { code, message, ...known, ...(causes.length > 0 ? { cause: causes } : {}) };
}

function causeOf(thrown: unknown): unknown {
  try {
    return thrown instanceof Error ? thrown.cause : undefined;
  } catch {
    return undefined;
  }
}

function messageOf(thrown: unknown): string {
  let text: string;
  try {
    text = describe(thrown);
  } catch {
    text = `a thrown ${typeof thrown} that cannot be read`;
  }
  return clip(wellFormedText(text));
}

function describe(thrown: unknown): string {
  if (thrown instanceof Error) {
    const message = typeof thrown.message === "string" ? thrown.message : describe(thrown.message);
    if (message !== "") return message;
    const name: unknown = thrown.name;
    return String(name);
  }
  if (typeof thrown === "string") return thrown;
  const json = toJsonValue(thrown);
  return json.ok ? `thrown value ${JSON.stringify(json.value satisfies JsonValue)}` : `a thrown ${typeof thrown}`;
}

function clip(text: string): string {
  if (text.length <= MAX_MESSAGE_CHARS) return text;
  return `${text.slice(0, MAX_MESSAGE_CHARS).toWellFormed()}… (${text.length} characters)`;
}
