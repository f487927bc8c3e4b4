/** What doctor asks about runs that stand still on their own. */
import type pg from "pg";

export interface PausedRuns {
  readonly n: number;
  readonly example: string | null;
}

export async function pausedRuns(db: Pick<pg.Pool, "query">, named: (text: string) => string): Promise<PausedRuns> {
  const { rows } = await db.query<PausedRuns>(named("select count(*)::int as n, min(r.id::text) as example from capstan.runs r where r.paused and r.finished_at is null"));
  return rows[0] as PausedRuns;
}
