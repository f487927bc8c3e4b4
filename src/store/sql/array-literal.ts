/**
 * Postgres array literals. The driver's own conversion of JavaScript arrays escapes each element with two regular
 * expressions and joins piecewise; an append sends some twenty arrays a turn, so the plain ones are joined directly.
 */
type Plain = string | number | boolean | null | undefined;

/** For numbers, booleans, uuids and timestamps: nothing in them needs quoting. */
export function plainArray(values: readonly Plain[]): string {
  let text = "{";
  for (let i = 0; i < values.length; i++) text += (i === 0 ? "" : ",") + (values[i] ?? "NULL");
  return `${text}}`;
}

export function textArray(values: readonly (string | null | undefined)[]): string {
  let text = "{";
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    text += (i === 0 ? "" : ",") + (value === null || value === undefined ? "NULL" : `"${value.replaceAll(/[\\"]/g, "\\$&")}"`);
  }
  return `${text}}`;
}
