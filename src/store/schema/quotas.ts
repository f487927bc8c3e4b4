/** What is used, and what may be. */
import { sql } from "drizzle-orm";
import { boolean, check, date, index, integer, primaryKey, smallint, text, uniqueIndex, uuid } from "drizzle-orm/pg-core";
import { at, big, capstan } from "./base.ts";

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

/** What deleted runs have used, by day (UTC): totals outlive the runs that they were made by. */
export const usageRollup = capstan.table(
  "usage_rollup",
  {
    tenant: text("tenant").notNull(),
    day: date("day").notNull(),
    agent: text("agent").notNull(),
    /** Empty for tools. */
    model: text("model").notNull().default(""),
    kind: text("kind").notNull(),
    calls: big("calls").notNull().default(0),
    inputTokens: big("input_tokens").notNull().default(0),
    outputTokens: big("output_tokens").notNull().default(0),
    cacheReadTokens: big("cache_read_tokens").notNull().default(0),
    cacheWriteTokens: big("cache_write_tokens").notNull().default(0),
    costUsdMicros: big("cost_usd_micros").notNull().default(0),
  },
  (t) => [primaryKey({ columns: [t.tenant, t.day, t.agent, t.model, t.kind] })],
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
    check("quota_limits_kind", sql`kind in ('turn', 'summary', 'tool', 'run') and (kind = 'run') = (unit = 'queued')`),
    check("quota_limits_unit", sql`unit in ('calls', 'tokens', 'cost_usd_micros', 'concurrent', 'queued')`),
    check("quota_limits_window", sql`"window" in ('minute', 'day', 'month', 'none') and ("window" = 'none') = (unit in ('concurrent', 'queued'))`),
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
