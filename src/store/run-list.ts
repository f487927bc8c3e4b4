/** Runs as lists and pages show them. Field names are the wire's (snake_case): command line, API and console share these rows. */
import type pg from "pg";
import type { WaitReason } from "../domain/event.ts";
import type { RunStatus } from "../domain/run.ts";

export interface RunSummary {
  readonly id: string;
  readonly agent: string;
  readonly tenant: string;
  readonly state: RunStatus;
  readonly wait_reason: WaitReason | null;
  readonly wake_at: Date | null;
  readonly paused: boolean;
  readonly interactive: boolean;
  readonly turn: number;
  readonly last_seq: number;
  readonly created_at: Date;
  readonly updated_at: Date;
  readonly finished_at: Date | null;
  readonly deadline: Date | null;
  readonly error_code: string | null;
  readonly context_tokens: number | null;
  readonly context_window: number | null;
  readonly transcript_bytes: number;
  readonly journal_bytes: number;
  /** 0 none, 1 warned, 2 critical. */
  readonly growth_level: number;
  readonly input_tokens: number;
  readonly output_tokens: number;
  readonly cost_usd_micros: number;
  readonly inbox_pending: number;
}

/** What one run's page shows beside its summary. */
export interface RunDetail extends RunSummary {
  readonly pool: string;
  readonly priority: number;
  readonly run_at: Date | null;
  readonly idempotency_key: string | null;
  readonly definition_sha: string | null;
  readonly traceparent: string | null;
  readonly last_span: string | null;
  readonly metadata: unknown;
  readonly labels: readonly string[] | null;
  readonly origin: string;
  readonly conversation_id: string | null;
  /** The run whose events up to `seq` its view begins with. */
  readonly base: { readonly run_id: string; readonly seq: number } | null;
  readonly crash_count: number;
  readonly fencing_token: number;
  readonly cache_read_tokens: number;
  readonly cache_write_tokens: number;
  /** Who holds it now. */
  readonly held_by: { readonly worker_id: string; readonly host: string | null; readonly pid: number | null } | null;
  readonly parent_run_id: string | null;
  /** The call that started it, as `t<turn>.<index>`. */
  readonly parent_call: string | null;
  /** When its next job is due; null when it holds none. */
  readonly wish_at: Date | null;
  /** What the run's last park said, while it waits. */
  readonly park_detail: unknown;
}

export interface RunFilter {
  readonly states?: readonly RunStatus[];
  readonly waitReason?: WaitReason;
  readonly tenant?: string;
  readonly agent?: string;
  readonly label?: string;
  readonly subject?: string;
  readonly conversationId?: string;
  readonly createdAfter?: Date;
  readonly createdBefore?: Date;
  /** Somewhere in its id, agent, subject, labels or error code, in whichever case. */
  readonly q?: string;
  /** Runs older than this one: ids are UUIDv7, so they sort by creation. */
  readonly before?: string;
  readonly limit: number;
}

export interface RunPage {
  readonly runs: readonly RunSummary[];
  /** The `before` of the next page; null on the last. */
  readonly next_before: string | null;
}

const SUMMARY = `r.id, r.agent, r.tenant, r.state, r.wait_reason, r.wake_at, r.paused, r.interactive, r.turn, r.next_seq - 1 as last_seq, r.created_at, r.updated_at,
  r.finished_at, r.deadline, r.error_code, r.context_tokens, r.context_window, r.transcript_bytes::float8 as transcript_bytes, r.journal_bytes::float8 as journal_bytes,
  r.growth_level, r.input_tokens::float8 as input_tokens, r.output_tokens::float8 as output_tokens, r.cost_usd_micros::float8 as cost_usd_micros, r.inbox_pending`;

