/** What a tool's `execute` may give instead of a result: its run then waits, holding no worker, until the answer comes from outside. */
import { z } from "zod";
import { MAX_WAIT_MS } from "../domain/definition.ts";
import type { JsonObject } from "../domain/json.ts";
import { Deferred } from "../engine/deferred.ts";
import { ConfigError } from "./config-error.ts";

export interface DeferOptions {
  /** What the answer has to fit; one that does not is refused where it is given. */
  readonly schema?: z.ZodType;
  /** Milliseconds, up to ten years, after which the call fails with WAIT_EXPIRED; default: it waits for as long as it takes. */
  readonly timeoutMs?: number;
}

/** Somebody else completes this call: `capstan.waits.complete(context.completionToken, result)`. */
export function later(options: DeferOptions = {}): Deferred {
  return new Deferred({ kind: "completion", ...common("later", options) });
}

/** The call is answered by the next signal of this name that the run gets, or has got already. */
export function waitFor(signal: string, options: DeferOptions = {}): Deferred {
  if (typeof signal !== "string" || signal.length < 1 || signal.length > 200) throw new ConfigError("waitFor", [{ path: "signal", message: "must have 1 to 200 characters" }]);
  return new Deferred({ kind: "signal", signal, ...common("waitFor", options) });
}

/** The call is answered at this time, or after so many milliseconds. */
export function sleep(until: Date | number): Deferred {
  const isMs = typeof until === "number";
  if (isMs && !(until >= 0 && until <= MAX_WAIT_MS)) throw new ConfigError("sleep", [{ path: "until", message: `must be from 0 to ${MAX_WAIT_MS} ms (ten years), not ${until}` }]);
  if (!isMs && Number.isNaN(until.getTime())) throw new ConfigError("sleep", [{ path: "until", message: "is no valid time" }]);
  return new Deferred({ kind: "timer", at: isMs ? { inMs: until } : until });
}

/** A person answers: `capstan.waits.answer(id, answer)`. */
export function ask(question: string, options: DeferOptions & { readonly options?: readonly string[] } = {}): Deferred {
  const { options: choices } = options;
  return new Deferred({ kind: "question", question, ...(choices === undefined ? {} : { options: choices }), ...common("ask", options) });
}

function common(where: string, { schema, timeoutMs }: DeferOptions): { schema?: JsonObject; timeoutMs?: number } {
  if (timeoutMs !== undefined && !(Number.isInteger(timeoutMs) && timeoutMs >= 1 && timeoutMs <= MAX_WAIT_MS)) {
    throw new ConfigError(where, [{ path: "timeoutMs", message: `must be a whole number from 1 to ${MAX_WAIT_MS} (ten years), not ${timeoutMs}` }]);
  }
  if (schema === undefined) return timeoutMs === undefined ? {} : { timeoutMs };
  const { $schema: _, ...json } = z.toJSONSchema(schema, { io: "input" });
  return { schema: json as JsonObject, ...(timeoutMs === undefined ? {} : { timeoutMs }) };
}
