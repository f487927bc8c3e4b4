/**
 * Tables only. Columns that later capabilities need have their place from the first migration; statements where locks,
 * order or plans matter stand in sql/. In `runs` what changes each turn stands at the end and in one block: Postgres
 * logs an update on the same page without the bytes that stay the same before and after, and no index is on any of
 * these columns, so that an ordinary turn's updates are heap-only.
 */
import { sql } from "drizzle-orm";
import { bigint, boolean, check, customType, index, integer, json, jsonb, pgSchema, primaryKey, smallint, text, timestamp, unique, uniqueIndex, uuid } from "drizzle-orm/pg-core";
import type { AgentDefinition } from "../domain/definition.ts";
import type { JsonObject, JsonValue } from "../domain/json.ts";

export const capstan = pgSchema("capstan");

const bytea = customType<{ data: Buffer; driverData: Buffer }>({ dataType: () => "bytea" });
const at = (name: string) => timestamp(name, { withTimezone: true });
const big = (name: string) => bigint(name, { mode: "number" });

/** Content-addressed and immutable: `sha256:` and 64 hex digits of the canonical definition. */
export const agentDefinitions = capstan.table("agent_definitions", {
  sha: text("sha").primaryKey(),
  name: text("name").notNull(),
  definition: jsonb("definition").$type<AgentDefinition>().notNull(),
  createdAt: at("created_at")
    .notNull()
    .default(sql`capstan.now()`),
});

/** Name to promoted definition. */
export const agents = capstan.table("agents", {
  name: text("name").primaryKey(),
  promotedSha: text("promoted_sha")
    .notNull()
    .references(() => agentDefinitions.sha),
  retiredAt: at("retired_at"),
  updatedAt: at("updated_at")
    .notNull()
    .default(sql`capstan.now()`),
});

export const agentPromotions = capstan.table(
  "agent_promotions",
  {
    id: big("id").primaryKey().generatedAlwaysAsIdentity(),
    name: text("name").notNull(),
    sha: text("sha").notNull(),
    actor: text("actor"),
    at: at("at")
      .notNull()
      .default(sql`capstan.now()`),
  },
  (t) => [index("agent_promotions_name").on(t.name, t.id)],
);

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
    interactive: boolean("interactive").notNull().default(false),
    pool: text("pool").notNull().default("turn"),
    priority: smallint("priority").notNull().default(0),
    concurrencyKey: text("concurrency_key"),
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
    index("runs_active")
      .on(t.state, t.pool)
      .where(sql`state in ('queued', 'running')`),
    index("runs_input_waits")
      .on(t.id)
      .where(sql`state = 'waiting' and inbox_pending > 0`),
    index("runs_deadline")
      .on(t.deadline)
      .where(sql`state = 'waiting' and deadline is not null`),
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
      .on(t.pool, t.priority, t.at)
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
    index("inbox_pending")
      .on(t.runId, t.id)
      .where(sql`applied_seq is null`),
    uniqueIndex("inbox_dedupe")
      .on(t.runId, t.dedupeKey)
      .where(sql`dedupe_key is not null`),
  ],
);

/** Large contents, per tenant: sharing them across tenants would tell one what another holds. */
export const blobs = capstan.table(
  "blobs",
  {
    tenant: text("tenant").notNull(),
    sha256: text("sha256").notNull(),
    sizeBytes: big("size_bytes").notNull(),
    mediaType: text("media_type").notNull(),
    codec: text("codec"),
    keyId: text("key_id"),
    createdAt: at("created_at")
      .notNull()
      .default(sql`capstan.now()`),
  },
  (t) => [primaryKey({ columns: [t.tenant, t.sha256] })],
);

export const blobChunks = capstan.table(
  "blob_chunks",
  {
    tenant: text("tenant").notNull(),
    sha256: text("sha256").notNull(),
    n: integer("n").notNull(),
    bytes: bytea("bytes").notNull(),
  },
  (t) => [primaryKey({ columns: [t.tenant, t.sha256, t.n] })],
);

export const blobRefs = capstan.table(
  "blob_refs",
  {
    tenant: text("tenant").notNull(),
    sha256: text("sha256").notNull(),
    runId: uuid("run_id").notNull(),
  },
  (t) => [primaryKey({ columns: [t.tenant, t.sha256, t.runId] }), index("blob_refs_run").on(t.runId)],
);

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

/**
 * Calls that cost and that no event tells of: aborted by a cancel, finished after the lease was lost, summaries. All
 * other usage is read from the events themselves (view `usage`), so that nothing is written twice.
 */
export const usageLedger = capstan.table(
  "usage_ledger",
  {
    id: uuid("id").primaryKey(),
    at: at("at").notNull(),
    runId: uuid("run_id").notNull(),
    tenant: text("tenant").notNull(),
    agent: text("agent").notNull(),
    model: text("model"),
    kind: text("kind").notNull(),
    turn: integer("turn").notNull(),
    attempt: smallint("attempt").notNull(),
    outcome: text("outcome").notNull(),
    inputTokens: big("input_tokens").notNull().default(0),
    outputTokens: big("output_tokens").notNull().default(0),
    cacheReadTokens: big("cache_read_tokens").notNull().default(0),
    cacheWriteTokens: big("cache_write_tokens").notNull().default(0),
    costUsdMicros: big("cost_usd_micros").notNull().default(0),
    /** Numbers are a guess: the vendor never said what the call cost. */
    estimated: boolean("estimated").notNull().default(false),
  },
  (t) => [index("usage_ledger_run").on(t.runId), index("usage_ledger_tenant").on(t.tenant, t.at)],
);

