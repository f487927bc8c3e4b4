/** Every way in which a request comes to nothing, as a problem document. */
import type { FastifyInstance, FastifyReply, FastifyRequest } from "fastify";
import { hasZodFastifySchemaValidationErrors } from "fastify-type-provider-zod";
import type { Log } from "../engine/ports.ts";
import { problemOf, RequestError, type Issue } from "./problems.ts";

export function registerRefusals(app: FastifyInstance, log: Log): void {
  app.setErrorHandler((error, request, reply) => refuse(error, request, reply, log));
  app.setNotFoundHandler((request, reply) => {
    refuse(new RequestError("ROUTE_UNKNOWN", "there is no such route; /openapi.json lists those there are"), request, reply, log);
  });
}

export function refuse(error: unknown, request: FastifyRequest, reply: FastifyReply, log: Log): FastifyReply {
  const { problem, retryAfterS, isOurs } = problemOf(hasZodFastifySchemaValidationErrors(error) ? invalid(error) : error, pathOf(request.url));
  if (isOurs) log[problem.status === 500 ? "error" : "warn"]({ err: error, requestId: request.id, route: request.routeOptions.url }, "a request could not be answered");
  void reply.code(problem.status).type("application/problem+json");
  if (retryAfterS !== undefined) void reply.header("retry-after", String(retryAfterS));
  if (problem.status === 401) void reply.header("www-authenticate", "Bearer");
  // As bytes: the routes' own schemas have no say in it, and the media type no charset.
  return reply.send(Buffer.from(JSON.stringify(problem)));
}

function pathOf(url: string): string {
  return url.split(/[?#]/, 1)[0] as string;
}

interface Validation {
  readonly validationContext?: string;
  readonly validation: readonly { readonly keyword: string; readonly instancePath: string; readonly message?: string; readonly params: Readonly<Record<string, unknown>> }[];
}

/** Unknown fields are named one by one: what is misspelt is what one has to find. */
function invalid(error: unknown): RequestError {
  const { validation, validationContext = "body" } = error as Validation;
  const issues = validation.flatMap(({ keyword, instancePath, message = "is not valid", params }): Issue[] => {
    const path = instancePath.split("/").filter((part) => part !== "");
    const { keys } = params;
    if (keyword !== "unrecognized_keys" || !Array.isArray(keys)) return [{ path: path.join("."), message }];
    return keys.map((key) => ({ path: [...path, String(key)].join("."), message: "is not a known field" }));
  });
  const where = validationContext === "querystring" ? "query" : validationContext === "params" ? "path" : validationContext;
  const text = issues.map(({ path, message }) => (path === "" ? message : `${path} ${message}`)).join("; ");
  return new RequestError("ARGUMENT_INVALID", `${where}: ${text.slice(0, 2_000)}`, { issues: issues.slice(0, 100) });
}
