/** Where completion is told to the outside. The client writes the lines of the audit log itself. */
import type { FastifyInstance } from "fastify";
import { z } from "zod";
import { webhookEvents, WebhooksClient } from "../../client/webhooks.ts";
import { wholeNumber } from "../../domain/ranges.ts";
import { act } from "../act.ts";
import type { ApiContext } from "../context.ts";
import { route } from "../route.ts";
import * as s from "../shapes.ts";

const webhookParams = z.strictObject({ webhook: s.word(100) });
const event = z.enum(webhookEvents);
const changed = z.object({ changed: z.boolean().describe("False: it was so already") });
const webhook = z
  .looseObject({
    id: s.uuid,
    name: z.string(),
    url: z.string(),
    events: z.array(event),
    agent: z.string().optional(),
    content: z.boolean(),
    created_at: z.string(),
    disabled_at: z.string().optional(),
    failures: z.int(),
  })
  .meta({ id: "Webhook" });
const withSecret = webhook.extend({ secret: z.string().describe("Shown this once") }).meta({ id: "CreatedWebhook" });
const states = z.enum(["waiting", "delivered", "gave_up"]);
const delivery = z
  .looseObject({ id: s.uuid, webhook: z.string(), run_id: s.uuid.optional(), event: z.string(), state: states, at: z.string(), attempts: z.int() })
  .meta({ id: "Delivery" });

export function registerWebhooks(app: FastifyInstance, api: ApiContext): void {
  const { client, named, webhookGuard } = api;
  const ref = ({ access }: { readonly access: { readonly tenant: string; readonly actor: string } }) => ({ tenant: access.tenant, actor: access.actor });

  route(app, api, "GET /v1/webhooks", {
    summary: "List webhooks by name",
    answers: { 200: s.list(webhook) },
    handle: async ({ access }) => ({ items: await client.webhooks.list({ tenant: access.tenant }) }),
  });

  route(app, api, "POST /v1/webhooks", {
    summary: "Make a webhook",
    body: z.strictObject({ name: s.word(100), url: s.word(2_000), events: z.array(event).min(1).optional(), agent: s.agentName.optional(), content: z.boolean().optional() }),
    answers: { 201: withSecret },
    problems: [409],
    async handle({ body, access, reply }) {
      // Names are looked up before the transaction, not in it.
      if (URL.canParse(body.url)) await webhookGuard?.(new URL(body.url));
      const made = await act(api, access, async (tx) => await new WebhooksClient(tx, named).create({ ...s.defined(body), ...ref({ access }) }));
      void reply.code(201).header("cache-control", "no-store");
      return made;
    },
  });

  route(app, api, "GET /v1/webhooks/:webhook", {
    summary: "Show a webhook",
    params: webhookParams,
    answers: { 200: webhook },
    handle: async ({ params, access }) => await client.webhooks.get(params.webhook, ref({ access })),
  });

  route(app, api, "DELETE /v1/webhooks/:webhook", {
    summary: "Delete a webhook with what is known of its deliveries",
    params: webhookParams,
    answers: { 200: z.object({ deleted: z.literal(true) }) },
    async handle({ params, access }) {
      await act(api, access, async (tx) => await new WebhooksClient(tx, named).delete(params.webhook, ref({ access })));
      return { deleted: true };
    },
  });

  route(app, api, "POST /v1/webhooks/:webhook/test", {
    summary: "Send an event of no run",
    params: webhookParams,
    body: s.noBody,
    answers: { 202: z.object({ delivery_id: s.uuid }) },
    async handle({ params, access, reply }) {
      const id = await act(api, access, async (tx) => await new WebhooksClient(tx, named).test(params.webhook, ref({ access })));
      void reply.code(202);
      return { delivery_id: id };
    },
  });

  for (const verb of ["enable", "disable"] as const) {
    route(app, api, `POST /v1/webhooks/:webhook/${verb}`, {
      summary: verb === "enable" ? "Write deliveries for it again" : "Write no more deliveries for it",
      params: webhookParams,
      body: s.noBody,
      answers: { 200: changed },
      handle: async ({ params, access }) => ({ changed: await act(api, access, async (tx) => await new WebhooksClient(tx, named)[verb](params.webhook, ref({ access }))) }),
    });
  }

  route(app, api, "POST /v1/webhooks/:webhook/rotate", {
    summary: "Give it a new secret",
    description: "For `overlap_ms` (default a day) requests are signed with the former one too.",
    params: webhookParams,
    body: s.optionalBody({ overlap_ms: wholeNumber(0, 2_592_000_000).optional() }),
    answers: { 200: withSecret },
    async handle({ params, body, access, reply }) {
      const options = { ...ref({ access }), ...(body.overlap_ms === undefined ? {} : { overlapMs: body.overlap_ms }) };
      const rotated = await act(api, access, async (tx) => await new WebhooksClient(tx, named).rotate(params.webhook, options));
      void reply.header("cache-control", "no-store");
      return rotated;
    },
  });

  route(app, api, "GET /v1/webhooks/:webhook/deliveries", {
    summary: "Its deliveries, newest first",
    params: webhookParams,
    query: z.strictObject({ run_id: s.uuid.optional(), state: states.optional(), cursor: s.uuid.optional(), limit: s.limit(100) }),
    answers: { 200: s.page(delivery) },
    async handle({ params, query, access }) {
      await client.webhooks.get(params.webhook, ref({ access }));
      const { run_id: runId, state, cursor, limit } = query;
      const items = await client.webhooks.deliveries({ ...s.defined({ runId, state, before: cursor }), limit, tenant: access.tenant, webhook: params.webhook });
      const next = items.length === limit ? items.at(-1)?.id : undefined;
      return { items, ...(next === undefined ? {} : { next_cursor: next }) };
    },
  });

  route(app, api, "POST /v1/deliveries/:delivery_id/redeliver", {
    summary: "Send a delivery once more, with its id",
    params: z.strictObject({ delivery_id: s.uuid }),
    body: s.noBody,
    answers: { 202: z.object({ delivery_id: s.uuid }) },
    async handle({ params, access, reply }) {
      await act(api, access, async (tx) => await new WebhooksClient(tx, named).redeliver(params.delivery_id, ref({ access })));
      void reply.code(202);
      return { delivery_id: params.delivery_id };
    },
  });
}
