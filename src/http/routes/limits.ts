/** What the tenant may use and has used; standing still as a whole. */
import type { FastifyInstance } from "fastify";
import { z } from "zod";
import { PauseClient } from "../../client/pauses.ts";
import { usageGroups } from "../../client/usage.ts";
import type { QuotaView } from "../../client/quotas.ts";
import { quotaScopes, type QuotaLimitSpec } from "../../domain/quota.ts";
import { wholeNumber } from "../../domain/ranges.ts";
import { act } from "../act.ts";
import type { Access } from "../auth.ts";
import type { ApiContext } from "../context.ts";
import { RequestError } from "../problems.ts";
import { route } from "../route.ts";
import * as s from "../shapes.ts";

const DAY_MS = 86_400_000;
const measure = {
  kind: z.enum(["turn", "summary", "tool", "run"]),
  unit: z.enum(["calls", "tokens", "cost_usd_micros", "concurrent", "queued"]),
  window: z.enum(["minute", "day", "month"]).optional(),
  scope: z.enum(quotaScopes).default("tenant"),
  value: s.word().optional().describe("Default: the token's tenant"),
};
const quota = z
  .looseObject({
    scope: z.enum(quotaScopes),
    value: z.string(),
    kind: z.string(),
    unit: z.string(),
    window: z.string(),
    amount: z.number(),
    updated_at: z.string(),
    used: z.number(),
  })
  .meta({ id: "Quota" });
const changed = z.object({ changed: z.boolean().describe("False: it was so already") });
const totals = z.looseObject({ key: z.string(), calls: z.number(), tool_calls: z.number(), input_tokens: z.number(), output_tokens: z.number(), cost_usd_micros: z.number() });

export function registerLimits(app: FastifyInstance, api: ApiContext): void {
  const { client, named } = api;

  route(app, api, "GET /v1/quotas", {
    summary: "List the tenant's limits and what is used of them",
    answers: { 200: s.list(quota) },
    async handle({ access }) {
      const limits = await client.quotas.list();
      return { items: access.isOperator ? limits : await ownQuotas(limits, access, api) };
    },
  });

  route(app, api, "PUT /v1/quotas", {
    summary: "Set a limit of the tenant",
    body: z.strictObject({ ...measure, amount: wholeNumber(0) }),
    answers: { 200: changed },
    async handle({ body, access }) {
      const spec = ownSpec(body, access) as QuotaLimitSpec;
      return { changed: await act(api, access, async (tx) => await client.quotas.set(spec, { actor: access.actor, tx })) };
    },
  });

  route(app, api, "DELETE /v1/quotas", {
    summary: "Take a limit of the tenant away",
    query: z.strictObject(measure),
    answers: { 200: changed },
    async handle({ query, access }) {
      const spec = ownSpec(query, access);
      return { changed: await act(api, access, async (tx) => await client.quotas.remove(spec, { actor: access.actor, tx })) };
    },
  });

  route(app, api, "GET /v1/usage", {
    summary: "What the tenant's runs have used",
    query: z.strictObject({
      by: z.enum(usageGroups).exclude(["tenant"]).default("agent"),
      since: s.time.optional().describe("Default: 30 days ago"),
      until: s.time.optional().describe("Default: now"),
    }),
    answers: { 200: s.list(totals).describe("The dearest first; days in their order") },
    async handle({ query, access }) {
      const { by, since, until } = query;
      const from = since === undefined ? new Date(Date.now() - 30 * DAY_MS) : new Date(since);
      return { items: await client.usage.by({ by, since: from, tenant: access.tenant, ...(until === undefined ? {} : { until: new Date(until) }) }) };
    },
  });

  route(app, api, "GET /v1/pauses", {
    summary: "Whether the tenant, or everything, stands still",
    answers: { 200: s.list(z.looseObject({ tenant: z.string().optional().describe("Absent: everything"), at: z.string() })) },
    handle: async ({ access }) => ({
      items: (await client.pauses.list())
        .filter(({ tenant }) => tenant === undefined || tenant === access.tenant)
        // Who stopped everything, and why, is for those who run it.
        .map(({ tenant, at, ...rest }) => (tenant === undefined && !access.isOperator ? { at } : { ...s.defined({ tenant }), at, ...rest })),
    }),
  });

  route(app, api, "POST /v1/pauses", {
    summary: "Let the tenant stand still: no turn begins until it goes on",
    body: s.optionalBody({ reason: s.reason }),
    answers: { 200: changed },
    async handle({ body, access }) {
      const done = await act(api, access, async (tx) => await new PauseClient(tx, named).pause(s.defined({ tenant: access.tenant, actor: access.actor, reason: body.reason })));
      return { changed: done };
    },
  });

  route(app, api, "DELETE /v1/pauses", {
    summary: "Let the tenant go on",
    answers: { 200: changed },
    handle: async ({ access }) => ({ changed: await act(api, access, async (tx) => await new PauseClient(tx, named).resume({ tenant: access.tenant, actor: access.actor })) }),
  });
}

/** Limits of the tenant, and those that each tenant has, with what this one uses: what others use is not told. */
async function ownQuotas(limits: readonly QuotaView[], { tenant }: Access, { client }: ApiContext): Promise<QuotaView[]> {
  const buckets = await client.quotas.use({ tenant });
  return limits
    .filter(({ scope, value }) => scope === "tenant" && (value === tenant || value === "*"))
    .filter(
      (limit, _, own) =>
        limit.value === tenant || !own.some((other) => other.value === tenant && other.kind === limit.kind && other.unit === limit.unit && other.window === limit.window),
    )
    .map((limit) => ({ ...limit, used: buckets.find(({ bucket }) => bucket === `${limit.kind}/${limit.unit}/${limit.window}/tenant/${tenant}`)?.used ?? 0 }));
}

function ownSpec<Spec extends { readonly scope: QuotaLimitSpec["scope"]; readonly value?: string | undefined }>(
  given: Spec,
  access: Access,
): Spec & Omit<QuotaLimitSpec, "amount"> {
  const { scope, value = scope === "tenant" ? access.tenant : "*" } = given;
  if (!access.isOperator && (scope !== "tenant" || value !== access.tenant)) {
    throw new RequestError("FORBIDDEN", `a token sets limits of its own tenant (${access.tenant}); others are set with: capstan quotas set`);
  }
  return s.defined({ ...given, value }) as unknown as Spec & Omit<QuotaLimitSpec, "amount">;
}
