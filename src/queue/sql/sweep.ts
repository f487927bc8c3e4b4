/**
 * A held run is always `running`: its claim says so.
 *
 * Buries workers whose heartbeat is stale and takes their runs from them. One statement: what is found is re-checked by
 * the UPDATE itself on the locked row (token and holder), so a run that moved on meanwhile is left alone.
 *
 * Also takes runs whose holder has ended for any other reason, or has no row: a claim that raced with a burial is found
 * in the next round. Lock order: workers, run row, wishes.
 */
export const SWEEP_SQL = `
with clock as materialized (select capstan.now() as now),
dead as (
  update capstan.workers w set ended_at = clock.now, end_reason = 'lost' from clock
  where w.ended_at is null and w.id <> $1 and w.heartbeat_at + w.lease_ms * interval '1 ms' < clock.now returning w.id
), orphans as (
  select r.id, r.worker_id, r.fencing_token from capstan.runs r
  where r.state = 'running' and r.worker_id is not null
    and (r.worker_id in (select id from dead) or not exists (select from capstan.workers w where w.id = r.worker_id and w.ended_at is null))
  order by r.id limit 1000
), taken as (
  update capstan.runs r set worker_id = null, fencing_token = r.fencing_token + 1, crash_count = r.crash_count + 1, taken_over = true, updated_at = clock.now
  from orphans o cross join clock
  where r.id = o.id and r.worker_id = o.worker_id and r.fencing_token = o.fencing_token and r.finished_at is null
  returning r.id, r.pool, r.priority, r.agent, r.tenant, clock.now
), wished as (
  insert into capstan.wishes as w (run_id, at, priority, ready, pool, agent, tenant)
  select t.id, t.now, t.priority, true, t.pool, t.agent, t.tenant from taken t
  on conflict (run_id) do update set at = least(w.at, excluded.at), ready = true
)
select (select count(*)::int from dead) as buried, (select coalesce(array_agg(id), '{}') from taken) as taken`;

/**
 * Runs that were parked because a worker's code did not fit, while some worker has their agent: it may be the old one
 * of a rolling deploy that parked them and the new one that fits. Whoever gets the job finds out; one that does not fit
 * writes nothing. A few at a time and any of them, so that runs that nobody fits cannot stand in others' way; inserted in
 * one order, so that two sweeps cannot wait for each other in a circle.
 */
export const UNPARK_SQL = `
insert into capstan.wishes as w (run_id, at, priority, ready, pool, agent, tenant)
select p.id, capstan.now(), p.priority, true, p.pool, p.agent, p.tenant from (
  select r.id, r.pool, r.priority, r.agent, r.tenant from capstan.runs r
  where r.state = 'waiting' and r.wait_reason = 'agent_missing' and r.worker_id is null and not r.paused and not exists (select from capstan.pauses p where p.value in ('*', r.tenant)) and r.updated_at < capstan.now() - $1::int * interval '1 ms'
    and exists (select from capstan.workers w where w.pool = r.pool and w.ended_at is null and w.busy < w.slots and r.agent = any(w.agents))
  order by random() limit 100
) p order by p.id
on conflict (run_id) do update set ready = true`;

/** Runs that a worker holds and has not written to for a while: it knows whether it is at work on them. */
export const HELD_HERE_SQL = `
select r.id, r.fencing_token from capstan.runs r
where r.pool = $2 and r.state = 'running' and r.worker_id = $1 and r.updated_at < capstan.now() - interval '5 s'`;

/** Queue pools of ended workers: their jobs stay locked for hours if nobody unlocks them. */
export const LOCKED_POOLS_SQL = `
select id, queue_pools from capstan.workers where ended_at is not null and queue_pools <> '{}' order by ended_at limit 100`;

/**
 * Pools that hold locks and that no worker names: theirs died in the moment between fetching its first jobs and noting
 * its pool. $1: milliseconds after which a living worker has noted its own.
 */
