/** NaN for an empty list. */
export function quantile(values: readonly number[], q: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(q * sorted.length) - 1))] ?? Number.NaN;
}

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? (sorted[middle] as number) : ((sorted[middle - 1] ?? Number.NaN) + (sorted[middle] ?? Number.NaN)) / 2;
}

/** 1,234, 12.3, 1.23: three digits or the whole number. */
export function show(value: number | undefined): string {
  if (value === undefined || Number.isNaN(value)) return "–";
  if (Math.abs(value) >= 100) return Math.round(value).toLocaleString("en-US");
  return value.toFixed(Math.abs(value) >= 10 ? 1 : 2);
}

/** "1,234 [1,100–1,300]"; the range only when there is one. */
export function showRange(values: readonly number[]): string {
  if (values.length < 2) return show(values[0]);
  return `${show(median(values))} [${show(Math.min(...values))}–${show(Math.max(...values))}]`;
}
