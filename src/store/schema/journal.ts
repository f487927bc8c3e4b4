/**
 * Runs and their journal. In `runs` what changes each turn stands at the end and in one block: Postgres logs an update on the
 * same page without the bytes that stay the same before and after, and no index is on any of these columns, so that an
 * ordinary turn's updates are heap-only.
 */
import { sql } from "drizzle-orm";
import { boolean, check, index, integer, json, jsonb, primaryKey, smallint, text, uniqueIndex, uuid } from "drizzle-orm/pg-core";
import type { JsonObject, JsonValue } from "../../domain/json.ts";
import { at, big, bytea, capstan } from "./base.ts";

export const runs = capstan.table(
  "runs",
  {
    id: uuid("id").primaryKey(),
    createdAt: at("created_at").notNull(),
    tenant: text("tenant").notNull().default("default"),
    subject: text("subject"),
    kind: text("kind").notNull().default("agent"),
    agent: text("agent").notNull(),
    overrides: jsonb("overrides").$type<JsonObject>(),
    policy: jsonb("policy").$type<JsonObject>(),
    grants: jsonb("grants").$type<JsonObject>(),
    origin: text("origin").notNull().default("api"),
    parentRunId: uuid("parent_run_id"),
    parentCall: text("parent_call"),
    childIndex: integer("child_index"),
    rootRunId: uuid("root_run_id"),
    depth: smallint("depth").notNull().default(0),
    conversationId: uuid("conversation_id"),
    continuedFromRun: uuid("continued_from_run"),
    continuedFromSeq: integer("continued_from_seq"),
    forkedFromRun: uuid("forked_from_run"),
    forkedFromSeq: integer("forked_from_seq"),
    /** Events of the runs before it that its view begins with: position = seq + seq_offset. */
    seqOffset: integer("seq_offset").notNull().default(0),
    interactive: boolean("interactive").notNull().default(false),
    pool: text("pool").notNull().default("turn"),
    priority: smallint("priority").notNull().default(0),
    /** Runs of one tenant and key of which at most `concurrencyLimit` are at work; the others wait in order. */
    concurrencyKey: text("concurrency_key"),
    concurrencyLimit: smallint("concurrency_limit"),
    labels: text("labels").array(),
    metadata: jsonb("metadata").$type<JsonObject>(),
    deadline: at("deadline"),
    runAt: at("run_at"),
    traceparent: text("traceparent"),
    tracestate: text("tracestate"),
    idempotencyKey: text("idempotency_key"),
    inputDigest: bytea("input_digest"),
    hold: boolean("hold").notNull().default(false),
    definitionSha: text("definition_sha"),
    paused: boolean("paused").notNull().default(false),
    cancelRequestedAt: at("cancel_requested_at"),
    finishedAt: at("finished_at"),
    errorCode: text("error_code"),
    viewMarkerSeq: integer("view_marker_seq"),
    contextWindow: integer("context_window"),
    state: text("state").notNull().default("queued"),
    waitReason: text("wait_reason"),
    wakeAt: at("wake_at"),
    crashCount: smallint("crash_count").notNull().default(0),
    retryCount: smallint("retry_count").notNull().default(0),
    takenOver: boolean("taken_over").notNull().default(false),
    growthLevel: smallint("growth_level").notNull().default(0),
    /** 0 within its budget, 1 when a soft limit has been told. */
    budgetLevel: smallint("budget_level").notNull().default(0),
    viewEpoch: integer("view_epoch").notNull().default(0),
    inboxPending: integer("inbox_pending").notNull().default(0),
    contextScale: text("context_scale"),
    // From here on: what each turn changes, by commit: the response's numbers first, then what every commit changes, then the claim's.
    costUsdMicros: big("cost_usd_micros").notNull().default(0),
    cacheReadTokens: big("cache_read_tokens").notNull().default(0),
    cacheWriteTokens: big("cache_write_tokens").notNull().default(0),
    inputTokens: big("input_tokens").notNull().default(0),
    outputTokens: big("output_tokens").notNull().default(0),
    contextTokens: integer("context_tokens"),
    transcriptBytes: big("transcript_bytes").notNull().default(0),
    journalBytes: big("journal_bytes").notNull().default(0),
    updatedAt: at("updated_at").notNull(),
    nextSeq: integer("next_seq").notNull().default(1),
    turn: integer("turn").notNull().default(0),
    fencingToken: integer("fencing_token").notNull().default(0),
    lastSpan: text("last_span"),
    workerId: uuid("worker_id"),
  },
  (t) => [
    uniqueIndex("runs_idempotency")
      .on(t.tenant, t.idempotencyKey)
      .where(sql`idempotency_key is not null`),
    uniqueIndex("runs_child")
      .on(t.parentRunId, t.parentCall, t.childIndex)
      .where(sql`parent_run_id is not null`),
    index("runs_ended_inbox")
      .on(t.id)
      .where(sql`finished_at is not null and inbox_pending > 0`),
    index("runs_conversation")
      .on(t.conversationId, t.id)
      .where(sql`conversation_id is not null`),
    index("runs_concurrency")
      .on(t.tenant, t.concurrencyKey, t.id)
      .where(sql`concurrency_key is not null and finished_at is null`),
    index("runs_tenant").on(t.tenant, t.id),
    index("runs_subject")
      .on(t.tenant, t.subject)
      .where(sql`subject is not null`),
    index("runs_finished")
      .on(t.finishedAt)
      .where(sql`finished_at is not null`),
    index("runs_forks")
      .on(t.forkedFromRun)
      .where(sql`forked_from_run is not null`),
    index("runs_continuations")
      .on(t.continuedFromRun)
      .where(sql`continued_from_run is not null`),
    index("runs_active")
      .on(t.state, t.pool)
      .where(sql`state in ('queued', 'running')`),
    index("runs_queued_tenant")
      .on(t.tenant)
      .where(sql`state = 'queued'`),
    index("runs_queued_agent")
      .on(t.agent)
      .where(sql`state = 'queued'`),
    index("runs_input_waits")
      .on(t.id)
      .where(sql`state = 'waiting' and inbox_pending > 0`),
    index("runs_deadline")
      .on(t.deadline)
      .where(sql`state = 'waiting' and deadline is not null`),
    index("runs_wake")
      .on(t.wakeAt)
      .where(sql`state = 'waiting' and wake_at is not null`),
    index("runs_waiting")
      .on(t.waitReason, t.agent)
      .where(sql`state = 'waiting'`),
    check("runs_state", sql`state in ('queued', 'running', 'waiting', 'completed', 'failed', 'cancelled')`),
    check("runs_waiting_has_reason", sql`(state = 'waiting') = (wait_reason is not null)`),
    check("runs_finished_at", sql`(state in ('completed', 'failed', 'cancelled')) = (finished_at is not null)`),
    check("runs_finished_unheld", sql`finished_at is null or worker_id is null`),
    check("runs_positive", sql`fencing_token >= 0 and next_seq >= 1 and inbox_pending >= 0`),
  ],
);

