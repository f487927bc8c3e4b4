/** The HTTP API of one process: fastify put together with what all routes share (docs/http.md). */
import Fastify, { type FastifyInstance, type FastifyRequest } from "fastify";
import { serializerCompiler, validatorCompiler } from "fastify-type-provider-zod";
import type pg from "pg";
import { randomUUID } from "node:crypto";
import type { CapstanClient } from "../client/client.ts";
import { TokensClient } from "../client/tokens.ts";
import type { WebhookGuard } from "../client/webhooks.ts";
import type { Log } from "../engine/ports.ts";
import { defaultNames, namedSql, type SchemaNames } from "../store/names.ts";
import { Authenticator, type Access, type AuthOptions } from "./auth.ts";
import { registerBodies } from "./body.ts";
import type { ApiContext } from "./context.ts";
import { registerDocument } from "./document.ts";
import { RequestError } from "./problems.ts";
import { defaultRateLimit, RateLimiter, type RateLimit } from "./rate-limit.ts";
import { refuse, registerRefusals } from "./refusals.ts";
import { registerAgents } from "./routes/agents.ts";
import { registerCompactRuns } from "./routes/compact-runs.ts";
import { registerConversations } from "./routes/conversations.ts";
import { registerLimits } from "./routes/limits.ts";
import { registerOperations } from "./routes/operations.ts";
import { registerReadRuns } from "./routes/read-runs.ts";
import { registerSchedules } from "./routes/schedules.ts";
import { registerService } from "./routes/service.ts";
import { registerStartRuns } from "./routes/start-runs.ts";
import { registerSteerRuns } from "./routes/steer-runs.ts";
import { registerWebhooks } from "./routes/webhooks.ts";
import { mayUse, routeScopes, type RouteAccess } from "./scopes.ts";
import type { HubSettings } from "./stream/hub.ts";
import { registerEventStream } from "./stream/route.ts";

declare module "fastify" {
  interface FastifyRequest {
    /** Set before anything of the request is looked at; of a public route it is nobody's. */
    access: Access;
  }
}

export interface ApiOptions {
  readonly db: pg.Pool;
  /** Over the same database; stays open when the API closes. */
  readonly client: CapstanClient;
  readonly names?: SchemaNames;
  /** Where notifications arrive, when `db` goes through a pooler in transaction mode. */
  readonly directConnectionString?: string;
  readonly log: Log;
  readonly auth?: AuthOptions;
  readonly rateLimit?: RateLimit;
  /** Bytes; default 16 MiB. */
  readonly bodyLimit?: number;
  readonly stream?: Partial<HubSettings>;
  /** Judges addresses of webhooks. */
  readonly webhookGuard?: WebhookGuard;
  /** What else is served beside the API's own routes, each with its scope. */
  readonly mounts?: readonly Mount[];
}

export interface Mount {
  readonly scopes: { readonly [route: string]: RouteAccess };
  register(app: FastifyInstance): void;
}

export interface Api {
  readonly app: FastifyInstance;
  /** Gives the address. Throws RequestError where a host is asked for that others reach, and no token was ever made. */
  listen(options: { readonly host: string; readonly port: number }): Promise<{ readonly url: string; readonly isOpen: boolean }>;
  /** Ends streams and long waits, answers what is under way, and lets go of the port. May be called twice. */
  close(): Promise<void>;
}

const BODY_LIMIT = 16 * 1024 * 1024;
const NOBODY: Access = { tenant: "", scopes: [], actor: "", isOperator: false };

