/** Pins: what an agent wants verbatim in every later view. Each marker carries them on, so they are bounded three ways. */
import { CapstanError } from "../error.ts";
import type { JsonObject } from "../json.ts";
import { utf8Length } from "../transcript/chain.ts";

export const MAX_PIN_CHARS = 1_000;
export const MAX_PINS = 32;
/** About 2,000 tokens of every later request. */
export const MAX_PINS_BYTES = 8_192;

export type PinRefusal = "PIN_EMPTY" | "PIN_TOO_LONG" | "PINS_FULL";

/** Read by the model: it says what would be accepted. */
export class PinRefusedError extends CapstanError {
  override readonly name = "PinRefusedError";
  readonly code: PinRefusal;
  override readonly details: JsonObject;
  constructor(code: PinRefusal, message: string, details: JsonObject = {}) {
    super(message);
    this.code = code;
    this.details = details;
  }
}

/** `known` when the same text is pinned already. Throws PinRefusedError. */
export function checkPin(text: string, pins: readonly string[]): "new" | "known" {
  if (text.trim() === "") throw new PinRefusedError("PIN_EMPTY", "op=pin needs a text that says something");
  const chars = countChars(text);
  if (chars > MAX_PIN_CHARS)
    throw new PinRefusedError("PIN_TOO_LONG", `a pin has at most ${MAX_PIN_CHARS} characters, this one has ${chars}; pin the fact itself, or pin less`, { chars });
  if (pins.includes(text)) return "known";
  const bytes = pinsBytes(pins);
  const more = utf8Length(text);
  if (pins.length < MAX_PINS && bytes + more <= MAX_PINS_BYTES) return "new";
  throw new PinRefusedError(
    "PINS_FULL",
    `a run keeps at most ${MAX_PINS} pins of ${MAX_PINS_BYTES} bytes together; there are ${pins.length} of ${bytes} bytes, and this one has ${more}. It was not pinned; op=pins lists them`,
    { pins: pins.length, bytes, more_bytes: more },
  );
}

export function pinsBytes(pins: readonly string[]): number {
  return pins.reduce((sum, pin) => sum + utf8Length(pin), 0);
}

/** Code points, as JSON Schema counts them. */
function countChars(text: string): number {
  let chars = 0;
  for (const _ of text) chars++;
  return chars;
}
