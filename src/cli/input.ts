/** What the user gives as a run's input: a word on the command line, `-` for standard input, `@file`. */
import { readFile } from "node:fs/promises";
import { text as readAll } from "node:stream/consumers";
import type { JsonValue } from "../domain/json.ts";
import { usageError } from "./exit.ts";

export interface InputForm {
  /** Never read as JSON. */
  readonly text?: boolean;
  /** Must be JSON, also numbers and literals. */
  readonly asJson?: boolean;
}

/**
 * No argument is `null`. Text that begins like a JSON object, list or string and parses as one is JSON. A broken object or
 * list is refused rather than sent as text: it is nearly always a slip, and the run would start with it.
 */
export async function readInput(argument: string | undefined, form: InputForm): Promise<JsonValue> {
  if (form.text === true && form.asJson === true) throw usageError("--text and --as-json exclude each other");
  if (argument === undefined) return null;
  const given = await contentOf(argument);
  if (form.text === true) return given;
  const parsed = form.asJson === true || /^\s*[{["]/.test(given) ? parse(given) : undefined;
  if (parsed?.ok === true) return parsed.value;
  if (form.asJson === true) throw usageError(`the input is not JSON: ${parsed?.ok === false ? parsed.problem : ""}`);
  if (parsed !== undefined && /^\s*[{[]/.test(given)) throw usageError(`the input begins like JSON and is none: ${parsed.problem}; to send it as text, add --text`);
  return given;
}

async function contentOf(argument: string): Promise<string> {
  if (argument === "-") return await readAll(process.stdin);
  if (!argument.startsWith("@")) return argument;
  try {
    return await readFile(argument.slice(1), "utf8");
  } catch (error) {
    throw usageError(`cannot read ${argument.slice(1)}: ${(error as Error).message} (a text that begins with @ can be given on standard input, with -)`);
  }
}

function parse(given: string): { ok: true; value: JsonValue } | { ok: false; problem: string } {
  try {
    return { ok: true, value: JSON.parse(given) as JsonValue };
  } catch (error) {
    return { ok: false, problem: (error as Error).message };
  }
}
