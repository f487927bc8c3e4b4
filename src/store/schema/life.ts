/** What runs wait for, what wakes them, and what holds several of them together. */
import { sql } from "drizzle-orm";
import { check, boolean, index, integer, jsonb, primaryKey, text, uniqueIndex, uuid } from "drizzle-orm/pg-core";
import type { JsonObject, JsonValue } from "../../domain/json.ts";
import { at, capstan } from "./base.ts";

/**
 * Open calls that wait for somebody or something outside. Made and settled by the run's own events, in their commit; in
 * between this row is what people list, what a signal or a child's end is matched with, and what decides which of two
 * decisions counts.
 */
export const waits = capstan.table(
  "waits",
  {
    id: uuid("id").primaryKey(),
    runId: uuid("run_id").notNull(),
    tenant: text("tenant").notNull(),
    agent: text("agent").notNull(),
    turn: integer("turn").notNull(),
    callId: text("call_id").notNull(),
    callIndex: integer("call_index").notNull(),
    kind: text("kind").notNull(),
    /** The tool, or the signal's name. */
    name: text("name").notNull(),
    /** What was journaled about it: the arguments to approve, the question, the schema of the answer. */
    detail: jsonb("detail").$type<JsonObject>().notNull(),
    requestedAt: at("requested_at").notNull(),
    expiresAt: at("expires_at"),
    /** Children that have not ended. */
    pending: integer("pending").notNull().default(0),
    /** Somebody has decided, the signal has come, the children have ended; the run may not have read it yet. */
    answeredAt: at("answered_at"),
    answer: jsonb("answer").$type<JsonValue>(),
    answeredBy: text("answered_by"),
    /** The run has journaled the end of the call, or has ended itself. */
    settledAt: at("settled_at"),
  },
  (t) => [
    index("waits_open")
      .on(t.tenant, t.kind, t.id)
      .where(sql`settled_at is null`),
    index("waits_run").on(t.runId),
    index("waits_of_run")
      .on(t.runId)
      .where(sql`settled_at is null`),
    check("waits_kind", sql`kind in ('approval', 'question', 'signal', 'timer', 'children', 'completion')`),
    check("waits_pending", sql`pending >= 0`),
  ],
);

/** Signals are kept until somebody waits for them, in the order in which they came. */
export const signals = capstan.table(
  "signals",
  {
    id: uuid("id").primaryKey(),
    runId: uuid("run_id").notNull(),
    name: text("name").notNull(),
    payload: jsonb("payload").$type<JsonValue>().notNull(),
    at: at("at").notNull(),
    dedupeKey: text("dedupe_key"),
    actor: text("actor"),
    /** The wait that took it; null while nobody has. */
    waitId: uuid("wait_id"),
  },
  (t) => [
    index("signals_run").on(t.runId),
    index("signals_kept")
      .on(t.runId, t.name, t.id)
      .where(sql`wait_id is null`),
    uniqueIndex("signals_dedupe")
      .on(t.runId, t.dedupeKey)
      .where(sql`dedupe_key is not null`),
  ],
);

/** Starts runs by the clock. `next_at` is what a tick is decided by: whoever moves it on starts the run, in one commit. */
export const schedules = capstan.table(
  "schedules",
  {
    tenant: text("tenant").notNull(),
    name: text("name").notNull(),
    agent: text("agent").notNull(),
    input: jsonb("input").$type<JsonValue>().notNull(),
    cron: text("cron").notNull(),
    timezone: text("timezone").notNull(),
    /** Ticks that were missed while no worker ran: none of them, the last one, or all. */
    catchUp: text("catch_up").notNull(),
    paused: boolean("paused").notNull().default(false),
    /** Options of the runs: priority, pool, labels, metadata, interactive, concurrency_key and its limit, scope and on_conflict. */
    options: jsonb("options").$type<JsonObject>(),
    nextAt: at("next_at"),
    lastTickAt: at("last_tick_at"),
    lastRunId: uuid("last_run_id"),
    /** Why the last due tick started no run: `{at, tick, code, message}`; null once one did. */
    lastError: jsonb("last_error").$type<JsonObject>(),
    createdAt: at("created_at").notNull(),
    updatedAt: at("updated_at").notNull(),
    actor: text("actor"),
  },
  (t) => [
    primaryKey({ columns: [t.tenant, t.name] }),
    index("schedules_due")
      .on(t.nextAt)
      .where(sql`not paused and next_at is not null`),
    check("schedules_catch_up", sql`catch_up in ('none', 'last', 'all')`),
  ],
);

/** A whole tenant, or everything, stands still while its row is here. */
export const pauses = capstan.table(
  "pauses",
  {
    scope: text("scope").notNull(),
    /** The tenant; '*' for everything. */
    value: text("value").notNull(),
    at: at("at").notNull(),
    reason: text("reason"),
    actor: text("actor"),
  },
  (t) => [primaryKey({ columns: [t.scope, t.value] }), check("pauses_scope", sql`scope in ('tenant', 'all') and (scope = 'all') = (value = '*')`)],
);

/** A thread of several runs: each continues where the last one ended. */
export const conversations = capstan.table(
  "conversations",
  {
    id: uuid("id").primaryKey(),
    tenant: text("tenant").notNull(),
    agent: text("agent").notNull(),
    subject: text("subject"),
    title: text("title"),
    /** `{max_tokens, summarizer}`: from when on the thread is carried by a rolling summary, and who writes it. */
    budget: jsonb("budget").$type<JsonObject>(),
    metadata: jsonb("metadata").$type<JsonObject>(),
    lastRunId: uuid("last_run_id"),
    /** The rolling summary: its text, up to which run and seq it reaches, and how it was made. */
    summary: jsonb("summary").$type<JsonObject>(),
    createdAt: at("created_at").notNull(),
    updatedAt: at("updated_at").notNull(),
  },
  (t) => [index("conversations_tenant").on(t.tenant, t.id)],
);
