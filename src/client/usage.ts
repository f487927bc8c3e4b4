/** What runs have used: by tenant, agent, model or day, and of one run with all that it has started. */
import { ArgumentError, fromPostgres, UnknownRunError } from "./errors.ts";
import { queryTx, type Tx } from "./transaction.ts";

export const usageGroups = ["tenant", "agent", "model", "day"] as const;

export interface UsageFilter {
  readonly by: (typeof usageGroups)[number];
  readonly since: Date;
  /** Default: now. */
  readonly until?: Date;
  readonly tenant?: string;
}

export interface UsageTotals {
  /** Calls of models for turns and summaries, also failed ones. */
  readonly calls: number;
  readonly tool_calls: number;
  readonly input_tokens: number;
  readonly output_tokens: number;
  readonly cache_read_tokens: number;
  readonly cache_write_tokens: number;
  readonly cost_usd_micros: number;
}

export interface UsageRow extends UsageTotals {
  /** The tenant, agent or model, or the day (UTC, `2026-12-01`). Empty for calls that no model is known of. */
  readonly key: string;
}

export interface RunUsage extends UsageTotals {
  readonly run_id: string;
  readonly parent_run_id?: string;
  readonly depth: number;
  readonly agent: string;
  readonly state: string;
}

export interface TreeUsage {
  readonly total: UsageTotals;
  /** The run itself first. */
  readonly runs: readonly RunUsage[];
  /** There are more than are listed: the total is of those that are. */
  readonly is_cut: boolean;
}

const SUMS = `coalesce(sum(u.calls) filter (where u.kind <> 'tool'), 0)::float8 as calls, coalesce(sum(u.calls) filter (where u.kind = 'tool'), 0)::float8 as tool_calls,
  coalesce(sum(u.input_tokens), 0)::float8 as input_tokens, coalesce(sum(u.output_tokens), 0)::float8 as output_tokens, coalesce(sum(u.cache_read_tokens), 0)::float8 as cache_read_tokens,
  coalesce(sum(u.cache_write_tokens), 0)::float8 as cache_write_tokens, coalesce(sum(u.cost_usd_micros), 0)::float8 as cost_usd_micros`;

/**
 * Events have no index by time: those of runs that were not over when the time began are read, run by run. Calls beside the
 * journal may be later than a run's end. Deleted runs left their days; a day counts when it begins within the time.
 */
const BETWEEN = `
with candidates as (
  select r.id from capstan.runs r where r.finished_at >= $1::timestamptz and r.created_at < $2::timestamptz and ($3::text is null or r.tenant = $3)
  union select r.id from capstan.runs r where r.state in ('queued', 'running') and r.state = 'running' and r.created_at < $2::timestamptz and ($3::text is null or r.tenant = $3)
  union select r.id from capstan.runs r where r.state = 'waiting' and r.created_at < $2::timestamptz and ($3::text is null or r.tenant = $3)
  union select l.run_id from capstan.usage_ledger l where l.at >= $1::timestamptz and l.at < $2::timestamptz and ($3::text is null or l.tenant = $3)
), used as (
  select c.tenant, c.agent, coalesce(c.model, '') as model, (c.at at time zone 'UTC')::date as day, c.kind, 1 as calls,
    c.input_tokens, c.output_tokens, c.cache_read_tokens, c.cache_write_tokens, c.cost_usd_micros
  from candidates r cross join lateral (select * from capstan.usage g where g.run_id = r.id and g.at >= $1::timestamptz and g.at < $2::timestamptz) c
  union all
  select d.tenant, d.agent, d.model, d.day, d.kind, d.calls, d.input_tokens, d.output_tokens, d.cache_read_tokens, d.cache_write_tokens, d.cost_usd_micros
  from capstan.usage_rollup d
  where d.day >= ($1::timestamptz at time zone 'UTC')::date and d.day::timestamp at time zone 'UTC' >= $1::timestamptz and d.day::timestamp at time zone 'UTC' < $2::timestamptz
    and ($3::text is null or d.tenant = $3)
)`;

/** Of a tree; more are not listed. */
const MOST_RUNS = 1_000;
const TREE = `
with recursive tree as (
  select r.id, r.parent_run_id, 0 as depth, r.agent, r.state from capstan.runs r where r.id = $1::uuid
  union all
  select r.id, r.parent_run_id, t.depth + 1, r.agent, r.state from tree t join capstan.runs r on r.parent_run_id = t.id
), listed as (select * from tree order by depth, id limit ${MOST_RUNS + 1})
select t.id as run_id, t.parent_run_id, t.depth, t.agent, t.state, ${SUMS}
from listed t left join lateral (select g.*, 1 as calls from capstan.usage g where g.run_id = t.id) u on true
group by t.id, t.parent_run_id, t.depth, t.agent, t.state order by t.depth, t.id`;

export class UsageClient {
  readonly #db: Tx;
  readonly #named: (text: string) => string;

  constructor(db: Tx, named: (text: string) => string) {
    this.#db = db;
    this.#named = named;
  }

  /** The dearest first, then those with most tokens; days in their order. At most 1,000. Throws ArgumentError. */
  async by({ by, since, until, tenant }: UsageFilter): Promise<UsageRow[]> {
    if (!usageGroups.includes(by)) throw new ArgumentError(`by is one of ${usageGroups.join(", ")}, not ${by as string}`);
    if (until !== undefined && until <= since) throw new ArgumentError("until must be later than since");
    const order = by === "day" ? "key" : "cost_usd_micros desc, input_tokens + output_tokens desc, calls desc, key";
    return await this.#query<UsageRow>(`${BETWEEN} select * from (select u.${by}::text as key, ${SUMS} from used u group by u.${by}) g order by ${order} limit 1000`, [
      since.toISOString(),
      until?.toISOString() ?? "infinity",
      tenant ?? null,
    ]);
  }

  /** A run and all that it has started. Throws UnknownRunError. */
  async ofTree(runId: string): Promise<TreeUsage> {
    const rows = await this.#query<RunUsage & { parent_run_id: string | null }>(TREE, [runId]);
    if (rows.length === 0) throw new UnknownRunError(`no run ${runId}`);
    const runs = rows.slice(0, MOST_RUNS).map(({ parent_run_id: parent, ...run }): RunUsage => ({ ...run, ...(parent === null ? {} : { parent_run_id: parent }) }));
    const sum = (field: keyof UsageTotals): number => runs.reduce((total, run) => total + run[field], 0);
    return {
      total: {
        calls: sum("calls"),
        tool_calls: sum("tool_calls"),
        input_tokens: sum("input_tokens"),
        output_tokens: sum("output_tokens"),
        cache_read_tokens: sum("cache_read_tokens"),
        cache_write_tokens: sum("cache_write_tokens"),
        cost_usd_micros: sum("cost_usd_micros"),
      },
      runs,
      is_cut: rows.length > MOST_RUNS,
    };
  }

  async #query<Row extends object>(text: string, values: readonly unknown[]): Promise<Row[]> {
    try {
      return await queryTx<Row & Record<string, unknown>>(this.#db, this.#named(text), values);
    } catch (error) {
      throw fromPostgres(error);
    }
  }
}
