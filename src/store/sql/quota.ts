/**
 * Statements of the quotas. Lock order: bucket, then slice; reservations and slots are each touched by their own call.
 * All run alone, under READ COMMITTED, so no lock outlives its statement. Windows are those of UTC by the database's clock.
 */

/**
 * Leases a part of a bucket to a worker: what is needed, or a slice when that is more, or what is left when that still
 * suffices. `leased` is null when the bucket has not got `need` left, or the worker was buried.
 *
 * A bucket's row is updated here and when parts come back, once per slice and not once per call. `last_lease` carries
 * the amount out of the conflict branch, where RETURNING knows the new row only.
 */
export const LEASE_SQL = `
with clock as materialized (
  select n.now, date_trunc($3, n.now at time zone 'UTC') at time zone 'UTC' as starts, (date_trunc($3, n.now at time zone 'UTC') + ('1 ' || $3)::interval) at time zone 'UTC' as ends
  from (select capstan.now() as now) n
), leased as (
  insert into capstan.quota_buckets as b (bucket, window_start, window_end, leased, last_lease)
  select $2, c.starts, c.ends, p.part, p.part from clock c cross join (select least(greatest($5::bigint, $6::bigint), $4::bigint) as part) p
  where $5::bigint <= $4::bigint and exists (select from capstan.workers w where w.id = $1::uuid and w.ended_at is null)
  on conflict (bucket, window_start) do update set
    last_lease = least(greatest($5::bigint, $6::bigint), $4::bigint - b.leased),
    leased = b.leased + least(greatest($5::bigint, $6::bigint), $4::bigint - b.leased)
    where b.leased + $5::bigint <= $4::bigint
  returning b.last_lease, b.window_start, b.window_end
), kept as (
  insert into capstan.quota_slices as s (worker_id, bucket, window_start, window_end, leased)
  select $1::uuid, $2, l.window_start, l.window_end, l.last_lease from leased l
  on conflict (worker_id, bucket, window_start) do update set leased = s.leased + excluded.leased
)
select l.last_lease::float8 as leased, c.starts as window_start, c.ends as window_end, (extract(epoch from c.ends - c.now) * 1000)::float8 as remaining_ms
from clock c left join leased l on true`;

/** Gives a part back that no call of the worker has claimed. Not to be repeated when its outcome is unknown. */
export const RETURN_SQL = `
with bucket as (
  update capstan.quota_buckets b set leased = b.leased - $4::bigint
  where b.bucket = $2 and b.window_start = $3
    and exists (select from capstan.quota_slices s join capstan.workers w on w.id = s.worker_id and w.ended_at is null where s.worker_id = $1::uuid and s.bucket = $2 and s.window_start = $3)
  returning b.bucket
)
update capstan.quota_slices s set leased = s.leased - $4::bigint from bucket
where s.worker_id = $1::uuid and s.bucket = $2 and s.window_start = $3`;

/** No row: the worker was buried, and what it had leased belongs to the buckets again. Safe to repeat. */
export const RESERVE_SQL = `
insert into capstan.quota_reservations (id, bucket, window_start, window_end, run_id, turn, attempt, worker_id, amount, reserved_at)
select $1::uuid, i.bucket, i.window_start, i.window_end, $2::uuid, $3::int, $4::smallint, $5::uuid, i.amount, capstan.now()
from unnest($6::text[], $7::timestamptz[], $8::timestamptz[], $9::bigint[]) as i(bucket, window_start, window_end, amount)
where exists (select from capstan.workers w where w.id = $5::uuid and w.ended_at is null)
on conflict (id, bucket) do update set amount = excluded.amount
returning id`;

/**
 * Takes a free slot number at random, so that workers seldom want the same one; the primary key decides if they do, and
 * the loser sees no slot though not all are held. Never more slots than the limit, also after it was lowered.
 */
export const TAKE_SLOT_SQL = `
with held as materialized (select count(*)::int as n from capstan.quota_slots where bucket = $1),
taken as (
  insert into capstan.quota_slots (bucket, slot, reservation_id, worker_id, taken_at)
  select $1, free.slot, $2::uuid, $3::uuid, capstan.now()
  from held cross join lateral (
    select k.slot from generate_series(1, least($4::int, held.n + 64)) as k(slot)
    where not exists (select from capstan.quota_slots s where s.bucket = $1 and s.slot = k.slot) order by random() limit 1
  ) free
  where held.n < $4::int and exists (select from capstan.workers w where w.id = $3::uuid and w.ended_at is null)
  on conflict do nothing returning slot
)
select (select slot from taken) as slot, (select n from held) as held`;

