/** What doctor and listings ask about schedules. */
import type pg from "pg";

export interface ScheduleFacts {
  readonly schedules: number;
  readonly paused: number;
  /** Due for longer than a worker takes to look. */
  readonly overdue: number;
  readonly overdue_example: string | null;
  readonly failing: readonly { readonly tenant: string; readonly name: string; readonly code: string; readonly message: string }[];
}

/** Workers look every 5 s and leave one that failed alone for 30 s. */
const OVERDUE = "interval '1 minute'";

export async function scheduleFacts(db: Pick<pg.Pool, "query">, named: (text: string) => string): Promise<ScheduleFacts> {
  const { rows } = await db.query<ScheduleFacts>(
    named(`select count(*)::int as schedules, count(*) filter (where s.paused)::int as paused,
        count(*) filter (where not s.paused and s.next_at < capstan.now() - ${OVERDUE})::int as overdue,
        min(s.tenant || '/' || s.name) filter (where not s.paused and s.next_at < capstan.now() - ${OVERDUE}) as overdue_example,
        (select coalesce(jsonb_agg(jsonb_build_object('tenant', f.tenant, 'name', f.name, 'code', f.last_error ->> 'code', 'message', f.last_error ->> 'message')), '[]')
          from (select tenant, name, last_error from capstan.schedules where last_error is not null order by tenant, name limit 20) f) as failing
      from capstan.schedules s`),
  );
  return rows[0] as ScheduleFacts;
}
