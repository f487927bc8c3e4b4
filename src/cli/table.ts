/** Aligned columns for people. */
import { stripVTControlCharacters } from "node:util";

export interface Column<Row> {
  readonly title: string;
  readonly align?: "right";
  value(row: Row): string;
}

export function tableLines<Row>(columns: readonly Column<Row>[], rows: readonly Row[], heading: (text: string) => string = (text) => text): string[] {
  const cells = rows.map((row) => columns.map((column) => column.value(row)));
  const widths = columns.map((column, i) => Math.max(width(column.title), ...cells.map((row) => width(row[i] ?? ""))));
  const lineOf = (values: readonly string[]): string =>
    values
      .map((value, i) => {
        const padding = " ".repeat((widths[i] ?? 0) - width(value));
        return columns[i]?.align === "right" ? padding + value : value + padding;
      })
      .join("  ")
      .trimEnd();
  return [heading(lineOf(columns.map((column) => column.title))), ...cells.map(lineOf)];
}

/** `name  value` lines; absent values are left out. */
export function factLines(facts: readonly (readonly [name: string, value: string | undefined])[], style: (text: string) => string = (text) => text): string[] {
  const known = facts.filter((fact): fact is readonly [string, string] => fact[1] !== undefined && fact[1] !== "");
  const widest = Math.max(0, ...known.map(([name]) => name.length));
  return known.map(([name, value]) => `${style(name.padEnd(widest))}  ${value}`);
}

/** Code points as seen; wide scripts are counted as one, which costs alignment and nothing else. */
function width(text: string): number {
  return Array.from(stripVTControlCharacters(text)).length;
}
