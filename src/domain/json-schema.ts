/** Checks values against stored JSON Schemas, through zod: one validator for TypeScript, SQL and recorded definitions. */
import { z } from "zod";
import { canonicalJson, type JsonObject, type JsonValue } from "./json.ts";

export type Checked = { readonly ok: true; readonly value: unknown } | { readonly ok: false; readonly issues: readonly { readonly path: string; readonly message: string }[] };

/** Compiled schemas by their text: a definition's schema is checked every time its agent answers. */
const compiled = new Map<string, z.ZodType>();
const MAX_COMPILED = 500;

/** A schema that zod cannot compile, and a value on which its checks throw (a hostile `length`), are issues: a throw would come again in every turn. */
export function checkAgainst(schema: JsonObject, value: JsonValue): Checked {
  try {
    return fromZod(validatorOf(schema).safeParse(value));
  } catch (error) {
    return { ok: false, issues: [{ path: "", message: `the value could not be checked: ${error instanceof Error ? error.message : String(error)}` }] };
  }
}

function validatorOf(schema: JsonObject): z.ZodType {
  const key = canonicalJson(schema);
  let validator = compiled.get(key);
  if (validator === undefined) {
    validator = z.fromJSONSchema(schema);
    if (compiled.size >= MAX_COMPILED) compiled.clear();
    compiled.set(key, validator);
  }
  return validator;
}

export function fromZod(parsed: z.ZodSafeParseResult<unknown>): Checked {
  if (parsed.success) return { ok: true, value: parsed.data };
  return { ok: false, issues: parsed.error.issues.map((issue) => ({ path: issue.path.map(String).join("."), message: issue.message })) };
}

export function issuesText(issues: readonly { readonly path: string; readonly message: string }[]): string {
  return issues.map(({ path, message }) => (path === "" ? message : `${path}: ${message}`)).join("; ");
}
