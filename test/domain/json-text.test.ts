import fc from "fast-check";
import { expect, it } from "vitest";
import { parseJsonText } from "../../src/domain/json-text.ts";
import { canonicalJson, type JsonValue } from "../../src/domain/json.ts";
import { storedJson } from "./arbitrary-json.ts";

it("gives the name that is written, also when V8's parser remembers another", () => {
  // Teaches V8 that a backslash follows the empty name; its own JSON.parse then takes any escape for it.
  parseJsonText(String.raw`{"":1,"\\":2}`);
  expect(Object.keys(parseJsonText(String.raw`{"":1,"\u0001":2}`) as object)).toEqual(["", "\u0001"]);
  expect(Object.keys(parseJsonText(String.raw`{ "" : 1 , "\n" : [ {"\"": true} ] }`) as object)).toEqual(["", "\n"]);
});

it("keeps __proto__ as a member", () => {
  expect(JSON.stringify(parseJsonText(String.raw`{"\t":1,"__proto__":{"a":[]}}`))).toBe(String.raw`{"\t":1,"__proto__":{"a":[]}}`);
});

it("refuses what JSON.parse refuses", () => {
  for (const text of ["", "{", String.raw`{"\n":}`, "[1,]", "01"]) expect(() => parseJsonText(text)).toThrow(SyntaxError);
});

it("reads back whatever JSON.stringify wrote", () => {
  fc.assert(
    fc.property(storedJson, (value) => {
      expect(canonicalJson(parseJsonText(canonicalJson(value)) as JsonValue)).toBe(canonicalJson(value));
    }),
    { numRuns: 2_000 },
  );
});
