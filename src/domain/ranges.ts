/** Numbers of a configuration. Whatever is wrong with one, its refusal names the whole range, not just the end that was missed. */
import { z } from "zod";

export function wholeNumber(min: number, max: number = Number.MAX_SAFE_INTEGER): z.ZodInt {
  const error = refusal("a whole number", { min, max });
  return z.int({ error }).min(min, { error }).max(max, { error });
}

export function numberBetween(min: number, max: number): z.ZodNumber {
  const error = refusal("a number", { min, max });
  return z.number({ error }).min(min, { error }).max(max, { error });
}

/** On its own for a union that holds such a number: zod would say "Invalid input" of it, or speak of one branch only. */
export function refusal(what: string, { min, max }: { readonly min: number; readonly max: number }): (issue: { readonly input?: unknown }) => string {
  const range = max === Number.MAX_SAFE_INTEGER ? `of at least ${min}` : `from ${min} to ${max}`;
  return ({ input }) => `must be ${what} ${range}, not ${shown(input)}`;
}

function shown(input: unknown): string {
  if (typeof input === "string") return JSON.stringify(input.slice(0, 40));
  if (typeof input === "number" || typeof input === "boolean" || input === null || input === undefined) return String(input);
  return Array.isArray(input) ? "a list" : `a ${typeof input}`;
}
