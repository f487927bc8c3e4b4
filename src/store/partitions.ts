/** Partitions of the journal: which there are, why they stay, and the drop of one whose runs may all go (docs/scaling.md). */
import type pg from "pg";
import { isRetryableConflict } from "./pg-errors.ts";

export interface EventPartition {
  readonly name: string;
  /** Ids of its runs: from the first on, below the second. Both null: the default one; one of them: it is open to that side. */
  readonly from_id: string | null;
  readonly below_id: string | null;
  readonly bytes: number;
}

export interface DroppedPartition {
  readonly deleted: number;
  readonly blobs: readonly { readonly tenant: string; readonly sha256: string }[];
  readonly tables: Readonly<Record<string, { readonly rows: number; readonly bytes: number }>>;
}

export interface PartitionDrop {
  readonly name: string;
  readonly endedBefore: string;
  readonly withConversations: boolean;
  /** What was written down of each run. */
  readonly lastSeqs?: ReadonlyMap<string, number>;
}

/** Whoever reads or writes the journal waits behind a drop that waits: not for long. */
const LOCK_TIMEOUT_MS = 2_000;
const MOST_TRIES = 5;

type Db = Pick<pg.Pool, "query">;

export async function eventPartitions(db: Db, named: (text: string) => string): Promise<EventPartition[]> {
  const { rows } = await db.query<EventPartition>(
    named("select p.name, p.from_id, p.below_id, p.bytes::float8 as bytes from capstan.event_partitions p order by p.from_id nulls last"),
  );
  return rows;
}

/** Why its runs stay, by reason; empty when all of them may go together. */
export async function partitionKeeps(
  db: Db,
  named: (text: string) => string,
  { from_id: from, below_id: below }: EventPartition,
  { endedBefore, withConversations }: Pick<PartitionDrop, "endedBefore" | "withConversations">,
): Promise<Record<string, number>> {
  const { rows } = await db.query<{ keeps: Record<string, number> }>(named("select capstan.partition_keeps($1::uuid, $2::uuid, $3::timestamptz, $4) as keeps"), [
    from,
    below,
    endedBefore,
    withConversations,
  ]);
  return rows[0]?.keeps ?? {};
}

export async function* runsOfPartition(db: Db, named: (text: string) => string, { from_id: from, below_id: below }: EventPartition): AsyncGenerator<string> {
  for (let after: string | null = null; ;) {
    const { rows }: { rows: { id: string }[] } = await db.query<{ id: string }>(
      named("select r.id from capstan.runs r where r.id >= $1::uuid and r.id < $2::uuid and ($3::uuid is null or r.id > $3) order by r.id limit 500"),
      [from, below, after],
    );
    for (const { id } of rows) yield id;
    if (rows.length < 500) return;
    after = rows.at(-1)?.id ?? null;
  }
}

/** Gives the reasons instead when a run must stay after all, `{locked: 1}` when the journal was in use all the while. */
export async function dropPartition(
  pool: pg.Pool,
  named: (text: string) => string,
  { name, endedBefore, withConversations, lastSeqs }: PartitionDrop,
): Promise<DroppedPartition | { readonly keeps: Readonly<Record<string, number>> }> {
  for (let attempt = 1; ; attempt++) {
    const client = await pool.connect();
    try {
      await client.query(`begin; set local lock_timeout = '${LOCK_TIMEOUT_MS}ms'`);
      const { rows } = await client.query<{ done: DroppedPartition }>(named("select capstan.drop_partition($1, $2::timestamptz, $3, $4::uuid[], $5::int[]) as done"), [
        name,
        endedBefore,
        withConversations,
        lastSeqs === undefined ? null : [...lastSeqs.keys()],
        lastSeqs === undefined ? null : [...lastSeqs.values()],
      ]);
      await client.query("commit");
      return (rows[0] as { done: DroppedPartition }).done;
    } catch (error) {
      await client.query("rollback").catch(() => {});
      const { code, detail } = error as { code?: string; detail?: string };
      if (code === "KC023") return { keeps: JSON.parse(detail ?? "{}") as Record<string, number> };
      if (!isRetryableConflict(error)) throw error;
      if (attempt === MOST_TRIES) return { keeps: { locked: 1 } };
    } finally {
      client.release();
    }
  }
}
