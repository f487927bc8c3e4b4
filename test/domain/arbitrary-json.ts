/** Arbitrary values as models and tools produce them: any code unit, any number, names that JavaScript treats specially. */
import fc from "fast-check";
import { toJsonValue, type JsonObject, type JsonValue } from "../../src/domain/json.ts";

/** Any sequence of UTF-16 code units: NUL and lone surrogates too. */
export const rawText: fc.Arbitrary<string> = fc.oneof(
  fc.string({ unit: "grapheme", maxLength: 12 }),
  fc.array(fc.integer({ min: 0, max: 0xffff }), { maxLength: 6 }).map((units) => String.fromCharCode(...units)),
  fc.constantFrom("\u0000", "\uD800", "\uDC00x", "😀", "é", "e\u0301", "\r\n", "\u2028", '"\\'),
);

const rawKey = fc.oneof(fc.constantFrom("__proto__", "constructor", "toString", "length", "0", "10", "9", "", "a", "A", "ä", "😀", "\uE000"), rawText);

/** Plain objects whose members are all their own, `__proto__` included. */
function ownMembers(entries: readonly (readonly [string, unknown])[]): object {
  const object = {};
  for (const [key, value] of entries) Object.defineProperty(object, key, { value, enumerable: true, configurable: true, writable: true });
  return object;
}

export const { rawJson } = fc.letrec<{ rawJson: unknown }>((tie) => ({
  rawJson: fc.oneof(
    { maxDepth: 4, depthSize: "small" },
    fc.constantFrom(null, true, false, -0, 2 ** 53 + 1, 5e-324, 1.7976931348623157e308, 1e21, 0.1),
    fc.double({ noNaN: true, noDefaultInfinity: true }),
    fc.integer(),
    rawText,
    fc.array(tie("rawJson"), { maxLength: 4 }),
    fc.array(fc.tuple(rawKey, tie("rawJson")), { maxLength: 4 }).map(ownMembers),
  ),
}));

export const storedJson: fc.Arbitrary<JsonValue> = rawJson.map((raw) => {
  const result = toJsonValue(raw);
  if (!result.ok) throw new Error(result.problem.problem);
  return result.value;
});

export const storedObject: fc.Arbitrary<JsonObject> = fc.array(fc.tuple(rawKey, rawJson), { maxLength: 4 }).map((entries) => {
  const result = toJsonValue(ownMembers(entries));
  if (!result.ok) throw new Error(result.problem.problem);
  return result.value as JsonObject;
});

export const storedText: fc.Arbitrary<string> = rawText.map((text) => {
  const result = toJsonValue(text);
  return result.ok ? (result.value as string) : "";
});

/** The same value with every object's members in the opposite order, as jsonb may give them back. */
export function reordered(value: JsonValue): JsonValue {
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.map(reordered);
  const object = value as JsonObject;
  return ownMembers(
    Object.keys(object)
      .toReversed()
      .map((key) => [key, reordered(object[key] as JsonValue)] as const),
  ) as JsonObject;
}
