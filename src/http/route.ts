/** How a route is declared: schemas for all that comes in and goes out, from which the document and the checks are made. */
import type { FastifyInstance, FastifyReply, FastifyRequest } from "fastify";
import { z } from "zod";
import type { Access } from "./auth.ts";
import type { ApiContext } from "./context.ts";
import { ownConversation, ownRun, ownWait } from "./own.ts";
import { problem } from "./shapes.ts";
import { routeScopes, type RouteName } from "./scopes.ts";

export interface Asked<Params, Query, Body> {
  readonly params: Params;
  readonly query: Query;
  readonly body: Body;
  readonly access: Access;
  readonly request: FastifyRequest;
  readonly reply: FastifyReply;
}

export interface Route<Params extends z.ZodType, Query extends z.ZodType, Body extends z.ZodType> {
  readonly summary: string;
  readonly description?: string;
  readonly params?: Params;
  readonly query?: Query;
  readonly body?: Body;
  /** By status. */
  readonly answers: { readonly [status: number]: z.ZodType };
  /** Beside those that every such route has. */
  readonly problems?: readonly number[];
  handle(asked: Asked<z.output<Params>, z.output<Query>, z.output<Body>>): Promise<unknown>;
}

const nothing = z.strictObject({});
type Nothing = typeof nothing;

/** Declares `METHOD /path`; a run or a conversation that the path names is looked up under the caller's tenant first. */
export function route<Params extends z.ZodType = Nothing, Query extends z.ZodType = Nothing, Body extends z.ZodType = z.ZodUndefined>(
  app: FastifyInstance,
  context: ApiContext,
  name: RouteName,
  { summary, description, params, query, body, answers, problems = [], handle }: Route<Params, Query, Body>,
): void {
  const [method = "", url = ""] = name.split(" ");
  const access = routeScopes[name];
  const statuses = [400, 500, 503, ...(access === "public" ? [] : [401, 403, 429]), ...(body === undefined ? [] : [413, 415]), ...(url.includes(":") ? [404] : []), ...problems];
  app.route({
    method,
    url,
    schema: {
      summary,
      description: `${description === undefined ? "" : `${description}\n\n`}${access === "public" ? "Needs no token." : access === "any" ? "Needs a token." : `Needs scope \`${access}\`.`}`,
      tags: [tagOf(url)],
      ...(params === undefined ? {} : { params }),
      querystring: query ?? nothing,
      ...(body === undefined ? {} : { body }),
      ...(access === "public" ? { security: [] } : {}),
      response: {
        ...answers,
        ...Object.fromEntries(
          [...new Set(statuses)].toSorted((a, b) => a - b).map((status) => [status, { description: "A problem", content: { "application/problem+json": { schema: problem } } }]),
        ),
      },
    },
    handler: async (request, reply) => {
      const given = request.params as Record<string, string>;
      if (given["run_id"] !== undefined) await ownRun(context, request.access, given["run_id"]);
      if (given["run_id"] !== undefined && given["wait_id"] !== undefined) await ownWait(context, given["run_id"], given["wait_id"]);
      if (given["conversation_id"] !== undefined) await ownConversation(context, request.access, given["conversation_id"]);
      return await handle({
        params: request.params as z.output<Params>,
        query: request.query as z.output<Query>,
        body: request.body as z.output<Body>,
        access: request.access,
        request,
        reply,
      });
    },
  });
}

function tagOf(url: string): string {
  return url.startsWith("/v1/") ? (url.split("/")[2] ?? "") : "service";
}