/**
 * The journal. Append-only: the application role may neither update, delete nor truncate, and triggers stand in the way
 * where one role owns all. Range-partitioned by run_id (migration 0000 adds that; drizzle has no word for it).
 */
export const events = capstan.table(
  "events",
  {
    runId: uuid("run_id").notNull(),
    at: at("at").notNull(),
    /** Minted by the writer for each append, to know its own rows again when a commit's acknowledgement was lost. */
    appendId: integer("append_id").notNull(),
    seq: integer("seq").notNull(),
    turn: integer("turn").notNull(),
    fencingToken: integer("fencing_token").notNull(),
    viewEpoch: integer("view_epoch").notNull(),
    /** UTF-8 bytes of the payload as written. */
    size: integer("size").notNull(),
    version: smallint("version").notNull(),
    attempt: smallint("attempt").notNull(),
    type: text("type").notNull(),
    stepKey: text("step_key"),
    origin: text("origin"),
    actor: text("actor"),
    inboxId: uuid("inbox_id"),
    blobRefs: text("blob_refs").array(),
    /** How the payload is kept: null is plain JSON in `payload`; anything else names the codec of `payload_sealed`. */
    codec: text("codec"),
    keyId: text("key_id"),
    /** `json`, not `jsonb`: the text as written, 210 bytes a turn smaller and cheaper to read; nothing is indexed in it. */
    payload: json("payload").$type<JsonValue>(),
    payloadSealed: bytea("payload_sealed"),
  },
  (t) => [
    primaryKey({ columns: [t.runId, t.seq] }),
    uniqueIndex("events_step")
      .on(t.runId, t.stepKey)
      .where(sql`step_key is not null`),
    check("events_seq", sql`seq >= 1`),
    check("events_one_payload", sql`(codec is null) = (payload is not null) and (codec is null) = (payload_sealed is null)`),
  ],
);

/** All that comes to a run from outside or from other runs; applied by the lease holder at a boundary, exactly once. */
export const inbox = capstan.table(
  "inbox",
  {
    id: uuid("id").primaryKey(),
    runId: uuid("run_id").notNull(),
    at: at("at").notNull(),
    kind: text("kind").notNull(),
    payload: jsonb("payload").$type<JsonValue>().notNull(),
    dedupeKey: text("dedupe_key"),
    actor: text("actor"),
    traceparent: text("traceparent"),
    /** seq of the event that applied it; null while it waits. */
    appliedSeq: integer("applied_seq"),
  },
  (t) => [
    index("inbox_run").on(t.runId),
    index("inbox_pending")
      .on(t.runId, t.id)
      .where(sql`applied_seq is null`),
    uniqueIndex("inbox_dedupe")
      .on(t.runId, t.dedupeKey)
      .where(sql`dedupe_key is not null`),
  ],
);
