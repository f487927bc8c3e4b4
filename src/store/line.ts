/** Which runs a run's line is made of (domain/position.ts), read from their rows in one statement. */
import type { QueryResultRow } from "pg";
import { segmentsOf, within, type Segment } from "../domain/position.ts";
import { JournalDamagedError } from "../domain/upcast.ts";

/** All that reading asks of a pool: also a caller's own transaction can give it. */
export interface ReadDb {
  query<Row extends QueryResultRow>(statement: { readonly name?: string; readonly text: string; readonly values: unknown[] }): Promise<{ rows: Row[] }>;
}

/** A segment with what else its run's row says. */
export interface LineSegment extends Segment {
  readonly definitionSha: string | undefined;
}

/** Rows of one run that are read together. */
export interface Part {
  readonly runId: string;
  readonly offset: number;
  /** Own seqs, both exclusive. */
  readonly after: number;
  readonly below: number;
}

interface RawRun {
  id: string;
  seq_offset: number;
  base: string | null;
  base_seq: number | null;
  definition_sha: string | null;
}

const LINE_SQL = `
with recursive line as (
  select r.id, r.seq_offset, r.definition_sha, coalesce(r.forked_from_run, r.continued_from_run) as base, coalesce(r.forked_from_seq, r.continued_from_seq) as base_seq, 0 as depth
  from capstan.runs r where r.id = $1
  union all
  select b.id, b.seq_offset, b.definition_sha, coalesce(b.forked_from_run, b.continued_from_run), coalesce(b.forked_from_seq, b.continued_from_seq), l.depth + 1
  from line l join capstan.runs b on b.id = l.base
)
select id, seq_offset, definition_sha, base, base_seq from line order by depth`;

/** Oldest first; empty when there is no such run. Throws JournalDamagedError when a run that the line needs is gone. */
export async function readLine(db: ReadDb, named: (text: string) => string, runId: string): Promise<LineSegment[]> {
  const { rows } = await db.query<RawRun & QueryResultRow>({ name: "capstan-line", text: named(LINE_SQL), values: [runId] });
  const runs = rows.map((row) => ({ runId: row.id, offset: row.seq_offset, ...(row.base === null ? {} : { base: { runId: row.base, seq: row.base_seq as number } }) }));
  try {
    return segmentsOf(runs).map((segment, i, all) => ({ ...segment, definitionSha: rows[all.length - 1 - i]?.definition_sha ?? undefined }));
  } catch (error) {
    throw new JournalDamagedError(runId, { cause: error });
  }
}

/** What lies between two positions, cut into statements of at most `most` rows; short runs of a long thread share one. */
export function partsBetween(segments: readonly Segment[], range: { readonly after: number; readonly below: number }, most: number): Part[][] {
  const groups: Part[][] = [];
  let room = 0;
  for (const segment of segments) {
    const cut = within(segment, range);
    for (let from = cut?.after ?? 0; cut !== undefined && cut.below - from > 1;) {
      if (room === 0) groups.push([]);
      if (room === 0) room = most;
      const below = Math.min(cut.below, from + room + 1);
      groups.at(-1)?.push({ runId: segment.runId, offset: segment.offset, after: from, below });
      room -= below - from - 1;
      from = below - 1;
    }
  }
  return groups;
}
