/** One batch of runs through capstan.delete_runs, and what became of each. */
import { isRetryableConflict } from "../store/pg-errors.ts";
import { fromPostgres } from "./errors.ts";
import { queryTx, type Tx } from "./transaction.ts";

export interface TableCount {
  readonly rows: number;
  /** Of the rows' content, as it was stored. */
  readonly bytes: number;
}

export interface LooseContent {
  readonly tenant: string;
  readonly sha256: string;
}

export interface DeletedBatch {
  readonly deleted: readonly string[];
  /** By run, why it stays: `hold`, `referenced`, `locked`… */
  readonly kept: Readonly<Record<string, string>>;
  readonly tables: Readonly<Record<string, TableCount>>;
  /** Nothing refers to these any more. */
  readonly blobs: readonly LooseContent[];
}

export interface RunBatch {
  readonly ids: readonly string[];
  readonly endedBefore?: string;
  readonly withConversations?: boolean;
  /** An end is enough, whatever else would keep them but a hold. */
  readonly erasing?: boolean;
  /** By run: one that has grown since stays. */
  readonly lastSeqs?: readonly number[];
  readonly dryRun?: boolean;
}

const DELETE = "select capstan.delete_runs($1::uuid[], $2::timestamptz, $3, $4, $5::int[], $6) as done";

/** A job that says "look at this run" finds nothing and is done; those that nobody has taken yet need not be left for that. */
const FORGET_JOBS =
  "select graphile_worker.complete_jobs(array(select j.id from graphile_worker._private_jobs j where j.locked_at is null and j.payload ->> 'runId' = any($1::text[])))";

const MOST_TRIES = 5;

export async function deleteRuns(
  db: Tx,
  named: (text: string) => string,
  { ids, endedBefore, withConversations = false, erasing = false, lastSeqs, dryRun = false }: RunBatch,
): Promise<DeletedBatch> {
  if (ids.length === 0) return { deleted: [], kept: {}, tables: {}, blobs: [] };
  for (let attempt = 1; ; attempt++) {
    try {
      const [row] = await queryTx<{ done: DeletedBatch }>(db, named(DELETE), [ids, endedBefore ?? null, withConversations, erasing, lastSeqs ?? null, dryRun]);
      const { done } = row as { done: DeletedBatch };
      if (!dryRun && done.deleted.length > 0) await queryTx(db, named(FORGET_JOBS), [done.deleted]);
      return done;
    } catch (error) {
      // Nothing of the batch has happened.
      if (!isRetryableConflict(error) || attempt === MOST_TRIES) throw fromPostgres(error);
    }
  }
}

export function addTables(sum: Record<string, TableCount>, tables: Readonly<Record<string, TableCount>>): void {
  for (const [name, { rows, bytes }] of Object.entries(tables)) {
    const before = sum[name] ?? { rows: 0, bytes: 0 };
    sum[name] = { rows: before.rows + rows, bytes: before.bytes + bytes };
  }
}
