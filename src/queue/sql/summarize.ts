import { MAX_QUOTA_WAIT_HARD_MS, MAX_QUOTA_WAIT_MS } from "../../domain/compaction/patience.ts";

/** One job for a task at a time, and a way to find it. */
const jobKey = (id: string): string => `'capstan/summarize/' || ${id}`;

/**
 * Turns tasks of compactions into jobs, tenant by tenant: each tenant's next task stands before any tenant's second, and
 * what a tenant has under way counts, so that two hundred waiting tasks of one never delay another's beyond its share.
 * Of each tenant only the next few are read, in the order of the index (a recursive step finds the next tenant). Their
 * rows are locked by id; the condition is written so that no planner takes the index of all that waits for it instead.
 *
 * Tenants whose quota is spent are passed over; `*` is all of them. What has waited for its quota for longer than a run
 * may wait is dispatched all the same: the call is refused, and the run is told.
 */
export const DISPATCH_TASKS_SQL = `
with recursive clock as materialized (select capstan.now() as now),
tenants as (
  (select t.tenant from capstan.compaction_tasks t where t.state = 'requested' and t.dispatched_at is null order by t.tenant limit 1)
  union all
  select (select t.tenant from capstan.compaction_tasks t where t.state = 'requested' and t.dispatched_at is null and t.tenant > n.tenant order by t.tenant limit 1)
  from tenants n where n.tenant is not null
), busy as (
  select t.tenant, count(*) as n from capstan.compaction_tasks t where t.state in ('requested', 'summarizing') and t.dispatched_at is not null group by t.tenant
), ranked as materialized (
  select t.id, t.due_at, t.place + coalesce(b.n, 0) as rank
  from tenants n
  cross join lateral (select n.tenant = any($2::text[]) or '*' = any($2::text[]) as spent) quota
  cross join lateral (
    select w.id, w.due_at, row_number() over (order by w.due_at) as place from (
      select t.id, t.due_at from capstan.compaction_tasks t
      where t.state = 'requested' and t.dispatched_at is null and t.tenant = n.tenant and t.agent = any($1::text[])
        and t.due_at <= (select now from clock) - case when quota.spent then ${MAX_QUOTA_WAIT_HARD_MS} else 0 end * interval '1 ms'
        and (not quota.spent or t.request ->> 'hard' = 'true' or t.due_at <= (select now from clock) - ${MAX_QUOTA_WAIT_MS} * interval '1 ms'
          or exists (select from capstan.runs r where r.id = t.run_id and r.wait_reason = 'compaction'))
      order by t.due_at limit $3) w) t
  left join busy b on b.tenant = n.tenant
  -- A tenant that stands still makes no model calls at all.
  where n.tenant is not null and not exists (select from capstan.pauses p where p.value in ('*', n.tenant))
  order by rank, t.due_at limit 2 * $3
), picked as (
  select t.id, t.agent from capstan.compaction_tasks t
  where t.id = any(array(select id from ranked)) and case when t.dispatched_at is null then t.state end = 'requested'
  order by (select r.rank from ranked r where r.id = t.id), t.due_at limit $3 for update skip locked
), taken as (
  update capstan.compaction_tasks t set dispatched_at = clock.now from picked p cross join clock where t.id = p.id returning t.id, p.agent
), added as (
  select count(*) from graphile_worker.add_jobs((
    select array_agg(row('capstan/summarize/' || t.agent, json_build_object('taskId', t.id), null, null, null, ${jobKey("t.id")}, null, null)::graphile_worker.job_spec order by r.rank, r.due_at)
    from taken t join ranked r on r.id = t.id))
  where exists (select from taken)
)
select taken.id from taken cross join (select count(*) from added) a`;

/** Says why nobody takes up what waits of tenants whose quota is spent. A claim takes it back. */
export const WAIT_FOR_QUOTA_SQL = `
update capstan.compaction_tasks t set wait_reason = 'quota', updated_at = capstan.now()
where t.id in (
  select c.id from capstan.compaction_tasks c
  where c.state = 'requested' and c.dispatched_at is null and c.wait_reason is null and (c.tenant = any($1::text[]) or '*' = any($1::text[])) limit 1000)
and t.state = 'requested'`;

/** Those of $1 whose job has not begun yet. */
export const STILL_DISPATCHED_SQL = `
select id from capstan.compaction_tasks where id = any($1::uuid[]) and state = 'requested' and dispatched_at is not null`;

/**
 * Tasks whose claimant is gone: wanted again at once, unless they took their workers along too often. Those that were
 * dispatched more than $2 milliseconds ago and have no job any more are wanted again too. One that only waits for a slot
 * has its job: taken for lost, the jobs of a tenant with slow summaries would pile up.
 */
export const FREE_TASKS_SQL = `
with freed as (
  select t.id, t.fencing_token, t.deaths + 1 as deaths from capstan.compaction_tasks t
  where t.state in ('requested', 'summarizing') and t.dispatched_at is not null
    and t.state = 'summarizing' and not exists (select from capstan.workers w where w.id = t.worker_id and w.ended_at is null)
  order by t.id limit 100 for update skip locked
), again as (
  update capstan.compaction_tasks t set state = 'requested', worker_id = null, dispatched_at = null, deaths = f.deaths, fencing_token = t.fencing_token + 1, due_at = capstan.now(), updated_at = capstan.now()
  from freed f where t.id = f.id and f.deaths < $1 returning t.id
), lost as (
  update capstan.compaction_tasks t set dispatched_at = null
  where t.id in (
    select c.id from capstan.compaction_tasks c
    where c.state in ('requested', 'summarizing') and c.state = 'requested' and c.dispatched_at < capstan.now() - $2::int * interval '1 ms'
      and not exists (select from graphile_worker.jobs j where j.key = ${jobKey("c.id")} and j.attempts < j.max_attempts)
    order by c.id limit 100 for update skip locked)
)
select f.id, f.fencing_token, f.deaths >= $1 as given_up from freed f`;

/** Tasks of runs that ended before anybody made a summary: nobody wants them any more. */
export const DROP_TASKS_SQL = `
update capstan.compaction_tasks t set state = 'superseded', worker_id = null, updated_at = capstan.now()
where t.id in (
  select c.id from capstan.compaction_tasks c join capstan.runs r on r.id = c.run_id
  where c.state in ('requested', 'ready') and r.finished_at is not null order by c.id limit 100)
and t.state in ('requested', 'ready')`;
