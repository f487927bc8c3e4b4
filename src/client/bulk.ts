/**
 * Many runs at once: retry or cancel what a filter finds, with a preview. Each run is its own commit, so that one that is
 * refused does not keep the others; done again after an interruption it goes on where it was.
 */
import type { RunStatus } from "../domain/run.ts";
import { CapstanError } from "../domain/error.ts";
import { runStatuses } from "../domain/run.ts";
import { ArgumentError, fromPostgres } from "./errors.ts";
import { RunHandle, type HandleContext } from "./handle.ts";
import { queryTx } from "./transaction.ts";

export interface BulkFilter {
  readonly tenant?: string;
  readonly agent?: string;
  /** Default: `failed` for a retry, all that have not ended for a cancel. */
  readonly states?: readonly RunStatus[];
  readonly errorCode?: string;
  readonly label?: string;
  readonly createdBefore?: Date;
  readonly createdAfter?: Date;
  /** The oldest so many. Default: all. */
  readonly limit?: number;
}

export interface BulkOptions {
  /** Only says what would be done. */
  readonly dryRun?: boolean;
  readonly actor?: string;
  /** No run more is begun once it has fired. */
  readonly signal?: AbortSignal;
}

export interface BulkCount {
  /** The error's code; of runs without one the state. */
  readonly code: string;
  readonly runs: number;
}

export interface BulkPreview {
  readonly matched: number;
  readonly by_code: readonly BulkCount[];
  /** The oldest few. */
  readonly first: readonly string[];
}

export interface BulkRefusal {
  readonly run_id: string;
  readonly code: string;
  readonly message: string;
}

export interface BulkResult extends BulkPreview {
  readonly dry_run: boolean;
  /** Runs that were retried or cancelled. */
  readonly done: number;
  /** Cancel: they had ended meanwhile. */
  readonly unchanged: number;
  readonly refused: readonly BulkRefusal[];
  /** Retry: the new runs, oldest first; the first thousand. */
  readonly run_ids: readonly string[];
}

export interface FailureFilter {
  readonly tenant?: string;
  readonly agent?: string;
  readonly createdAfter?: Date;
  readonly createdBefore?: Date;
}

export interface FailureCount {
  readonly code: string;
  readonly runs: number;
  /** Of those, runs without a retry. */
  readonly open: number;
  readonly agents: readonly string[];
  readonly last_run_id: string;
  readonly last_at: string;
}

const PAGE_RUNS = 200;
const AT_ONCE = 4;
const PREVIEW_IDS = 10;
const LISTED_IDS = 1_000;
const OPEN = ["queued", "running", "waiting"] as const;

/** A run that was retried stays failed for ever; its retry is what counts from then on. */
const NOT_RETRIED = "not exists (select from capstan.runs x where x.forked_from_run = r.id and x.origin = 'retry')";

/** What began after the first look is not what was meant: retries that fail at once would be retried for ever. */
const MATCH = `($1::text is null or r.tenant = $1) and ($2::text is null or r.agent = $2) and r.state = any($3::text[]) and ($4::text is null or r.error_code = $4)
  and ($5::text is null or $5 = any(r.labels)) and ($6::timestamptz is null or r.created_at < $6) and ($7::timestamptz is null or r.created_at >= $7) and r.created_at <= $8::timestamptz`;

const FAILURES = `
select coalesce(r.error_code, 'RUN_FAILED') as code, count(*)::int as runs, count(*) filter (where ${NOT_RETRIED})::int as open,
  array_agg(distinct r.agent order by r.agent) as agents, (array_agg(r.id order by r.finished_at desc))[1] as last_run_id, to_jsonb(max(r.finished_at)) #>> '{}' as last_at
from capstan.runs r
where r.state = 'failed' and ($1::text is null or r.tenant = $1) and ($2::text is null or r.agent = $2)
  and ($3::timestamptz is null or r.created_at >= $3) and ($4::timestamptz is null or r.created_at < $4)
group by 1 order by 2 desc, 1`;

export class RunsClient {
  readonly #context: HandleContext;

  constructor(context: HandleContext) {
    this.#context = context;
  }

  /**
   * Retries failed runs (or cancelled ones, if `states` says so) that have no retry yet: each once, however often this is
   * called. A retry that failed in turn is a failed run of its own, and is retried by the next call.
   */
  async retryAll(filter: BulkFilter = {}, options: BulkOptions = {}): Promise<BulkResult> {
    const states = checkStates(filter.states ?? ["failed"], ["failed", "cancelled"]);
    return await this.#each({ ...filter, states }, NOT_RETRIED, options, async (handle, actor) => (await handle.retry({ ...actor, once: true })).id);
  }

  /** Cancels what has not ended, with all that it started. */
  async cancelAll(filter: BulkFilter = {}, { reason, ...options }: BulkOptions & { readonly reason?: string } = {}): Promise<BulkResult> {
    const states = checkStates(filter.states ?? OPEN, OPEN);
    return await this.#each({ ...filter, states }, "true", options, async (handle, actor) => ((await handle.cancel(reason, actor)) ? handle.id : undefined));
  }

