/** Settings of one run, checked before they are sent. What they must be beside a definition's own is for the database to say. */
import type { z } from "zod";
import { budgetIssues, budgetSchema } from "../domain/budget.ts";
import { compactionPolicy } from "../domain/compaction/policy.ts";
import { ArgumentError } from "./errors.ts";

const schemas = { compaction: compactionPolicy, budget: budgetSchema } as const;

/** JSON text, or null for what says nothing. Throws ArgumentError naming the field and its range. */
export function settingJson(name: keyof typeof schemas, given: unknown): string | null {
  if (given === undefined || given === null) return null;
  const parsed = schemas[name].safeParse(given);
  if (!parsed.success) throw new ArgumentError(settingIssues(name, parsed.error, given));
  const problem = name === "budget" ? budgetIssues(parsed.data as z.infer<typeof budgetSchema>)[0] : undefined;
  if (problem !== undefined) throw new ArgumentError(`budget.${problem.path} ${problem.message}`);
  const json = JSON.stringify(parsed.data);
  return json === "{}" ? null : json;
}

function settingIssues(name: keyof typeof schemas, { issues }: z.ZodError, given: unknown): string {
  return issues
    .flatMap((issue) => {
      const path = [name, ...issue.path.map(String)];
      if (issue.code !== "unrecognized_keys") return [`${path.join(".")} ${issue.path.length === 0 ? `is not an object but ${JSON.stringify(given)}` : issue.message}`];
      const known = Object.keys((path.length === 1 ? schemas[name] : (schemas.budget.shape.hard.unwrap() as z.ZodObject)).shape).join(", ");
      return issue.keys.map((key) => `${[...path, key].join(".")} is not a known field: there are ${known}`);
    })
    .join("; ");
}
