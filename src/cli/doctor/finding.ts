/** One thing that doctor looked at: what it found, what that means, what to do. */
export type FindingLevel = "ok" | "info" | "warning" | "error";

export interface Finding {
  /** Stable name, for scripts. */
  readonly check: string;
  readonly level: FindingLevel;
  readonly found: string;
  readonly means?: string;
  readonly do?: string;
}

export function ok(check: string, found: string): Finding {
  return { check, level: "ok", found };
}

export function finding(level: Exclude<FindingLevel, "ok">, check: string, found: string, means: string, advice: string): Finding {
  return { check, level, found, means, do: advice };
}

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${n} ${n === 1 ? one : many}`;
}
