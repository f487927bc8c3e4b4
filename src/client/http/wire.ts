/** From the client's words to the wire's. */
import type { JsonObject, JsonValue } from "../../domain/json.ts";
import { ArgumentError } from "../errors.ts";

/** What only a connection to the database has, or what the API takes from the token. */
const notOverHttp: Readonly<Record<string, string>> = {
  tx: "a transaction of the caller's needs a client with connectionString or pool",
  tenant: "the tenant is the token's",
  actor: "who acts is the token's name",
  agent: "a service over HTTP stores no definition: promote it, or fork it with `agents`",
  traceparent: "the trace is the request's own: give `fetch` one that sends the header",
  tracestate: "the trace is the request's own: give `fetch` one that sends the header",
};

/** Throws ArgumentError for an option that would silently mean nothing. */
export function refuseOverHttp(what: string, options: object): void {
  for (const [name, value] of Object.entries(options)) {
    const why = notOverHttp[name];
    if (value !== undefined && why !== undefined) throw new ArgumentError(`${what}: \`${name}\` cannot be given over HTTP: ${why}`);
  }
}

export function withoutUndefined(fields: Readonly<Record<string, JsonValue | undefined>>): JsonObject {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as JsonObject;
}
