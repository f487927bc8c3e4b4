/** Schemas that several routes share. What comes in is strict, so that a misspelt field is named; what goes out may grow. */
import { z } from "zod";
import { budgetSchema } from "../domain/budget.ts";
import { compactionPolicy } from "../domain/compaction/policy.ts";
import { agentNamePattern } from "../domain/definition.ts";
import { wholeNumber } from "../domain/ranges.ts";
import { toJsonValue, type JsonObject, type JsonValue } from "../domain/json.ts";

/** Text that Postgres can hold as a name or a key. */
export const word = (max = 200) =>
  z
    .string()
    .min(1)
    .max(max)
    .refine((text) => !text.includes("\u0000"), "must not hold the character NUL");
export const json = z.unknown().transform(storable).meta({ description: "Any JSON value" });
export const jsonObject = z
  .record(z.string(), z.unknown())
  .transform((value, context) => storable(value, context) as JsonObject)
  .meta({ description: "A JSON object" });
export const uuid = z.guid();
/** With a zone: one without would mean another moment on every machine. */
export const time = z.iso.datetime({ offset: true });
export const agentName = z.string().regex(agentNamePattern, "must have 1 to 64 of A-Z a-z 0-9 _ . - and begin with a letter or digit");
/** `1`, not `1e3` nor ` 1`: what a query says stands there once. */
export const queryNumber = (min: number, max: number) =>
  z
    .string()
    .regex(/^(0|[1-9]\d{0,9})$/, "must be a whole number")
    .refine((text) => Number(text) >= min && Number(text) <= max, `must be a whole number from ${min} to ${max}`)
    .transform(Number)
    // For whoever reads the document it is a number; that it stands there as text is a query's nature.
    .meta({ type: "integer", pattern: undefined, minimum: min, maximum: max });
export const queryFlag = z.enum(["true", "false"]);
export const limit = (fallback: number, max = 1_000) => queryNumber(1, max).default(fallback);
export const reason = word(2_000).optional();

export const compaction = compactionPolicy.meta({ id: "CompactionPolicy", description: "For this run alone, over its agent's policy, field by field." });
export const budget = budgetSchema.meta({ id: "Budget", description: "For this run alone. Its hard limits may not exceed the agent's." });
export const priority = wholeNumber(-1_000, 1_000).describe("Lower runs sooner");
export const labels = z.array(word()).max(100);
export const metadata = jsonObject.meta({ description: "Whatever the caller wants to keep beside it" });
export const overlay = jsonObject.meta({ description: "Fields of the agent's definition that are other than they were; null unsets" });

export const runParams = z.strictObject({ run_id: uuid });
export const noBody = z.strictObject({}).nullish().describe("None, or an empty object");
/** For what has only optional fields: none at all is as an empty object. */
export function optionalBody<Shape extends z.core.$ZodLooseShape>(shape: Shape) {
  const schema = z.strictObject(shape);
  return schema.nullish().transform((given) => given ?? ({} as z.output<typeof schema>));
}

export const page = <Item extends z.ZodType>(item: Item) => z.object({ items: z.array(item), next_cursor: z.string().optional().describe("Of the next page; absent on the last") });
export const list = <Item extends z.ZodType>(item: Item) => z.object({ items: z.array(item) });

export const problem = z
  .looseObject({
    type: z.string(),
    title: z.string(),
    status: z.int(),
    detail: z.string(),
    instance: z.string().describe("The request's path"),
    code: z.string().describe("Stable: what programs go by"),
    issues: z.array(z.object({ path: z.string(), message: z.string() })).optional(),
    details: z.record(z.string(), z.unknown()).optional(),
  })
  .meta({ id: "Problem", description: "RFC 9457" });

/** As it will be stored: what Postgres cannot hold (the character NUL, halves of characters) is replaced, nesting too deep refused. */
function storable(value: unknown, context: z.core.$RefinementCtx): JsonValue {
  const result = toJsonValue(value);
  if (result.ok) return result.value;
  context.issues.push({ code: "custom", input: value, message: `${result.problem.path === "" ? "" : `${result.problem.path} `}${result.problem.problem}` });
  return z.NEVER;
}

/** Optional fields that are undefined as absent ones, which is what the client's options take. */
export function defined<T extends object>(fields: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as { [K in keyof T]: Exclude<T[K], undefined> };
}
