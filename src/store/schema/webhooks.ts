/** What the outside is told, and what is still to be told. */
import { sql } from "drizzle-orm";
import { boolean, index, jsonb, smallint, text, uniqueIndex, uuid } from "drizzle-orm/pg-core";
import type { JsonObject } from "../../domain/json.ts";
import { at, capstan } from "./base.ts";

export const webhooks = capstan.table(
  "webhooks",
  {
    id: uuid("id").primaryKey(),
    tenant: text("tenant").notNull(),
    name: text("name").notNull(),
    url: text("url").notNull(),
    /** Signs each delivery (HMAC-SHA256); shown once, when it is made. */
    secret: text("secret").notNull(),
    /** Which events: `run.completed`, `run.failed`, `run.cancelled`, `run.waiting`. */
    events: text("events").array().notNull(),
    /** Only runs of this agent; null: of all. */
    agent: text("agent"),
    actor: text("actor"),
    createdAt: at("created_at")
      .notNull()
      .default(sql`capstan.now()`),
    disabledAt: at("disabled_at"),
    /** Why, when it was not a person: deliveries that were given up, one after another, or the receiver's own word. */
    disabledReason: text("disabled_reason"),
    /** Signs beside the new one until then, so that receivers may change over. */
    previousSecret: text("previous_secret"),
    previousUntil: at("previous_until"),
    /** Bodies hold the run's output or error too. */
    content: boolean("content").notNull().default(false),
    /** Deliveries that were given up since the last one that arrived. */
    failures: smallint("failures").notNull().default(0),
  },
  (t) => [uniqueIndex("webhooks_name").on(t.tenant, t.name)],
);

/** The outbox: written in the transaction of what it tells, sent afterwards, at least once. */
export const webhookDeliveries = capstan.table(
  "webhook_deliveries",
  {
    id: uuid("id").primaryKey(),
    webhookId: uuid("webhook_id").notNull(),
    tenant: text("tenant").notNull(),
    runId: uuid("run_id").notNull(),
    event: text("event").notNull(),
    body: jsonb("body").$type<JsonObject>().notNull(),
    at: at("at").notNull(),
    attempts: smallint("attempts").notNull().default(0),
    /** When it is tried next; null once it is settled. */
    nextAt: at("next_at"),
    deliveredAt: at("delivered_at"),
    gaveUpAt: at("gave_up_at"),
    statusCode: smallint("status_code"),
    error: text("error"),
  },
  (t) => [
    index("webhook_deliveries_due")
      .on(t.nextAt)
      .where(sql`next_at is not null`),
    index("webhook_deliveries_waiting")
      .on(t.webhookId, t.nextAt)
      .where(sql`next_at is not null`),
    index("webhook_deliveries_webhook").on(t.webhookId, t.id),
    index("webhook_deliveries_run").on(t.runId),
  ],
);
