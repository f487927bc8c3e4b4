/** Agents as operators see them: what is promoted, who runs it, what its runs do. Wire names. */
import type pg from "pg";
import type { JsonObject } from "../domain/json.ts";

export interface AgentSummary {
  readonly name: string;
  readonly promoted_sha: string;
  readonly model: string;
  readonly tools: number;
  readonly versions: number;
  readonly retired: boolean;
  readonly updated_at: Date;
  /** Workers alive that have it, those that only make summaries apart. */
  readonly workers: number;
  /** Runs that have not ended, of one tenant if it was asked for. */
  readonly open_runs: number;
}

export interface AgentDetail extends AgentSummary {
  readonly definition: JsonObject;
  readonly promotions: readonly { readonly sha: string; readonly at: string; readonly actor: string | null }[];
  readonly runs_by_state: { readonly [state: string]: number };
}

const LIVE = "w.ended_at is null and w.heartbeat_at + w.lease_ms * interval '1 ms' > capstan.now()";

const SUMMARY = `a.name, a.promoted_sha, d.definition ->> 'model' as model, jsonb_array_length(coalesce(d.definition -> 'tools', '[]')) as tools,
  (select count(*)::int from capstan.agent_definitions o where o.name = a.name) as versions, a.retired_at is not null as retired, a.updated_at,
  (select count(*)::int from capstan.workers w where ${LIVE} and w.pool <> 'summarize' and a.name = any(w.agents)) as workers`;

export async function listAgents(db: Pick<pg.Pool, "query">, named: (text: string) => string, { tenant }: { readonly tenant?: string } = {}): Promise<AgentSummary[]> {
  const { rows } = await db.query<AgentSummary>(
    named(`with open as (
        select r.agent, count(*)::int as n from capstan.runs r where r.state in ('queued', 'running', 'waiting') and ($1::text is null or r.tenant = $1) group by r.agent
      )
      select ${SUMMARY}, coalesce(open.n, 0) as open_runs
      from capstan.agents a join capstan.agent_definitions d on d.sha = a.promoted_sha left join open on open.agent = a.name order by a.name`),
    [tenant ?? null],
  );
  return rows;
}

export async function agentDetail(db: Pick<pg.Pool, "query">, named: (text: string) => string, name: string): Promise<AgentDetail | undefined> {
  const { rows } = await db.query<AgentDetail>(
    named(`with states as (
        select r.state, count(*)::int as n from capstan.runs r where r.agent = $1 group by r.state
      )
      select ${SUMMARY}, d.definition,
        (select coalesce(sum(n), 0)::int from states where state in ('queued', 'running', 'waiting')) as open_runs,
        (select coalesce(jsonb_object_agg(state, n), '{}') from states) as runs_by_state,
        (select coalesce(jsonb_agg(jsonb_build_object('sha', p.sha, 'at', p.at, 'actor', p.actor) order by p.id desc), '[]')
          from (select * from capstan.agent_promotions where name = $1 order by id desc limit 20) p) as promotions
      from capstan.agents a join capstan.agent_definitions d on d.sha = a.promoted_sha where a.name = $1`),
    [name],
  );
  return rows[0];
}
