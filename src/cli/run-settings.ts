/** `--compaction` and `--budget`: settings of one run, field by field or as JSON. */
import type { Command } from "commander";
import type { Budget } from "../domain/budget.ts";
import type { CompactionPolicy } from "../domain/compaction/policy.ts";
import type { JsonObject, JsonValue } from "../domain/json.ts";
import { usageError } from "./exit.ts";

export interface SettingFlags {
  readonly compaction: readonly string[];
  readonly budget: readonly string[];
}

const collect = (value: string, before: readonly string[]): string[] => [...before, value];

export function withSettings(command: Command): Command {
  return command
    .option("--compaction <field=value>", "set a field of this run's compaction policy, or give it as JSON (may be repeated)", collect, [] as string[])
    .option("--budget <field=value>", "set a limit of this run's budget, as hard.tokens=100000, or give it as JSON (may be repeated)", collect, [] as string[]);
}

/** What the fields may hold is for whoever takes the settings to say. Throws usage errors. */
export function readSettings({ compaction, budget }: SettingFlags): { readonly compaction?: CompactionPolicy; readonly budget?: Budget } {
  return {
    ...(compaction.length === 0 ? {} : { compaction: read("--compaction", compaction) }),
    ...(budget.length === 0 ? {} : { budget: read("--budget", budget) }),
  };
}

function read(option: string, given: readonly string[]): JsonObject {
  const settings = new Map<string, JsonValue>();
  for (const text of given) {
    if (text.trimStart().startsWith("{")) {
      for (const [field, value] of Object.entries(parseObject(option, text))) settings.set(field, value);
      continue;
    }
    const at = text.indexOf("=");
    const [, field, inner] = at < 1 ? [] : (/^([a-z_]+)(?:\.([a-z_]+))?$/.exec(text.slice(0, at)) ?? []);
    if (field === undefined)
      throw usageError(`${option} ${text}: give a field and its value (${option === "--budget" ? "hard.tokens=100000" : "keep_last_n=2"}), or a JSON object`);
    const value = valueOf(text.slice(at + 1));
    settings.set(field, inner === undefined ? value : { ...(settings.get(field) as JsonObject | undefined), [inner]: value });
  }
  return Object.fromEntries(settings);
}

function parseObject(option: string, text: string): JsonObject {
  try {
    return JSON.parse(text) as JsonObject;
  } catch (error) {
    throw usageError(`${option} begins like JSON and is none: ${(error as Error).message}`);
  }
}

/** JSON where it is some, else text: 70, true, offline:extractive. */
function valueOf(text: string): JsonValue {
  try {
    return JSON.parse(text) as JsonValue;
  } catch {
    return text;
  }
}