/** Newest first. One row more than asked for is read, which tells whether there is another page. */
export async function listRuns(db: Pick<pg.Pool, "query">, named: (text: string) => string, filter: RunFilter): Promise<RunPage> {
  const { rows } = await db.query<RunSummary>(
    named(`select ${SUMMARY} from capstan.runs r
      where ($1::text[] is null or r.state = any($1)) and ($2::text is null or r.wait_reason = $2) and ($3::text is null or r.tenant = $3)
        and ($4::text is null or r.agent = $4) and ($5::uuid is null or r.id < $5) and ($7::text is null or $7 = any(r.labels)) and ($8::text is null or r.subject = $8)
        and ($9::uuid is null or r.conversation_id = $9) and ($10::timestamptz is null or r.created_at >= $10) and ($11::timestamptz is null or r.created_at < $11)
        and ($12::text is null or position(lower($12) in lower(concat_ws(E'\n', r.id::text, r.agent, r.subject, r.error_code, array_to_string(r.labels, E'\n')))) > 0)
      order by r.id desc limit $6`),
    [
      filter.states ?? null,
      filter.waitReason ?? null,
      filter.tenant ?? null,
      filter.agent ?? null,
      filter.before ?? null,
      filter.limit + 1,
      filter.label ?? null,
      filter.subject ?? null,
      filter.conversationId ?? null,
      filter.createdAfter?.toISOString() ?? null,
      filter.createdBefore?.toISOString() ?? null,
      filter.q ?? null,
    ],
  );
  const runs = rows.slice(0, filter.limit);
  return { runs, next_before: rows.length > filter.limit ? (runs.at(-1)?.id ?? null) : null };
}

export async function runDetail(db: Pick<pg.Pool, "query">, named: (text: string) => string, runId: string): Promise<RunDetail | undefined> {
  const { rows } = await db.query<RunDetail>(
    named(`select ${SUMMARY}, r.pool, r.priority, r.run_at, r.idempotency_key, r.definition_sha, r.traceparent, r.last_span, r.metadata, r.labels, r.crash_count, r.parent_run_id, r.parent_call, r.origin, r.conversation_id,
        case when r.seq_offset > 0 then jsonb_build_object('run_id', coalesce(r.forked_from_run, r.continued_from_run), 'seq', coalesce(r.forked_from_seq, r.continued_from_seq)) end as base,
        r.fencing_token, r.cache_read_tokens::float8 as cache_read_tokens, r.cache_write_tokens::float8 as cache_write_tokens,
        case when r.worker_id is not null then jsonb_build_object('worker_id', r.worker_id, 'host', w.host, 'pid', w.pid) end as held_by,
        (select wi.at from capstan.wishes wi where wi.run_id = r.id) as wish_at,
        case when r.state = 'waiting' then (select e.payload -> 'detail' from capstan.events e where e.run_id = r.id and e.type = 'run.parked' order by e.seq desc limit 1) end as park_detail
      from capstan.runs r left join capstan.workers w on w.id = r.worker_id where r.id = $1`),
    [runId],
  );
  return rows[0];
}

export async function contextOf(
  db: Pick<pg.Pool, "query">,
  named: (text: string) => string,
  runId: string,
): Promise<Pick<RunSummary, "context_tokens" | "context_window"> | undefined> {
  const { rows } = await db.query<Pick<RunSummary, "context_tokens" | "context_window">>(named("select context_tokens, context_window from capstan.runs where id = $1"), [runId]);
  return rows[0];
}

/** Ids of all runs, oldest first, page by page: for work over everything. */
export async function* allRunIds(db: Pick<pg.Pool, "query">, named: (text: string) => string): AsyncGenerator<string> {
  for (let last: string | null = null; ;) {
    const { rows }: { rows: { id: string }[] } = await db.query<{ id: string }>(named("select id from capstan.runs where $1::uuid is null or id > $1 order by id limit 1000"), [
      last,
    ]);
    for (const { id } of rows) yield id;
    if (rows.length < 1_000) return;
    last = rows.at(-1)?.id ?? null;
  }
}

export async function countRuns(db: Pick<pg.Pool, "query">, named: (text: string) => string): Promise<number> {
  const { rows } = await db.query<{ n: number }>(named("select count(*)::int as n from capstan.runs"));
  return rows[0]?.n ?? 0;
}

/** Workers that are alive and have this agent in this pool. */
export async function liveWorkersFor(db: Pick<pg.Pool, "query">, named: (text: string) => string, agent: string, pool: string): Promise<number> {
  const { rows } = await db.query<{ n: number }>(
    named(`select count(*)::int as n from capstan.workers w
      where w.ended_at is null and w.pool = $2 and $1 = any(w.agents) and w.heartbeat_at + w.lease_ms * interval '1 ms' > capstan.now()`),
    [agent, pool],
  );
  return rows[0]?.n ?? 0;
}