/** What an operator allows: each row is one limit; `value` is `*` for "each of its kind", a name for one of them. */
export const quotaLimits = capstan.table(
  "quota_limits",
  {
    scope: text("scope").notNull(),
    value: text("value").notNull().default("*"),
    kind: text("kind").notNull(),
    unit: text("unit").notNull(),
    /** `none` for slots, which are counted and not refilled. */
    window: text("window").notNull(),
    amount: big("amount").notNull(),
    updatedAt: at("updated_at")
      .notNull()
      .default(sql`capstan.now()`),
  },
  (t) => [
    primaryKey({ columns: [t.scope, t.value, t.kind, t.unit, t.window] }),
    check("quota_limits_scope", sql`scope in ('overall', 'tenant', 'agent', 'model') and (scope <> 'overall' or value = '*')`),
    check("quota_limits_kind", sql`kind in ('turn', 'summary', 'tool')`),
    check("quota_limits_unit", sql`unit in ('calls', 'tokens', 'cost_usd_micros', 'concurrent')`),
    check("quota_limits_window", sql`"window" in ('minute', 'day', 'month', 'none') and ("window" = 'none') = (unit = 'concurrent')`),
    check("quota_limits_amount", sql`amount >= 0`),
  ],
);

/** What workers have leased of a limit in one window. Updated when a slice is leased or comes back, not by each call. */
export const quotaBuckets = capstan.table(
  "quota_buckets",
  {
    bucket: text("bucket").notNull(),
    windowStart: at("window_start").notNull(),
    windowEnd: at("window_end").notNull(),
    leased: big("leased").notNull(),
    /** What the last lease took: lets one statement say how much it got. */
    lastLease: big("last_lease").notNull(),
  },
  (t) => [primaryKey({ columns: [t.bucket, t.windowStart] })],
);

/** One worker's part of a bucket. `used` holds the settled calls that were taken out of quota_reservations. */
export const quotaSlices = capstan.table(
  "quota_slices",
  {
    workerId: uuid("worker_id").notNull(),
    bucket: text("bucket").notNull(),
    windowStart: at("window_start").notNull(),
    windowEnd: at("window_end").notNull(),
    leased: big("leased").notNull(),
    used: big("used").notNull().default(0),
  },
  (t) => [primaryKey({ columns: [t.workerId, t.bucket, t.windowStart] })],
);

/** One call's claim on one bucket: its largest possible amount until it is settled. Only calls that a quota applies to have rows. */
export const quotaReservations = capstan.table(
  "quota_reservations",
  {
    id: uuid("id").notNull(),
    bucket: text("bucket").notNull(),
    windowStart: at("window_start").notNull(),
    windowEnd: at("window_end").notNull(),
    runId: uuid("run_id").notNull(),
    turn: integer("turn").notNull(),
    attempt: smallint("attempt").notNull(),
    workerId: uuid("worker_id").notNull(),
    amount: big("amount").notNull(),
    reservedAt: at("reserved_at").notNull(),
    settledAt: at("settled_at"),
    settledAmount: big("settled_amount"),
  },
  (t) => [
    primaryKey({ columns: [t.id, t.bucket] }),
    index("quota_reservations_worker").on(t.workerId),
    check("quota_reservations_settled", sql`(settled_at is null) = (settled_amount is null)`),
  ],
);

/** Counted slots of a `concurrent` limit: numbered from 1, so that the key itself keeps two workers from taking one twice. */
export const quotaSlots = capstan.table(
  "quota_slots",
  {
    bucket: text("bucket").notNull(),
    slot: integer("slot").notNull(),
    reservationId: uuid("reservation_id").notNull(),
    workerId: uuid("worker_id").notNull(),
    takenAt: at("taken_at").notNull(),
  },
  (t) => [primaryKey({ columns: [t.bucket, t.slot] }), uniqueIndex("quota_slots_reservation").on(t.reservationId, t.bucket), check("quota_slots_slot", sql`slot >= 1`)],
);

export const apiTokens = capstan.table(
  "api_tokens",
  {
    id: uuid("id").primaryKey(),
    name: text("name").notNull(),
    /** sha256 of the token; the token itself is shown once and not kept. */
    hash: bytea("hash").notNull(),
    tenant: text("tenant").notNull(),
    subject: text("subject"),
    scopes: text("scopes").array().notNull(),
    createdAt: at("created_at")
      .notNull()
      .default(sql`capstan.now()`),
    expiresAt: at("expires_at"),
    revokedAt: at("revoked_at"),
    lastUsedAt: at("last_used_at"),
  },
  (t) => [unique("api_tokens_hash").on(t.hash)],
);

/** What people and tokens did. */
export const auditLog = capstan.table(
  "audit_log",
  {
    id: big("id").primaryKey().generatedAlwaysAsIdentity(),
    at: at("at")
      .notNull()
      .default(sql`capstan.now()`),
    tenant: text("tenant").notNull(),
    actor: text("actor").notNull(),
    tokenId: uuid("token_id"),
    action: text("action").notNull(),
    target: text("target").notNull(),
    detail: jsonb("detail").$type<JsonObject>(),
  },
  (t) => [index("audit_log_tenant").on(t.tenant, t.id)],
);
