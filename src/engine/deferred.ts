import type { CallWait } from "../domain/event.ts";
import type { JsonObject } from "../domain/json.ts";

/** Milliseconds from now, by the database's clock when it is journaled. */
type Timed = { readonly timeoutMs?: number };

export type DeferredWait =
  | ({ readonly kind: "completion"; readonly schema?: JsonObject } & Timed)
  | ({ readonly kind: "signal"; readonly signal: string; readonly schema?: JsonObject } & Timed)
  | ({ readonly kind: "question"; readonly question: string; readonly options?: readonly string[]; readonly schema?: JsonObject } & Timed)
  | { readonly kind: "timer"; readonly at: Date | { readonly inMs: number } }
  | Extract<CallWait, { kind: "children" }>;

/** What a tool gives instead of a result: the call is answered from outside, and its run holds nothing until then. */
export class Deferred {
  readonly wait: DeferredWait;
  constructor(wait: DeferredWait) {
    this.wait = wait;
  }
}

export function journaledWait(wait: DeferredWait, now: Date): CallWait {
  const after = (ms: number): string => new Date(now.getTime() + ms).toISOString();
  switch (wait.kind) {
    case "children":
      return wait;
    case "timer":
      return { kind: "timer", wake_at: wait.at instanceof Date ? wait.at.toISOString() : after(wait.at.inMs) };
    default: {
      const { timeoutMs, ...rest } = wait;
      return { ...rest, ...(timeoutMs === undefined ? {} : { expires_at: after(timeoutMs) }) } as CallWait;
    }
  }
}
