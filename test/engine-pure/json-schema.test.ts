import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { z } from "zod";
import { jsonSchemaOf } from "../../src/agents/tool.ts";
import type { JsonObject, JsonValue } from "../../src/domain/json.ts";
import { checkAgainst, issuesText } from "../../src/domain/json-schema.ts";
import { reordered, storedJson } from "../domain/arbitrary-json.ts";

const ok = (schema: object, value: unknown): boolean => checkAgainst(schema as JsonObject, value as JsonValue).ok;

describe("a value against a stored JSON Schema", () => {
  it.each<[string, object, unknown[], unknown[]]>([
    ["string", { type: "string" }, ["", "x"], [1, null, [], {}]],
    ["length and pattern", { type: "string", minLength: 2, maxLength: 3, pattern: "^a" }, ["ab", "abc"], ["a", "abcd", "ba"]],
    ["number range", { type: "number", minimum: 0, exclusiveMaximum: 1 }, [0, 0.5], [-0.1, 1, "0"]],
    ["integer", { type: "integer" }, [0, -5], [0.5, "1"]],
    ["boolean", { type: "boolean" }, [true, false], [0, "true"]],
    ["null", { type: "null" }, [null], [0, "", false]],
    ["enum of mixed kinds", { enum: ["a", 1, null, true] }, ["a", 1, null, true], ["b", 2, false]],
    ["const", { const: "x" }, ["x"], ["y", null]],
    ["array with bounds", { type: "array", items: { type: "integer" }, minItems: 1, maxItems: 2 }, [[1], [1, 2]], [[], [1, 2, 3], ["1"], {}]],
    ["tuple", { type: "array", prefixItems: [{ type: "string" }, { type: "number" }] }, [["a", 1]], [[1, "a"], "a"]],
    ["union", { anyOf: [{ type: "string" }, { type: "object", properties: { n: { type: "number" } }, required: ["n"] }] }, ["x", { n: 1 }], [1, { n: "1" }, {}]],
    ["nullable", { anyOf: [{ type: "string" }, { type: "null" }] }, ["x", null], [1]],
    ["several types", { type: ["string", "null"] }, ["x", null], [1]],
    [
      "intersection",
      {
        allOf: [
          { type: "object", properties: { a: { type: "string" } }, required: ["a"] },
          { type: "object", properties: { b: { type: "string" } }, required: ["b"] },
        ],
      },
      [{ a: "", b: "" }],
      [{ a: "" }, { b: "" }],
    ],
    ["map of numbers", { type: "object", additionalProperties: { type: "number" } }, [{}, { a: 1 }], [{ a: "1" }, []]],
    ["reference", { $ref: "#/$defs/n", $defs: { n: { type: "number" } } }, [1], ["1"]],
    ["anything", {}, [null, 1, "x", [], {}], []],
  ])("%s", (_, schema, fitting, others) => {
    for (const value of fitting) expect([value, ok(schema, value)]).toEqual([value, true]);
    for (const value of others) expect([value, ok(schema, value)]).toEqual([value, false]);
  });

  it("tells required from optional members, and closed objects from open ones", () => {
    const open = { type: "object", properties: { a: { type: "string" }, b: { type: "number" } }, required: ["a"] };
    expect([ok(open, { a: "x" }), ok(open, { a: "x", b: 1 }), ok(open, { a: "x", more: 1 })]).toEqual([true, true, true]);
    expect([ok(open, {}), ok(open, { a: "x", b: "1" }), ok(open, { a: "x", b: null })]).toEqual([false, false, false]);
    const closed = { ...open, additionalProperties: false };
    expect([ok(closed, { a: "x" }), ok(closed, { a: "x", more: 1 })]).toEqual([true, false]);
  });

  it("follows a schema that refers to itself", () => {
    const tree = { type: "object", properties: { name: { type: "string" }, children: { type: "array", items: { $ref: "#" } } }, required: ["name"] };
    expect(ok(tree, { name: "a", children: [{ name: "b", children: [{ name: "c" }] }] })).toBe(true);
    expect(ok(tree, { name: "a", children: [{ name: "b", children: [{}] }] })).toBe(false);
  });

  it("names every place that does not fit", () => {
    const schema = {
      type: "object",
      properties: { rows: { type: "array", items: { type: "object", properties: { n: { type: "number" } }, required: ["n"] } } },
      required: ["rows", "title"],
    } as const;
    const checked = checkAgainst({ ...schema, properties: { ...schema.properties, title: { type: "string" } } }, { rows: [{ n: 1 }, { n: "x" }] });
    expect(checked.ok || checked.issues.map((issue) => issue.path).toSorted()).toEqual(["rows.1.n", "title"]);
    expect(checked.ok || issuesText(checked.issues)).toMatch(/rows\.1\.n: .*; title: /);
    expect(issuesText([{ path: "", message: "is no object" }])).toBe("is no object");
  });

  it("gives the same answer the second time, for a schema whose members jsonb has moved", () => {
    const schema = { type: "object", properties: { b: { type: "string" }, a: { type: "number" } }, required: ["a"], additionalProperties: false };
    const moved = reordered(schema) as JsonObject;
    for (const s of [schema, moved, schema, moved]) expect([ok(s, { a: 1 }), ok(s, { a: "1" })]).toEqual([true, false]);
  });

  it("does not mix up schemas, of which it keeps the compiled form", () => {
    for (let i = 0; i < 1_200; i++) expect(ok({ const: i }, i)).toBe(true);
    expect(ok({ const: 0 }, 1)).toBe(false);
  });
});

