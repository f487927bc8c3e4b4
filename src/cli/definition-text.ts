/** Differences of definitions for people: short values on one line, long texts line by line. */
import type { DefinitionChange } from "../domain/definition-diff.ts";
import type { JsonValue } from "../domain/json.ts";
import { diffLines, hunks } from "./line-diff.ts";
import { printable, type Colors } from "./output.ts";

const MAX_SHORT_CHARS = 60;

export function changeLines(changes: readonly DefinitionChange[], colors: Colors): string[] {
  return changes.flatMap(({ path, before, after }) => {
    const isShort = [before, after].every((value) => value === undefined || (!isText(value) && JSON.stringify(value).length <= MAX_SHORT_CHARS) || isShortText(value));
    const name = colors.bold(printable(path));
    if (isShort) return [`${name}: ${short(before)} → ${short(after)}`];
    const lines = hunks(diffLines(asText(before), asText(after))).map((line) => `  ${printable(line)}`);
    return [name, ...lines.map((line) => (line.startsWith("  -") ? colors.red(line) : line.startsWith("  +") ? colors.green(line) : line))];
  });
}

const isText = (value: JsonValue): value is string => typeof value === "string";
const isShortText = (value: JsonValue): boolean => isText(value) && value.length <= MAX_SHORT_CHARS && !value.includes("\n");

function short(value: JsonValue | undefined): string {
  return value === undefined ? "(unset)" : printable(JSON.stringify(value));
}

function asText(value: JsonValue | undefined): string {
  if (value === undefined) return "(unset)";
  return isText(value) ? value : JSON.stringify(value, null, 2);
}
