/** Headers that mean something to what a request does. */
import type { FastifyRequest } from "fastify";
import { RequestError } from "./problems.ts";

/** Whoever sends a request again with the same key asks for the same thing. Throws for what cannot be a key. */
export function idempotencyKeyOf({ headers }: FastifyRequest): string | undefined {
  const key = headers["idempotency-key"];
  if (key === undefined) return undefined;
  if (typeof key === "string" && /^[\x20-\x7e]{1,400}$/.test(key)) return key;
  throw new RequestError("ARGUMENT_INVALID", "the header idempotency-key must have 1 to 400 characters of ASCII", {
    issues: [{ path: "idempotency-key", message: "must have 1 to 400 characters of ASCII" }],
  });
}

/** The caller's trace (W3C Trace Context), which the run's spans then belong to. One that is malformed is as none, as its specification has it. */
export function traceOf({ headers }: FastifyRequest): { readonly traceparent?: string; readonly tracestate?: string } {
  const { traceparent, tracestate } = headers;
  if (typeof traceparent !== "string" || !/^[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/.test(traceparent) || traceparent.startsWith("ff")) return {};
  return { traceparent, ...(typeof tracestate === "string" && /^[\x20-\x7e]{1,512}$/.test(tracestate) ? { tracestate } : {}) };
}
