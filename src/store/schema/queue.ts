/** Who works, and what waits for a job. */
import { sql } from "drizzle-orm";
import { boolean, index, integer, jsonb, smallint, text, uuid } from "drizzle-orm/pg-core";
import type { JsonObject } from "../../domain/json.ts";
import { at, capstan } from "./base.ts";

/**
 * Runs that want a job: written in the transaction of the events that want it, taken by the relay. A table of its own
 * beside `runs`: see docs/adr/0004-wish-and-relay.md for what it saves.
 */
export const wishes = capstan.table(
  "wishes",
  {
    runId: uuid("run_id").primaryKey(),
    at: at("at").notNull(),
    priority: smallint("priority").notNull(),
    ready: boolean("ready").notNull(),
    pool: text("pool").notNull(),
    agent: text("agent").notNull(),
    tenant: text("tenant").notNull(),
  },
  (t) => [
    index("wishes_ready")
      .on(t.pool, t.tenant, t.priority, t.at)
      .where(sql`ready`),
    index("wishes_later")
      .on(t.at)
      .where(sql`not ready`),
  ],
);

/** One row per worker incarnation; its heartbeat carries all of its leases. */
export const workers = capstan.table(
  "workers",
  {
    id: uuid("id").primaryKey(),
    pool: text("pool").notNull(),
    host: text("host").notNull(),
    pid: integer("pid").notNull(),
    version: text("version").notNull(),
    startedAt: at("started_at").notNull(),
    heartbeatAt: at("heartbeat_at").notNull(),
    /** How long after a beat others may take over, in ms: each worker's own promise. */
    leaseMs: integer("lease_ms").notNull(),
    /** Set once, by the worker that stops or by the sweep that buries it; an incarnation never comes back. */
    endedAt: at("ended_at"),
    endReason: text("end_reason"),
    slots: integer("slots").notNull(),
    busy: integer("busy").notNull().default(0),
    queuePools: text("queue_pools")
      .array()
      .notNull()
      .default(sql`'{}'`),
    agents: text("agents")
      .array()
      .notNull()
      .default(sql`'{}'`),
    tools: jsonb("tools").$type<JsonObject>(),
    eventVersions: jsonb("event_versions").$type<JsonObject>(),
    labels: jsonb("labels").$type<JsonObject>(),
  },
  (t) => [
    index("workers_alive")
      .on(t.pool)
      .where(sql`ended_at is null`),
  ],
);