describe("zod schemas that were stored as JSON Schema", () => {
  const schemas: readonly [string, z.ZodType][] = [
    ["object", z.object({ a: z.string(), n: z.int().min(1).optional(), tags: z.array(z.enum(["x", "y"])).max(2) })],
    ["strict object", z.strictObject({ a: z.string().nullable() })],
    ["discriminated union", z.discriminatedUnion("kind", [z.object({ kind: z.literal("a"), n: z.number() }), z.object({ kind: z.literal("b"), s: z.string() })])],
    ["record", z.record(z.string(), z.union([z.number(), z.boolean()]))],
    ["tuple", z.tuple([z.string(), z.number()])],
    ["intersection", z.intersection(z.object({ a: z.string() }), z.object({ b: z.number() }))],
    ["formats", z.object({ mail: z.email(), at: z.iso.datetime(), id: z.uuid(), url: z.url() })],
    ["literals", z.literal(["a", 1, null])],
    ["nested", z.object({ rows: z.array(z.object({ cells: z.array(z.union([z.string(), z.null()])) })) })],
  ];
  const near: fc.Arbitrary<JsonValue> = fc.oneof(
    storedJson,
    fc.record(
      {
        a: fc.oneof(fc.string(), fc.constant(null), fc.integer()),
        b: fc.integer(),
        n: fc.oneof(fc.integer({ min: -1, max: 3 }), fc.double({ noNaN: true, noDefaultInfinity: true })),
        tags: fc.array(fc.constantFrom("x", "y", "z")),
        kind: fc.constantFrom("a", "b", "c"),
        s: fc.string(),
      },
      { requiredKeys: [] },
    ),
    fc.record({ a: fc.oneof(fc.string(), fc.constant(null), fc.integer()) }),
    fc.record({ a: fc.string(), n: fc.integer({ min: 0, max: 2 }), tags: fc.array(fc.constantFrom("x", "y"), { maxLength: 3 }) }, { requiredKeys: ["a"] }),
    fc.record({ rows: fc.array(fc.record({ cells: fc.array(fc.oneof(fc.string(), fc.constant(null), fc.integer())) })) }),
    fc.record({
      mail: fc.constantFrom("a@example.org", "a"),
      at: fc.constantFrom("2026-01-01T00:00:00Z", "yesterday"),
      id: fc.constantFrom("0190c1a0-0000-7000-8000-000000000000", "1"),
      url: fc.constantFrom("https://example.org", "x"),
    }),
    fc.tuple(fc.string(), fc.oneof(fc.integer(), fc.string())).map((pair): JsonValue => pair),
    fc.constantFrom<JsonValue>("a", 1, null, "b"),
  );

  it.each(schemas)("%s: takes what zod takes and refuses what zod refuses", (_, schema) => {
    const stored = jsonSchemaOf("test", "input", schema);
    let [taken, refused] = [0, 0];
    fc.assert(
      fc.property(near, (value) => {
        const expected = schema.safeParse(value).success;
        if (expected) taken++;
        else refused++;
        expect(checkAgainst(stored, value).ok).toBe(expected);
      }),
      { numRuns: 400, seed: 7 },
    );
    // Both sides were tried.
    expect(Math.min(taken, refused)).toBeGreaterThan(0);
  });
});
