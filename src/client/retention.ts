/**
 * Ended runs go after a while, with everything that is theirs, in bounded batches. Each batch is a transaction of its own,
 * and what is left says where to go on: killed at any point and started again it does the rest.
 */
import type { RunStatus } from "../domain/run.ts";
import { CapstanError } from "../domain/error.ts";
import { ContentCollector, type ContentCount } from "./content-collector.ts";
import { ArgumentError, fromPostgres } from "./errors.ts";
import { addTables, deleteRuns, type DeletedBatch, type TableCount } from "./run-deletion.ts";
import { queryTx, type Tx } from "./transaction.ts";

export interface RetentionFilter {
  /** Runs that ended at least so long ago, by the database's clock. */
  readonly olderThanMs: number;
  readonly tenant?: string;
  readonly agent?: string;
  /** Default: all in which a run can have ended. */
  readonly states?: readonly RunStatus[];
  /** Also whole conversations in which nothing was said for as long. Without it a conversation keeps its runs: it can go on. */
  readonly conversations?: boolean;
}

export interface RetentionOptions {
  /** Runs in one transaction; 1 to 1,000, default 100. */
  readonly batch?: number;
  /** Writes a run down before it goes, and gives the seq of its last event that was written; the run stays when it throws. */
  readonly archive?: (runId: string) => Promise<number>;
  readonly onProgress?: (looked: number) => void;
  /** No batch more is begun once it has fired. */
  readonly signal?: AbortSignal;
}

export interface RetentionPreview {
  readonly ended_before: string;
  /** Runs that are old enough and fit the filter. */
  readonly matched: number;
  readonly deletable: number;
  /** Why the others stay. */
  readonly kept: Readonly<Record<string, number>>;
}

export interface RetentionRefusal {
  readonly run_id: string;
  readonly code: string;
  readonly message: string;
}

export interface RetentionReport {
  readonly ended_before: string;
  readonly deleted: number;
  readonly archived: number;
  readonly kept: Readonly<Record<string, number>>;
  /** Runs that could not be written down, and therefore stay. */
  readonly refused: readonly RetentionRefusal[];
  readonly tables: Readonly<Record<string, TableCount>>;
  readonly content: ContentCount;
  /** All that could go is gone; false when it was stopped before. */
  readonly complete: boolean;
}

const ENDED = ["completed", "failed", "cancelled"] as const;
const DEFAULT_BATCH = 100;
const REFUSALS_LISTED = 100;

/** $1 ended before, $2 tenant, $3 agent, $4 states. */
const match = (run: string): string =>
  `(${run}.finished_at < $1::timestamptz and ($2::text is null or ${run}.tenant = $2) and ($3::text is null or ${run}.agent = $3) and ${run}.state = any($4::text[]))`;

/** What runs that stay begin with stays too, however far back: exactly what the batches will find, newest first. */
const PREVIEW = `
with recursive needed as (
  select coalesce(f.forked_from_run, f.continued_from_run) as id from capstan.runs f
  where (f.forked_from_run is not null or f.continued_from_run is not null) and not (${match("f")} and capstan.kept_because(f, $1::timestamptz, $5) is null)
  union
  select coalesce(b.forked_from_run, b.continued_from_run) from needed n join capstan.runs b on b.id = n.id
  where b.forked_from_run is not null or b.continued_from_run is not null
)
select k.reason, count(*)::int as runs from (
  select coalesce(capstan.kept_because(r, $1::timestamptz, $5), case when exists (select from needed n where n.id = r.id) then 'referenced' end) as reason
  from capstan.runs r where ${match("r")}
) k group by k.reason`;

/** Newest first: what begins with another run goes before it. */
const PAGE = `select r.id from capstan.runs r where ${match("r")} and capstan.kept_because(r, $1::timestamptz, $5) is null and ($6::uuid is null or r.id < $6) order by r.id desc limit $7`;

export class RetentionClient {
  readonly #db: Tx;
  readonly #named: (text: string) => string;

  constructor(db: Tx, named: (text: string) => string) {
    this.#db = db;
    this.#named = named;
  }

  /** The run, and those that it begins with, stay until `release`: retention and erasure pass them by. False when it was held already. */
  async hold(runId: string, { reason, actor }: { readonly reason?: string; readonly actor?: string } = {}): Promise<boolean> {
    const [row] = await this.#query<{ done: boolean }>("select capstan.hold_run($1::uuid, $2, $3) as done", [runId, reason ?? null, actor ?? null]);
    return row?.done === true;
  }

  /** False when it was not held. */
  async release(runId: string, { actor }: { readonly actor?: string } = {}): Promise<boolean> {
    const [row] = await this.#query<{ done: boolean }>("select capstan.release_run($1::uuid, $2) as done", [runId, actor ?? null]);
    return row?.done === true;
  }

  /** What `deleteEnded` would do now. */
  async preview(filter: RetentionFilter): Promise<RetentionPreview> {
    return await this.#preview(await this.#values(filter));
  }

