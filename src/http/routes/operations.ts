/** Queue and pools; tokens; the audit log. */
import type { FastifyInstance } from "fastify";
import { z } from "zod";
import { TokensClient, tokenScopes } from "../../client/tokens.ts";
import { openRuns, pools, queueDepth } from "../../store/queue-view.ts";
import { act } from "../act.ts";
import type { ApiContext } from "../context.ts";
import { route } from "../route.ts";
import * as s from "../shapes.ts";

const scope = z.enum(tokenScopes);
const token = z
  .looseObject({
    id: s.uuid,
    name: z.string(),
    tenant: z.string(),
    subject: z.string().optional(),
    scopes: z.array(scope),
    created_at: z.string(),
    expires_at: z.string().optional(),
    revoked_at: z.string().optional(),
    last_used_at: z.string().optional(),
    state: z.enum(["active", "expired", "revoked"]),
  })
  .meta({ id: "Token" });
const auditEntry = z
  .looseObject({
    id: z.int(),
    at: z.string(),
    tenant: z.string(),
    actor: z.string(),
    token_id: s.uuid.optional(),
    action: z.string(),
    target: z.string(),
    detail: z.looseObject({}).optional(),
  })
  .meta({ id: "AuditEntry" });

export function registerOperations(app: FastifyInstance, api: ApiContext): void {
  const { client, db, named } = api;

  route(app, api, "GET /v1/queue", {
    summary: "What of the tenant's waits for workers",
    answers: {
      200: z.object({
        runs: z.array(z.object({ state: z.string(), runs: z.int() })).describe("That have not ended"),
        pools: z.array(z.object({ pool: z.string(), ready: z.int(), later: z.int(), oldest_ms: z.number() })),
      }),
    },
    handle: async ({ access }) => ({ runs: await openRuns(db, named, access.tenant), pools: await queueDepth(db, named, access.tenant) }),
  });

  route(app, api, "GET /v1/pools", {
    summary: "Workers that are alive, by pool",
    answers: { 200: s.list(z.object({ pool: z.string(), workers: z.int(), slots: z.int(), busy: z.int() })) },
    handle: async () => ({ items: await pools(db, named) }),
  });

  route(app, api, "GET /v1/tokens", {
    summary: "List the tenant's tokens, newest first",
    answers: { 200: s.list(token) },
    handle: async ({ access }) => ({ items: await new TokensClient(db, named).list({ tenant: access.tenant }) }),
  });

  route(app, api, "GET /v1/tokens/current", {
    summary: "What the token of this request allows",
    answers: { 200: z.object({ token_id: s.uuid.optional(), name: z.string().optional(), tenant: z.string(), subject: z.string().optional(), scopes: z.array(scope) }) },
    handle: async ({ access }) => s.defined({ token_id: access.tokenId, name: access.tokenName, tenant: access.tenant, subject: access.subject, scopes: access.scopes }),
  });

  route(app, api, "POST /v1/tokens", {
    summary: "Make a token for the tenant",
    description: "The token itself is in this answer and nowhere else.",
    body: z.strictObject({ name: s.word(), scopes: z.array(scope).min(1), subject: s.word().optional(), expires_at: s.time.optional() }),
    answers: { 201: token.extend({ token: z.string() }).meta({ id: "CreatedToken" }) },
    problems: [409],
    async handle({ body, access, reply }) {
      const { expires_at: expiresAt, ...rest } = body;
      const options = { ...s.defined(rest), tenant: access.tenant, actor: access.actor, ...(expiresAt === undefined ? {} : { expiresAt: new Date(expiresAt) }) };
      const made = await act(api, access, async (tx) => await new TokensClient(tx, named).create({ ...options, ...byToken(access.tokenId) }));
      void reply.code(201).header("cache-control", "no-store");
      return made;
    },
  });

  route(app, api, "DELETE /v1/tokens/:token_id", {
    summary: "Revoke a token",
    description: "It opens nothing from then on; streams that it has open end within seconds.",
    params: z.strictObject({ token_id: s.uuid }),
    answers: { 200: z.object({ revoked: z.boolean().describe("False: it was revoked already") }) },
    async handle({ params, access }) {
      const revoked = await act(
        api,
        access,
        async (tx) => await new TokensClient(tx, named).revoke(params.token_id, { tenant: access.tenant, actor: access.actor, ...byToken(access.tokenId) }),
      );
      return { revoked };
    },
  });

  route(app, api, "GET /v1/audit", {
    summary: "Who did what in the tenant, newest first",
    query: z.strictObject({
      actor: s.word().optional(),
      action: s.word().optional().describe("Exact, or with a final `*`: `run.*`"),
      target: s.word(400).optional(),
      since: s.time.optional(),
      until: s.time.optional(),
      cursor: s.queryNumber(1, 9_999_999_999).optional(),
      limit: s.limit(100),
    }),
    answers: { 200: s.page(auditEntry) },
    async handle({ query, access }) {
      const { since, until, cursor, ...filter } = query;
      const dates = { ...(since === undefined ? {} : { since: new Date(since) }), ...(until === undefined ? {} : { until: new Date(until) }) };
      const { items, next_before: next } = await client.audit.list({ ...s.defined({ ...filter, before: cursor }), ...dates, tenant: access.tenant });
      return { items, ...(next === undefined ? {} : { next_cursor: String(next) }) };
    },
  });
}

function byToken(tokenId: string | undefined): { readonly byToken?: string } {
  return tokenId === undefined ? {} : { byToken: tokenId };
}
