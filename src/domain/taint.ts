/**
 * A value with the origin that it came from, when that is not the operator. Plain data, so that it survives storage; who
 * forges it gains nothing, since what it says is only ever "trust this less".
 */
export interface Tainted<T = unknown> {
  readonly $tainted: string;
  readonly value: T;
}

/** @param origin as in an event's envelope: `tool:<name>`, `agent:<name>`, `mcp:<server>`. */
export function tainted<T>(value: T, origin: string): Tainted<T> {
  return { $tainted: origin, value };
}

export function isTainted(value: unknown): value is Tainted {
  return typeof value === "object" && value !== null && "$tainted" in value && typeof value.$tainted === "string" && "value" in value;
}
