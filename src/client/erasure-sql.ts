/** What an erasure deletes beside runs, and what it counts before. $1 is the tenant, $2 the subject or null. */

export interface EraseStatement {
  readonly table: string;
  /** Before the runs: what would make new ones. After them: what belongs to none. Last: only when no run is left. */
  readonly when: "before" | "after" | "last";
  /** Of a whole tenant only: it is nobody's in particular. */
  readonly only?: "tenant";
  readonly text: string;
}

const ROWS_PER_STATEMENT = 1_000;

/** Bounded: said again until it finds nothing. */
const remove = (table: string, where: string): string =>
  `with gone as (delete from capstan.${table} t where t.ctid in (select x.ctid from capstan.${table} x where ${where} limit ${ROWS_PER_STATEMENT} for update) returning pg_column_size(t.*) as bytes)
   select count(*)::int as rows, coalesce(sum(bytes), 0)::float8 as bytes from gone`;

const count = (table: string, where: string, rows = "count(*)", bytes = "sum(pg_column_size(x.*))"): string =>
  `select coalesce(${rows}, 0)::float8 as rows, coalesce(${bytes}, 0)::float8 as bytes from capstan.${table} x where ${where}`;

const OF_TENANT = "x.tenant = $1";
const OF_SUBJECT = "x.tenant = $1 and ($2::text is null or x.subject = $2)";
const SCHEDULES = "x.tenant = $1 and ($2::text is null or x.options ->> 'subject' = $2)";
const CONVERSATIONS = `${OF_SUBJECT} and not exists (select from capstan.runs r where r.conversation_id = x.id)`;

const BUCKET = "right(x.bucket, length('/tenant/' || $1)) = '/tenant/' || $1";

const tenantOnly = (table: string, when: EraseStatement["when"], where = OF_TENANT): EraseStatement => ({ table, when, only: "tenant", text: remove(table, where) });

export const eraseStatements: readonly EraseStatement[] = [
  { table: "schedules", when: "before", text: remove("schedules", SCHEDULES) },
  { table: "api_tokens", when: "before", text: remove("api_tokens", OF_SUBJECT) },
  tenantOnly("webhooks", "before"),
  { table: "conversations", when: "after", text: remove("conversations", CONVERSATIONS) },
  tenantOnly("webhook_deliveries", "last"),
  tenantOnly("pauses", "last", "x.scope = 'tenant' and x.value = $1"),
  tenantOnly("quota_limits", "last", "x.scope = 'tenant' and x.value = $1"),
  tenantOnly("quota_buckets", "last", BUCKET),
  tenantOnly("quota_slices", "last", BUCKET),
  tenantOnly("usage_ledger", "last"),
  tenantOnly("usage_rollup", "last"),
  tenantOnly("blob_refs", "last", "x.tenant = $1 and not exists (select from capstan.runs r where r.id = x.run_id)"),
  tenantOnly("tenant_keys", "last"),
];

export const heldRuns = "select count(*)::int as rows from capstan.runs x where x.tenant = $1 and ($2::text is null or x.subject = $2) and x.hold";

export const eraseCounts: readonly Omit<EraseStatement, "when">[] = [
  { table: "runs", text: count("runs", OF_SUBJECT) },
  { table: "events", text: count("runs", OF_SUBJECT, "sum(x.next_seq - 1)", "sum(x.journal_bytes)") },
  {
    table: "blobs",
    text: count(
      "blobs",
      "x.tenant = $1 and ($2::text is null or exists (select from capstan.blob_refs b join capstan.runs r on r.id = b.run_id where b.tenant = x.tenant and b.sha256 = x.sha256 and r.subject = $2))",
      "count(*)",
      "sum(x.size_bytes)",
    ),
  },
  { table: "conversations", text: count("conversations", OF_SUBJECT) },
  { table: "schedules", text: count("schedules", SCHEDULES) },
  { table: "api_tokens", text: count("api_tokens", OF_SUBJECT) },
  { table: "webhooks", only: "tenant", text: count("webhooks", OF_TENANT) },
  { table: "usage_rollup", only: "tenant", text: count("usage_rollup", OF_TENANT) },
];
