/**
 * Turns wishes into jobs: taken and added in one statement, so that neither exists without the other.
 *
 * Tenants take turns: the walk begins behind the tenant that was served last ($4), and each that it meets gives its first
 * wish before any gives a second; within a tenant the priority decides, lower comes sooner, then who has waited longest.
 * What is read does not grow with what waits: one probe of the index finds the next tenant, at most $3 of them are
 * visited, and of each only the first few wishes are read. Only what is taken is locked; SKIP LOCKED: relays of several
 * workers share the work, and twice what is wanted is read so that one leaves something for another.
 *
 * (`offset 0` keeps the planner from writing the probes out once for each use of their result.)
 *
 * Jobs carry no priority: in the queue, that of one tenant would overtake another tenant's for ever.
 *
 * Lock order: wishes alone; the run's row is not touched, so a relay never waits for a turn. add_jobs notifies once per
 * statement, off the turns' own commits. Gives the runs in the order of their turns, with `more` when something was left
 * unread. A row without a run: the walk has met only tenants with nothing for these agents, and is to go on behind
 * `tenant`, unless it has come round.
 */
export const DISPATCH_SQL = `
with recursive walk as (
  select $4::text as tenant, false as wrapped, 0 as step
  union all
  select n.tenant, n.tenant <= $4, k.step + 1
  from walk k cross join lateral (select coalesce(
    (select w.tenant from capstan.wishes w where w.ready and w.pool = $1 and w.tenant > k.tenant order by w.tenant limit 1),
    case when not k.wrapped then (select w.tenant from capstan.wishes w where w.ready and w.pool = $1 and w.tenant <= $4 order by w.tenant limit 1) end) as tenant offset 0) n
  where k.step < $3::int and n.tenant is not null and not (k.wrapped and n.tenant > $4)
), tenants as materialized (
  select k.tenant, k.step from walk k where k.step > 0 and not exists (select from capstan.pauses p where p.value in ('*', k.tenant))
), share as materialized (
  select 2 * $3::int / greatest(count(*), 1) + 1 as n from tenants
), ranked as materialized (
  select f.run_id, f.place, t.step, t.tenant
  from tenants t cross join lateral (
    select l.run_id, row_number() over (order by l.priority, l.at) as place from (
      select w.run_id, w.priority, w.at from capstan.wishes w
      where w.ready and w.pool = $1 and w.tenant = t.tenant and w.agent = any($2::text[])
      order by w.priority, w.at limit (select n from share)) l) f
  order by f.place, t.step limit 2 * $3::int
), picked as (
  select w.run_id, w.agent, w.tenant, r.place, r.step from ranked r join capstan.wishes w on w.run_id = r.run_id and w.ready
  order by r.place, r.step limit $3::int for update of w skip locked
), taken as (
  delete from capstan.wishes w using picked p where w.run_id = p.run_id returning w.run_id, w.agent, w.tenant, p.place, p.step
), added as (
  select count(*) from graphile_worker.add_jobs((
    select array_agg(row('capstan/' || $1 || '/' || t.agent, json_build_object('runId', t.run_id), null, null, null, null, null, null)::graphile_worker.job_spec order by t.place, t.step)
    from taken t))
  where exists (select from taken)
)
(select t.run_id, capstan.now()::text as at, t.tenant,
  exists (select from ranked r where r.place >= (select n from share)) or exists (select from walk k where k.step = $3::int) as more
from taken t cross join (select count(*) from added) a order by t.place, t.step)
union all
select null, null, k.tenant, not k.wrapped from walk k where k.step = $3::int and k.step > 0 and not exists (select from taken)`;

/**
 * Of runs that were dispatched at some time: those that nobody has touched since, so that their jobs still wait. Read by
 * key, without a lock; a run that was touched by something else (an input, a pause) is left out too, which admits one job more.
 */
export const STILL_WAITING_SQL = `
select r.id as run_id from unnest($1::uuid[], $2::text[]) as d (run_id, at) join capstan.runs r on r.id = d.run_id
where r.worker_id is null and r.updated_at <= d.at::timestamptz`;

/**
 * Timers and retries whose time has come. Gives how many, whether a new run stands before its concurrency key (ADMIT_SQL), and
 * when the next is due. The clock is asked once, in a subquery: compared with a function that may differ from row to row,
 * every timer that is set would be read each time.
 */
export const PROMOTE_SQL = `
with due as (
  select w.run_id, exists (select from capstan.runs r where r.id = w.run_id and r.concurrency_key is not null and r.state = 'queued') as keyed
  from capstan.wishes w where not w.ready and w.at <= (select capstan.now()) order by w.at limit 1000 for update of w skip locked
), promoted as (
  update capstan.wishes w set ready = true from due where w.run_id = due.run_id and not due.keyed returning w.pool
)
select (select count(*)::int from promoted) as promoted, exists (select from due where keyed) as keyed,
  (extract(epoch from (select min(at) from capstan.wishes where not ready and at > (select capstan.now())) - capstan.now()) * 1000)::float8 as next_in_ms`;

export const ADMIT_SQL = "select capstan.admit_keyed() as looked_at";
