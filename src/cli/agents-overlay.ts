/** An overlay as it is given on a command line: a file, single fields to set, single fields to unset. */
import { readFile } from "node:fs/promises";
import { text as readAll } from "node:stream/consumers";
import type { JsonObject, JsonValue } from "../domain/json.ts";
import type { DefinitionOverlay } from "../domain/overlay.ts";
import { usageError } from "./exit.ts";

export interface OverlayFlags {
  readonly set: readonly string[];
  readonly unset: readonly string[];
  readonly overlay?: string;
}

/** Single fields win over the file. Throws usage errors; what the fields may hold is for the definition's own schema to say. */
export async function readOverlay({ set, unset, overlay }: OverlayFlags): Promise<DefinitionOverlay> {
  const fields = new Map<string, JsonValue>();
  for (const given of set) {
    const at = given.indexOf("=");
    if (at < 1) throw usageError(`--set ${given}: give a field and its value, as in --set compaction.keep_last_n=2`);
    addField(fields, "--set", given.slice(0, at), valueOf(given.slice(at + 1)));
  }
  for (const field of unset) addField(fields, "--unset", field, null);
  const file = overlay === undefined ? {} : await readFields(overlay);
  if (fields.size === 0 && overlay === undefined) throw usageError("nothing to change: give --set, --unset or --overlay");
  const merged = new Map<string, JsonValue>(Object.entries(file));
  for (const [path, value] of fields) {
    const [group = "", field] = path.split(".");
    const before = merged.get(group);
    merged.set(group, field === undefined ? value : Object.fromEntries([...Object.entries(isObject(before) ? before : {}), [field, value]]));
  }
  return Object.fromEntries(merged) as DefinitionOverlay;
}

function addField(fields: Map<string, JsonValue>, option: string, path: string, value: JsonValue): void {
  // Deeper values are replaced as a whole: half of a JSON Schema is rarely what is meant.
  if (!/^[^.]+(\.[^.]+)?$/.test(path))
    throw usageError(`${option} ${path}: name a field (instructions) or a field of a group (compaction.keep_last_n); what is deeper is given as JSON`);
  if (fields.has(path)) throw usageError(`${option} ${path}: given twice`);
  const other = [...fields.keys()].find((known) => known.startsWith(`${path}.`) || path.startsWith(`${known}.`));
  if (other !== undefined) throw usageError(`${option} ${path}: contradicts ${other}`);
  fields.set(path, value);
}

/** JSON where it is some, else text: 70, true, ["a"], anthropic:claude… A text that looks like JSON is given in quotes. */
function valueOf(text: string): JsonValue {
  try {
    return JSON.parse(text) as JsonValue;
  } catch {
    return text;
  }
}

async function readFields(path: string): Promise<JsonObject> {
  let text: string;
  try {
    text = path === "-" ? await readAll(process.stdin) : await readFile(path, "utf8");
  } catch (error) {
    throw usageError(`cannot read ${path}: ${(error as Error).message}`);
  }
  let parsed: JsonValue;
  try {
    parsed = JSON.parse(text) as JsonValue;
  } catch (error) {
    throw usageError(`--overlay ${path} is not JSON: ${(error as Error).message}`);
  }
  if (!isObject(parsed)) throw usageError(`--overlay ${path}: must be an object of fields to change`);
  return parsed;
}

function isObject(value: JsonValue | undefined): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
