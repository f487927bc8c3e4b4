/** What waits for workers, and who works: rows for the API and its metrics. Wire names. */
import type pg from "pg";

type Db = Pick<pg.Pool, "query">;
type Named = (text: string) => string;

export interface PoolView {
  readonly pool: string;
  readonly workers: number;
  readonly slots: number;
  readonly busy: number;
}

export interface QueueView {
  readonly pool: string;
  /** Runs that want a job now. */
  readonly ready: number;
  /** Runs that want one later: `run_at`, a retry's pause. */
  readonly later: number;
  /** How long the oldest of those that are ready has waited. */
  readonly oldest_ms: number;
}

/** Workers alive, by pool. */
export async function pools(db: Db, named: Named): Promise<PoolView[]> {
  const { rows } = await db.query<PoolView>(
    named(`select w.pool, count(*)::int as workers, sum(w.slots)::int as slots, sum(w.busy)::int as busy from capstan.workers w
      where w.ended_at is null and w.heartbeat_at + w.lease_ms * interval '1 ms' > capstan.now() group by w.pool order by w.pool`),
  );
  return rows;
}

/** Of one tenant, or of all. */
export async function queueDepth(db: Db, named: Named, tenant?: string): Promise<QueueView[]> {
  const { rows } = await db.query<QueueView>(
    named(`select w.pool, count(*) filter (where w.at <= capstan.now())::int as ready, count(*) filter (where w.at > capstan.now())::int as later,
        coalesce(greatest(0, extract(epoch from capstan.now() - min(w.at) filter (where w.at <= capstan.now())) * 1000), 0)::float8 as oldest_ms
      from capstan.wishes w where $1::text is null or w.tenant = $1 group by w.pool order by w.pool`),
    [tenant ?? null],
  );
  return rows;
}

/** Runs that have not ended, by state. The ended ones are not counted: that would read them all. */
export async function openRuns(db: Db, named: Named, tenant?: string): Promise<{ readonly state: string; readonly runs: number }[]> {
  // One by one and by literals: each has an index of its own, which holds open runs only.
  const count = (state: string): string =>
    `select '${state}' as state, count(*)::int as runs from capstan.runs r where r.state = '${state}' and ($1::text is null or r.tenant = $1)`;
  const { rows } = await db.query<{ state: string; runs: number }>(named(["queued", "running", "waiting"].map(count).join(" union all ")), [tenant ?? null]);
  return rows;
}
