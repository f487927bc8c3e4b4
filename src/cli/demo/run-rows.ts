/** The demo's view of its runs: what their rows and journals say. */
import type pg from "pg";

export interface RunRow {
  readonly id: string;
  readonly tenant: string;
  readonly state: string;
  readonly turn: number;
  readonly events: number;
  readonly journalBytes: number;
  readonly transcriptBytes: number;
  /** The view's epoch: each compaction raises it. */
  readonly compactions: number;
  readonly workerId: string | null;
  readonly errorCode: string | null;
}

type Query = { readonly pool: pg.Pool; readonly named: (text: string) => string };

export async function readRuns({ pool, named }: Query, ids: readonly string[]): Promise<RunRow[]> {
  const { rows } = await pool.query<RunRow>(
    named(`select id, tenant, state, turn, next_seq - 1 as events, journal_bytes::float8 as "journalBytes", transcript_bytes::float8 as "transcriptBytes", view_epoch as compactions,
      worker_id as "workerId", error_code as "errorCode" from capstan.runs where id = any($1::uuid[])`),
    [ids],
  );
  return ids.flatMap((id) => rows.find((row) => row.id === id) ?? []);
}

export async function databaseNow({ pool, named }: Query): Promise<Date> {
  const { rows } = await pool.query<{ now: Date }>(named("select capstan.now() as now"));
  return (rows[0] as { now: Date }).now;
}

/** When each run that these workers held went on under another worker: its first event with a later fencing token. */
export async function takeovers({ pool, named }: Query, held: readonly { readonly runId: string; readonly token: number }[]): Promise<Map<string, Date>> {
  const { rows } = await pool.query<{ id: string; at: Date }>(
    named(`select e.run_id as id, min(e.at) as at from capstan.events e
      join unnest($1::uuid[], $2::int[]) as h(run_id, token) on h.run_id = e.run_id and e.fencing_token > h.token group by e.run_id`),
    [held.map(({ runId }) => runId), held.map(({ token }) => token)],
  );
  return new Map(rows.map(({ id, at }) => [id, at]));
}

export async function heldBy({ pool, named }: Query, workerId: string): Promise<{ runId: string; token: number }[]> {
  const { rows } = await pool.query<{ runId: string; token: number }>(
    named(`select id as "runId", fencing_token as token from capstan.runs where worker_id = $1 and finished_at is null`),
    [workerId],
  );
  return rows;
}

/** Runs of an earlier demo that was killed: its pool has no worker any more, and nobody would ever go on with them. */
export async function cancelLeftOvers({ pool, named }: Query): Promise<number> {
  const { rowCount } = await pool.query(
    named(`select capstan.cancel_run(r.id, 'left over from a demo that was killed', 'demo') from capstan.runs r
      where r.finished_at is null and r.labels @> array['demo'] and r.created_at < capstan.now() - interval '1 minute'
        and not exists (select from capstan.workers w where w.pool = r.pool and w.ended_at is null and w.heartbeat_at > capstan.now() - interval '1 minute')`),
  );
  return rowCount ?? 0;
}