export async function createApi(options: ApiOptions): Promise<Api> {
  const { db, client, names = defaultNames, log, rateLimit = defaultRateLimit, bodyLimit = BODY_LIMIT } = options;
  const named = namedSql(names);
  const auth = new Authenticator(new TokensClient(db, named), options.auth);
  const stopping = new AbortController();
  const app = Fastify({
    bodyLimit,
    forceCloseConnections: "idle",
    // An id of our own: one that came with the request could be anything, and goes into logs and headers.
    genReqId: () => randomUUID(),
    exposeHeadRoutes: false,
    requestTimeout: 120_000,
    routerOptions: { maxParamLength: 400 },
    frameworkErrors: (error, request, reply) => void refuse(error, request, reply, log),
  });
  app.setValidatorCompiler(validatorCompiler);
  app.setSerializerCompiler(serializerCompiler);
  registerBodies(app);
  registerRefusals(app, log);
  app.decorateRequest("access", null as unknown as Access);

  const scopes: Record<string, RouteAccess> = { ...routeScopes };
  app.addHook("onRoute", ({ method, url }) => {
    // A route that somebody forgot to put into the table must not be one that everybody may use.
    for (const each of [method].flat())
      if (!url.startsWith("/docs") && scopes[`${each} ${url}`] === undefined) throw new RangeError(`route ${each} ${url} has no scope in src/http/scopes.ts`);
  });
  const limiter = new RateLimiter(rateLimit);
  app.addHook("onRequest", async (request, reply) => {
    void reply.header("x-request-id", request.id).header("x-content-type-options", "nosniff");
    request.access = await accessOf(request, auth, limiter, scopes);
  });
  app.addHook("onSend", async (_, reply) => {
    // A connection that is kept alive would keep the process waiting for it.
    if (stopping.signal.aborted) void reply.header("connection", "close");
  });
  app.addHook("onResponse", async (request, reply) => {
    log.debug(
      {
        requestId: request.id,
        method: request.method,
        route: request.routeOptions.url,
        status: reply.statusCode,
        tokenId: request.access?.tokenId,
        ms: Math.round(reply.elapsedTime),
      },
      "answered",
    );
  });
  app.addHook("preClose", async () => stopping.abort());

  await registerDocument(app);
  const directConnection = options.directConnectionString === undefined ? {} : { directConnectionString: options.directConnectionString };
  const stream = registerEventStream(app, { db, named, log, ...directConnection, ...(options.stream === undefined ? {} : { settings: options.stream }) });
  const context: ApiContext = { db, named, client, stream, log, stopping: stopping.signal, webhookGuard: options.webhookGuard };
  for (const register of groups) register(app, context);
  for (const mount of options.mounts ?? []) {
    Object.assign(scopes, mount.scopes);
    mount.register(app);
  }

  let closing: Promise<void> | undefined;
  return {
    app,
    async listen({ host, port }) {
      const { isOpen } = await auth.checkHost(host);
      return { url: await app.listen({ host, port }), isOpen };
    },
    close: () => (closing ??= app.close()),
  };
}

const groups = [
  registerService,
  registerStartRuns,
  registerReadRuns,
  registerSteerRuns,
  registerCompactRuns,
  registerConversations,
  registerAgents,
  registerSchedules,
  registerLimits,
  registerOperations,
  registerWebhooks,
];

async function accessOf(request: FastifyRequest, auth: Authenticator, limiter: RateLimiter, scopes: Readonly<Record<string, RouteAccess>>): Promise<Access> {
  const { url } = request.routeOptions;
  const needed = url === undefined || url.startsWith("/docs") ? "public" : (scopes[`${request.method} ${url}`] ?? "admin");
  if (needed === "public") return NOBODY;
  const limit = (caller: string): void => {
    const retryAfterS = limiter.take(caller);
    if (retryAfterS !== undefined) throw new RequestError("RATE_LIMITED", "more requests than this API takes from one caller; go slower", { retryAfterS });
  };
  let access: Access;
  try {
    access = await auth.authenticate(request);
  } catch (error) {
    // Guesses at tokens are counted by where they come from.
    limit(`address ${request.ip}`);
    throw error;
  }
  limit(access.tokenId ?? "operator");
  if (!mayUse(access.scopes, needed)) throw new RequestError("FORBIDDEN", `this needs a token with scope ${needed}; this one has ${access.scopes.join(", ")}`);
  return access;
}