  /** Deletes what the filter finds, all of it, and contents that nothing refers to any more. */
  async deleteEnded(filter: RetentionFilter, { batch = DEFAULT_BATCH, archive, onProgress, signal }: RetentionOptions = {}): Promise<RetentionReport> {
    if (!Number.isInteger(batch) || batch < 1 || batch > 1_000) throw new ArgumentError(`batch is a whole number from 1 to 1000, not ${batch}`);
    const values = await this.#values(filter);
    const collector = new ContentCollector(this.#db, this.#named);
    const report = { deleted: 0, archived: 0, refused: [] as RetentionRefusal[], tables: {} as Record<string, TableCount> };
    const isStopped = (): boolean => signal?.aborted === true;
    // Ids need not be in the order of time (a caller may give them): what stayed for a run that went later goes in another round.
    for (let again = true; again && !isStopped();) {
      again = false;
      let looked = 0;
      let wasReferenced = false;
      let went = 0;
      for (let last: string | null = null; !isStopped();) {
        const page: { id: string }[] = await this.#query<{ id: string }>(PAGE, [...values, last, batch]);
        if (page.length === 0) break;
        const ids = page.map(({ id }) => id);
        last = ids.at(-1) ?? null;
        const done = await this.#batch(ids, values, archive, report);
        went += done.deleted.length;
        wasReferenced ||= Object.values(done.kept).includes("referenced");
        report.deleted += done.deleted.length;
        addTables(report.tables, done.tables);
        await collector.collect(done.blobs);
        onProgress?.((looked += ids.length));
      }
      again = went > 0 && wasReferenced;
    }
    const complete = !isStopped();
    // Also what an earlier call that was killed has left.
    if (complete) await collector.sweep(signal);
    const { kept } = await this.#preview(values);
    return { ended_before: values[0], ...report, kept, content: collector.count, complete };
  }

  async #batch(
    ids: readonly string[],
    [before, , , , withConversations]: Values,
    archive: RetentionOptions["archive"],
    report: { archived: number; refused: RetentionRefusal[] },
  ): Promise<DeletedBatch> {
    const wanted = { ids, endedBefore: before, withConversations };
    if (archive === undefined) return await this.#delete(wanted);
    // Only what is about to go is written down.
    const planned = await this.#delete({ ...wanted, dryRun: true });
    const written = new Map<string, number>();
    for (const id of planned.deleted) {
      try {
        written.set(id, await archive(id));
        report.archived++;
      } catch (error) {
        // A run that cannot be read keeps itself, and no other.
        if (!(error instanceof CapstanError)) throw error;
        if (report.refused.length < REFUSALS_LISTED) report.refused.push({ run_id: id, code: error.code, message: error.message });
      }
    }
    const done = await this.#delete({ ...wanted, ids: [...written.keys()], lastSeqs: [...written.values()] });
    return { ...done, kept: { ...planned.kept, ...done.kept } };
  }

  async #delete(batch: Parameters<typeof deleteRuns>[2]): Promise<DeletedBatch> {
    return await deleteRuns(this.#db, this.#named, batch);
  }

  async #preview(values: Values): Promise<RetentionPreview> {
    const rows = await this.#query<{ reason: string | null; runs: number }>(PREVIEW, values);
    const kept = Object.fromEntries(rows.flatMap(({ reason, runs }) => (reason === null ? [] : [[reason, runs] as const])));
    return {
      ended_before: values[0],
      matched: rows.reduce((sum, { runs }) => sum + runs, 0),
      deletable: rows.find(({ reason }) => reason === null)?.runs ?? 0,
      kept,
    };
  }

  async #values({ olderThanMs, tenant, agent, states = ENDED, conversations = false }: RetentionFilter): Promise<Values> {
    if (!Number.isFinite(olderThanMs) || olderThanMs < 0) throw new ArgumentError(`olderThanMs is a number of milliseconds from 0 on, not ${olderThanMs}`);
    const wrong = states.filter((state) => !(ENDED as readonly string[]).includes(state));
    if (wrong.length > 0) throw new ArgumentError(`states: ${wrong.join(", ")} is no state in which a run has ended; use ${ENDED.join(", ")}`);
    const [clock] = await this.#query<{ before: string }>("select to_jsonb(capstan.now() - $1::float8 * interval '1 ms') #>> '{}' as before", [olderThanMs]);
    return [(clock as { before: string }).before, tenant ?? null, agent ?? null, states, conversations];
  }

  async #query<Row extends object>(text: string, values: readonly unknown[]): Promise<Row[]> {
    try {
      return await queryTx<Row & Record<string, unknown>>(this.#db, this.#named(text), values);
    } catch (error) {
      throw fromPostgres(error);
    }
  }
}

type Values = readonly [endedBefore: string, tenant: string | null, agent: string | null, states: readonly RunStatus[], conversations: boolean];
