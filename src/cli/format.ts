/** Numbers and times for people, and back. */
import { usageError } from "./exit.ts";

const units = [
  ["d", 86_400_000],
  ["h", 3_600_000],
  ["m", 60_000],
  ["s", 1_000],
] as const;

/** `4d`, `3h`, `12m`, `7s`, `240ms`: the largest unit that fits, which is what one scans for. */
export function duration(ms: number): string {
  const positive = Math.max(0, ms);
  for (const [name, size] of units) if (positive >= size) return `${Math.floor(positive / size)}${name}`;
  return `${Math.round(positive)}ms`;
}

export function age(at: Date | string, now: number = Date.now()): string {
  return duration(now - new Date(at).getTime());
}

/** `950`, `12k`, `1.3M`. */
export function short(count: number): string {
  if (count < 1_000) return String(count);
  if (count < 1_000_000) return `${count < 10_000 ? (count / 1_000).toFixed(1) : Math.round(count / 1_000)}k`;
  return `${(count / 1_000_000).toFixed(1)}M`;
}

export function bytes(count: number): string {
  if (count < 1_024) return `${count} B`;
  if (count < 1_024 * 1_024) return `${(count / 1_024).toFixed(1)} KB`;
  return `${(count / 1_024 / 1_024).toFixed(1)} MB`;
}

export function usd(micros: number): string {
  return `$${(micros / 1_000_000).toFixed(micros < 10_000 ? 6 : 2)}`;
}

/** `ctx 178k / 200k (89%)`; without a percentage when the window is unknown, empty before the first answer. */
export function gauge(tokens: number | null, window: number | null): string {
  if (tokens === null) return "";
  if (window === null || window <= 0) return `ctx ${short(tokens)}`;
  return `ctx ${short(tokens)} / ${short(window)} (${Math.round((tokens * 100) / window)}%)`;
}

/** An ISO 8601 time with its zone, or `+10m` from now. Throws a usage error. */
export function parseWhen(option: string, text: string): Date {
  const relative = /^\+(\d+(?:\.\d+)?)(ms|s|m|h|d)$/.exec(text);
  if (relative !== null) return new Date(Date.now() + parseDuration(option, text.slice(1)));
  // A time without a zone would mean another moment on every machine.
  if (/(?:Z|[+-]\d{2}:?\d{2})$/.test(text) && !Number.isNaN(Date.parse(text))) return new Date(text);
  throw usageError(`${option} ${text}: give an ISO 8601 time with a zone (2026-12-01T08:00:00Z) or a distance from now (+10m)`);
}

/** `500ms`, `30s`, `10m`, `2h`, `1d` in milliseconds. */
export function parseDuration(option: string, text: string): number {
  const [, count, unit] = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)$/.exec(text) ?? [];
  if (count === undefined) throw usageError(`${option} ${text}: give a number with a unit: 500ms, 30s, 10m, 2h or 1d`);
  return Number(count) * (units.find(([name]) => name === unit)?.[1] ?? 1);
}

export function parseCount(option: string, { min, max }: { readonly min: number; readonly max: number }): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (Number.isInteger(value) && value >= min && value <= max && text.trim() !== "") return value;
    throw usageError(`${option} ${text}: must be a whole number from ${min} to ${max}`);
  };
}

const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

export function parseRunId(text: string): string {
  if (uuid.test(text)) return text.toLowerCase();
  throw usageError(`${JSON.stringify(text)} is not a run id; capstan runs list shows them`);
}

export function parseWaitId(text: string): string {
  if (uuid.test(text)) return text.toLowerCase();
  throw usageError(`${JSON.stringify(text)} is not the id of an approval or a question; capstan approvals list shows them`);
}