/** Settles a call and frees its slots. What the sweep settled before, for a worker that was taken for dead, stays as it is. */
export const SETTLE_SQL = `
with freed as (delete from capstan.quota_slots where reservation_id = $1::uuid)
update capstan.quota_reservations r set settled_at = capstan.now(), settled_amount = i.amount
from unnest($2::text[], $3::bigint[]) as i(bucket, amount)
where r.id = $1::uuid and r.bucket = i.bucket and r.settled_at is null`;

/** One sweeper at a time: two could wait for each other's buckets in a circle. Arbitrary and only ours ("quot" in ASCII). */
const SWEEP_LOCK = 0x71756f74;

/**
 * Settles what workers that are gone left open, at the reserved amount since the vendor may have billed it, and frees
 * their slots. What they had leased and not used goes back to the buckets; not in the first seconds, since a reservation
 * that was under way when its worker was buried may still arrive.
 */
export const SWEEP_QUOTAS_SQL = `
with clock as materialized (select capstan.now() as now, pg_try_advisory_xact_lock(${SWEEP_LOCK}) as mine),
gone as materialized (
  select h.worker_id from (
    select worker_id from capstan.quota_slices union select worker_id from capstan.quota_reservations where settled_at is null union select worker_id from capstan.quota_slots
  ) h cross join clock
  where clock.mine and not exists (select from capstan.workers w where w.id = h.worker_id and w.ended_at is null)
), settled as (
  update capstan.quota_reservations r set settled_at = clock.now, settled_amount = r.amount from clock
  where r.settled_at is null and r.worker_id in (select worker_id from gone) returning r.id
), freed as (
  delete from capstan.quota_slots s where s.worker_id in (select worker_id from gone) returning s.slot
), returned as (
  delete from capstan.quota_slices s using clock
  where s.worker_id in (select worker_id from gone) and not exists (select from capstan.workers w where w.id = s.worker_id and w.ended_at > clock.now - interval '5 s')
  returning s.bucket, s.window_start, s.leased - s.used - coalesce((
    select sum(coalesce(r.settled_amount, r.amount)) from capstan.quota_reservations r
    where r.worker_id = s.worker_id and r.bucket = s.bucket and r.window_start = s.window_start), 0) as unused
), given as (
  update capstan.quota_buckets b set leased = b.leased - u.unused
  from (select bucket, window_start, sum(unused) as unused from returned group by bucket, window_start) u
  where b.bucket = u.bucket and b.window_start = u.window_start
)
select (select count(distinct id)::int from settled) as settled, (select count(*)::int from freed) as freed`;

/** Settled calls become a sum in their worker's slice, and windows that are over are forgotten: nothing here grows with the number of turns. */
export const FOLD_QUOTAS_SQL = `
with clock as materialized (select capstan.now() as now, pg_try_advisory_xact_lock(${SWEEP_LOCK}) as mine),
done as (
  delete from capstan.quota_reservations r using clock where clock.mine and r.settled_at < clock.now - interval '10 s'
  returning r.worker_id, r.bucket, r.window_start, r.settled_amount
), summed as (
  update capstan.quota_slices s set used = s.used + d.amount
  from (select worker_id, bucket, window_start, sum(settled_amount) as amount from done group by worker_id, bucket, window_start) d
  where s.worker_id = d.worker_id and s.bucket = d.bucket and s.window_start = d.window_start
), over as (
  delete from capstan.quota_slices s using clock where clock.mine and s.window_end < clock.now - interval '1 minute' returning s.bucket
)
delete from capstan.quota_buckets b using clock where clock.mine and b.window_end < clock.now - interval '1 minute'`;

export const LIMITS_SQL = `select scope, value, kind, unit, "window", amount::float8 as amount from capstan.quota_limits`;

/** Tenants' buckets with what is taken of them now: leased amounts, and slots in use. */
export const TENANT_BUCKETS_SQL = `
select bucket, leased::float8 as taken from capstan.quota_buckets where bucket like $1 and window_end > capstan.now() and window_start <= capstan.now()
union all
select bucket, count(*)::float8 from capstan.quota_slots where bucket like $1 group by bucket`;