  /** Failed runs by their error's code, the most frequent first. */
  failures({ tenant, agent, createdAfter, createdBefore }: FailureFilter = {}): Promise<FailureCount[]> {
    return this.#query<FailureCount>(FAILURES, [tenant ?? null, agent ?? null, createdAfter?.toISOString() ?? null, createdBefore?.toISOString() ?? null]);
  }

  async #each(
    filter: BulkFilter & { readonly states: readonly RunStatus[] },
    also: string,
    { dryRun = false, actor, signal }: BulkOptions,
    act: (handle: RunHandle, actor: { readonly actor?: string }) => Promise<string | undefined>,
  ): Promise<BulkResult> {
    const limit = checkLimit(filter.limit);
    const [clock] = await this.#query<{ now: string }>("select capstan.now()::text as now", []);
    const { tenant, agent, states, errorCode, label, createdBefore, createdAfter } = filter;
    const values = [tenant ?? null, agent ?? null, states, errorCode ?? null, label ?? null, createdBefore?.toISOString() ?? null, createdAfter?.toISOString() ?? null, clock?.now];
    const preview = await this.#preview(`${MATCH} and ${also}`, values, limit);
    const result = { done: 0, unchanged: 0, refused: [] as BulkRefusal[], run_ids: [] as string[] };
    const one = async (id: string): Promise<void> => {
      try {
        const made = await act(new RunHandle(id, this.#context), actor === undefined ? {} : { actor });
        if (made === undefined) result.unchanged++;
        else result.done++;
        if (made !== undefined && made !== id && result.run_ids.length < LISTED_IDS) result.run_ids.push(made);
      } catch (error) {
        // The others are as good as before; an unreachable database is no run's own fault.
        if (!(error instanceof CapstanError) || error.code === "DATABASE_UNAVAILABLE") throw error;
        result.refused.push({ run_id: id, code: error.code, message: error.message });
      }
    };
    const isStopped = (): boolean => signal?.aborted === true;
    let last: string | null = null;
    for (let left = dryRun ? 0 : Math.min(limit, preview.matched); left > 0 && !isStopped();) {
      const ids: string[] = await this.#page(`${MATCH} and ${also}`, values, last, Math.min(PAGE_RUNS, left));
      for (let i = 0; i < ids.length && !isStopped(); i += AT_ONCE) await Promise.all(ids.slice(i, i + AT_ONCE).map(one));
      left = ids.length === 0 ? 0 : left - ids.length;
      last = ids.at(-1) ?? null;
    }
    return { ...preview, dry_run: dryRun, ...result, run_ids: result.run_ids.toSorted() };
  }

  async #preview(where: string, values: readonly unknown[], limit: number): Promise<BulkPreview> {
    const codes = await this.#query<BulkCount & { ids: string[] }>(
      `select code, count(*)::int as runs, (array_agg(id order by id))[1:${PREVIEW_IDS}] as ids
       from (select r.id, coalesce(r.error_code, r.state) as code from capstan.runs r where ${where} order by r.id limit $9) m group by code order by 2 desc, 1`,
      [...values, limit],
    );
    return {
      matched: codes.reduce((sum, { runs }) => sum + runs, 0),
      by_code: codes.map(({ code, runs }) => ({ code, runs })),
      first: codes
        .flatMap(({ ids }) => ids)
        .toSorted()
        .slice(0, PREVIEW_IDS),
    };
  }

  async #page(where: string, values: readonly unknown[], after: string | null, limit: number): Promise<string[]> {
    const rows = await this.#query<{ id: string }>(`select r.id from capstan.runs r where ${where} and ($9::uuid is null or r.id > $9) order by r.id limit $10`, [
      ...values,
      after,
      limit,
    ]);
    return rows.map(({ id }) => id);
  }

  async #query<Row extends object>(text: string, values: readonly unknown[]): Promise<Row[]> {
    try {
      return await queryTx<Row & Record<string, unknown>>(this.#context.db, this.#context.named(text), values);
    } catch (error) {
      throw fromPostgres(error);
    }
  }
}

function checkStates(states: readonly RunStatus[], allowed: readonly RunStatus[]): readonly RunStatus[] {
  const wrong = states.filter((state) => !allowed.includes(state));
  if (wrong.length === 0) return states;
  const what = wrong.some((state) => !runStatuses.includes(state)) ? "is no state" : "is not for this";
  throw new ArgumentError(`states: ${wrong.join(", ")} ${what}; use ${allowed.join(", ")}`);
}

const MOST = 2_147_483_647;

function checkLimit(limit = MOST): number {
  if (!Number.isInteger(limit) || limit < 1 || limit > MOST) throw new ArgumentError(`limit is a whole number from 1 on, not ${limit}`);
  return limit;
}
