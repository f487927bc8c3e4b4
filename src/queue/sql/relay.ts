/**
 * Turns wishes into jobs: taken and added in one statement, so that neither exists without the other.
 *
 * SKIP LOCKED: relays of several workers share the work. Lock order: wishes alone; the run's row is not touched, so a
 * relay never waits for a turn. add_jobs notifies once per statement, off the turns' own commits. `priority` sorts as
 * graphile-worker's does: lower comes sooner.
 */
export const DISPATCH_SQL = `
with picked as (
  select w.run_id, w.agent, w.priority from capstan.wishes w
  where w.ready and w.pool = $1 and w.agent = any($2::text[])
    and not exists (select from capstan.pauses p where p.value in ('*', w.tenant))
  order by w.priority, w.at limit $3 for update skip locked
), taken as (
  delete from capstan.wishes w using picked p where w.run_id = p.run_id returning w.run_id, w.agent, w.priority
), added as (
  select count(*) from graphile_worker.add_jobs((
    select array_agg(row('capstan/' || $1 || '/' || t.agent, json_build_object('runId', t.run_id), null, null, null, null, t.priority, null)::graphile_worker.job_spec)
    from taken t))
  where exists (select from taken)
)
select taken.run_id, capstan.now()::text as at from taken cross join (select count(*) from added) a`;

/**
 * Of runs that were dispatched at some time: those that nobody has touched since, so that their jobs still wait. Read by
 * key, without a lock; a run that was touched by something else (an input, a pause) is left out too, which admits one job more.
 */
export const STILL_WAITING_SQL = `
select r.id as run_id from unnest($1::uuid[], $2::text[]) as d (run_id, at) join capstan.runs r on r.id = d.run_id
where r.worker_id is null and r.updated_at <= d.at::timestamptz`;

/**
 * Timers and retries whose time has come. Gives how many, and when the next is due. The clock is asked once, in a subquery:
 * compared with a function that may differ from row to row, every timer that is set would be read each time.
 */
export const PROMOTE_SQL = `
with due as (
  select run_id from capstan.wishes where not ready and at <= (select capstan.now()) order by at limit 1000 for update skip locked
), promoted as (
  update capstan.wishes w set ready = true from due where w.run_id = due.run_id returning w.pool
)
select (select count(*)::int from promoted) as promoted,
  (extract(epoch from (select min(at) from capstan.wishes where not ready and at > (select capstan.now())) - capstan.now()) * 1000)::float8 as next_in_ms`;
