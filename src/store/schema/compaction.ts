/** Between a compaction's request and its marker. */
import { sql } from "drizzle-orm";
import { check, index, integer, jsonb, smallint, text, uniqueIndex, uuid } from "drizzle-orm/pg-core";
import type { JsonObject } from "../../domain/json.ts";
import { at, capstan } from "./base.ts";

/** Made and settled by a trigger on the journal's own events, in their commit: a task is never without its event. */
export const compactionTasks = capstan.table(
  "compaction_tasks",
  {
    id: uuid("id").primaryKey(),
    runId: uuid("run_id").notNull(),
    tenant: text("tenant").notNull(),
    agent: text("agent").notNull(),
    state: text("state").notNull(),
    trigger: text("trigger").notNull(),
    requestedAt: at("requested_at").notNull(),
    updatedAt: at("updated_at").notNull(),
    /** Not before: after a failure that may pass, or while a quota is spent. */
    dueAt: at("due_at").notNull(),
    dispatchedAt: at("dispatched_at"),
    viewEpoch: integer("view_epoch").notNull(),
    fromSeq: integer("from_seq").notNull(),
    toSeq: integer("to_seq").notNull(),
    firstKeptSeq: integer("first_kept_seq").notNull(),
    workerId: uuid("worker_id"),
    fencingToken: integer("fencing_token").notNull().default(0),
    attempts: smallint("attempts").notNull().default(0),
    /** Workers that died over it. */
    deaths: smallint("deaths").notNull().default(0),
    /** Why it waits: `retry` or `quota`. */
    waitReason: text("wait_reason"),
    /** The payload of its `compaction.requested`. */
    request: jsonb("request").$type<JsonObject>().notNull(),
    /** `ready`: the summary, or what went wrong. */
    result: jsonb("result").$type<JsonObject>(),
    error: jsonb("error").$type<JsonObject>(),
  },
  (t) => [
    index("compaction_tasks_run").on(t.runId),
    uniqueIndex("compaction_tasks_one_in_flight")
      .on(t.runId)
      .where(sql`state in ('requested', 'summarizing', 'ready')`),
    // What waits, tenant by tenant, and what is under way: the dispatch of ten thousand reads only the next few of each.
    index("compaction_tasks_waiting")
      .on(t.tenant, t.dueAt)
      .where(sql`state = 'requested' and dispatched_at is null`),
    index("compaction_tasks_busy")
      .on(t.tenant)
      .where(sql`state in ('requested', 'summarizing') and dispatched_at is not null`),
    check("compaction_tasks_state", sql`state in ('requested', 'summarizing', 'ready', 'applied', 'skipped', 'failed', 'superseded')`),
  ],
);
