/** Values that fit a JSON Schema of the API's document, and values that nearly do. */
import fc from "fast-check";

export interface Schema {
  readonly [keyword: string]: unknown;
}

export interface Document {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>;
  readonly components: { readonly schemas: Readonly<Record<string, Schema>> };
}

export interface Operation {
  readonly summary: string;
  readonly parameters?: readonly { readonly in: "path" | "query" | "header"; readonly name: string; readonly required?: boolean; readonly schema: Schema }[];
  readonly requestBody?: { readonly required?: boolean; readonly content: Readonly<Record<string, { readonly schema: Schema }>> };
  readonly responses: Readonly<Record<string, { readonly content?: Readonly<Record<string, { readonly schema: Schema }>> }>>;
}

/** What no schema asks for, and what people and programs send all the same. */
export const junk: fc.Arbitrary<unknown> = fc.oneof(
  fc.constantFrom(null, "", "\u0000", "\ud800", -1, 0.5, 1e308, 2 ** 53, [], {}, true, "'; drop table runs; --", "../../etc/passwd", "null", "%", "__proto__"),
  fc.jsonValue({ maxDepth: 2 }),
);

export function fitting(schema: Schema, document: Document): fc.Arbitrary<unknown> {
  const { $ref, type, enum: values, anyOf, oneOf, allOf } = schema as { $ref?: string; type?: string; enum?: unknown[]; anyOf?: Schema[]; oneOf?: Schema[]; allOf?: Schema[] };
  if ($ref !== undefined) return fitting(document.components.schemas[$ref.split("/").at(-1) as string] as Schema, document);
  if ("const" in schema) return fc.constant(schema["const"]);
  if (values !== undefined) return fc.constantFrom(...values);
  const either = anyOf ?? oneOf;
  if (either !== undefined) return fc.oneof(...either.map((each) => fitting(each, document)));
  if (allOf !== undefined && type === undefined) return fitting(Object.assign({}, ...allOf) as Schema, document);
  switch (type) {
    case "string":
      return text(schema);
    case "integer":
    case "number": {
      const [min, max] = [(schema["minimum"] as number | undefined) ?? -1_000, (schema["maximum"] as number | undefined) ?? 1_000];
      return fc.oneof(fc.constantFrom(min, max), fc.integer({ min, max: Math.min(max, min + 1_000) }));
    }
    case "boolean":
      return fc.boolean();
    case "null":
      return fc.constant(null);
    case "array":
      return fc.array(fitting((schema["items"] ?? {}) as Schema, document), { minLength: (schema["minItems"] as number | undefined) ?? 0, maxLength: 3 });
    case "object":
      return object(schema, document);
    default:
      return fc.jsonValue({ maxDepth: 2 });
  }
}

function object(schema: Schema, document: Document): fc.Arbitrary<unknown> {
  const { properties, required = [] } = schema as { properties?: Record<string, Schema>; required?: string[] };
  if (properties === undefined) return fc.dictionary(fc.string({ maxLength: 5 }), fc.jsonValue({ maxDepth: 1 }), { maxKeys: 3, noNullPrototype: true });
  const optional = Object.keys(properties).filter((name) => !required.includes(name));
  // With all of them at once there is nearly always one that does not go with another.
  return fc.oneof(fc.constant([]), fc.subarray(optional, { maxLength: Math.min(2, optional.length) }), fc.subarray(optional)).chain((also) => {
    const names = [...required, ...also];
    return fc.record(Object.fromEntries(names.map((name) => [name, fitting(properties[name] as Schema, document)])), { noNullPrototype: true });
  });
}

function text(schema: Schema): fc.Arbitrary<string> {
  const { format, pattern, minLength = 0, maxLength = 30 } = schema as { format?: string; pattern?: string; minLength?: number; maxLength?: number };
  if (format === "uuid") return fc.uuid();
  if (format === "date-time") return fc.date({ min: new Date(0), max: new Date("9999-12-31"), noInvalidDate: true }).map((date) => date.toISOString());
  if (pattern !== undefined) return fc.stringMatching(new RegExp(pattern));
  return fc.string({ minLength, maxLength: Math.min(maxLength, minLength + 30), unit: "binary" });
}

/** The value with one thing wrong with it, somewhere. */
export function spoilt(value: fc.Arbitrary<unknown>): fc.Arbitrary<unknown> {
  return fc.tuple(value, fc.nat(), junk, fc.constantFrom("replace", "drop", "add", "whole")).map(([given, at, bad, how]) => {
    if (how === "whole" || typeof given !== "object" || given === null || Array.isArray(given)) return bad;
    const names = Object.keys(given);
    const name = names[at % Math.max(1, names.length)];
    if (how === "add" || name === undefined) return { ...given, unknown_field: bad };
    const { [name]: _, ...rest } = given as Record<string, unknown>;
    return how === "drop" ? rest : { ...rest, [name]: bad };
  });
}