export const UNKNOWN_POOLS_SQL = `
select distinct j.locked_by from graphile_worker.jobs j
where j.locked_at < now() - $1::int * interval '1 ms' and j.task_identifier like 'capstan/%'
  and not exists (select from capstan.workers w where j.locked_by = any(w.queue_pools))`;

export const UNLOCKED_SQL = `update capstan.workers set queue_pools = '{}' where id = any($1::uuid[])`;

/**
 * Wishes again for runs that ought to have a job and have none: dispatched a while ago, not claimed, though a slot is
 * free and no job is waiting in the queue. A doubled job is harmless; a lost one would leave the run standing. Also for
 * parked runs past their deadline: the wish for it is spent when an earlier job comes for nothing. A job that has used up
 * graphile-worker's attempts waits for nothing. Under steady load some job of the agent always waits: after eight times as
 * long that is no reason any more.
 */
export const LOST_JOBS_SQL = `
with clock as materialized (select capstan.now() as now),
-- Each by an index of its own: what is only parked, and may be by the ten thousand, is not read. Said again below, on the locked row.
candidates as (
  select r.id from capstan.runs r where r.state in ('queued', 'running') and r.worker_id is null
  union all
  select r.id from capstan.runs r where r.state = 'waiting' and r.wake_at < (select c.now from clock c) - $1::int * interval '1 ms'
  union all
  select r.id from capstan.runs r where r.state = 'waiting' and r.inbox_pending > 0
  union all
  select r.id from capstan.runs r where r.state = 'waiting' and r.deadline < (select c.now from clock c)
  union all
  select r.id from capstan.runs r where r.finished_at is not null and r.inbox_pending > 0
),
lost as (
  select r.id, r.pool, r.priority, r.agent, r.tenant, r.updated_at from capstan.runs r cross join clock
  where r.id = any(array(select id from candidates))
    and r.worker_id is null and not r.paused and not exists (select from capstan.pauses p where p.value in ('*', r.tenant)) and r.updated_at < clock.now - $1::int * interval '1 ms'
    and (r.state in ('queued', 'running')
      or (r.state = 'waiting' and r.wait_reason in ('retry', 'quota', 'approval', 'children', 'signal', 'timer') and r.wake_at < clock.now - $1::int * interval '1 ms')
      or (r.state = 'waiting' and r.wait_reason = 'input' and r.inbox_pending > 0)
      or (r.state = 'waiting' and r.wait_reason in ('approval', 'children', 'signal', 'timer') and r.inbox_pending > 0
        and exists (select from capstan.inbox i where i.run_id = r.id and i.applied_seq is null and i.kind in ('wait', 'stop')))
      or (r.state = 'waiting' and r.wait_reason in ('compaction', 'context_exhausted') and r.inbox_pending > 0
        and exists (select from capstan.inbox i where i.run_id = r.id and i.applied_seq is null and i.kind in ('compact', 'compaction')))
      or (r.state = 'waiting' and r.deadline < clock.now)
      or (r.finished_at is not null and r.inbox_pending > 0
        and exists (select from capstan.inbox i where i.run_id = r.id and i.applied_seq is null and i.kind in ('compact', 'compaction'))))
    and not exists (select from capstan.wishes w where w.run_id = r.id)
    and exists (select from capstan.workers w where w.pool = r.pool and w.ended_at is null and w.busy < w.slots and r.agent = any(w.agents))
  order by r.id limit 500 for no key update of r skip locked
)
insert into capstan.wishes as w (run_id, at, priority, ready, pool, agent, tenant)
select l.id, clock.now, l.priority, true, l.pool, l.agent, l.tenant from lost l cross join clock
where l.updated_at < clock.now - 8 * $1::int * interval '1 ms' or not exists (select from graphile_worker.jobs j where j.task_identifier = 'capstan/' || l.pool || '/' || l.agent and j.locked_at is null and j.run_at <= now() and j.attempts < j.max_attempts)
on conflict (run_id) do nothing
returning run_id`;

/** The first in line of concurrency keys with a free place that no end gave on. */
export const LINES_SQL = "select capstan.look_along_lines() as started";
