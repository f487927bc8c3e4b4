/** Statements of the webhook sender. */

/** One receiver, however much is due for it, takes no more than so many sends of a worker at a time. */
const MAX_PER_WEBHOOK = 4;

/** Longer than a send may take: one whose sender has died is due again after this. */
const SEND_LEASE = "interval '60 seconds'";

/**
 * Takes what is due, the oldest first, at most MAX_PER_WEBHOOK of a webhook less those that this worker is sending ($2 and
 * $3, ids and counts). READ COMMITTED, SKIP LOCKED: one of several workers gets a delivery, and it is not due again before
 * its lease ends. Lock order: deliveries alone. No row: nothing is due.
 */
export const TAKE_DELIVERIES_SQL = `
with busy as (select * from unnest($2::uuid[], $3::int[]) as b(webhook_id, n)),
  places as (
    select d.id, row_number() over (partition by d.webhook_id order by d.next_at, d.id) + coalesce(b.n, 0) as place, d.next_at
    from capstan.webhooks w
    left join busy b on b.webhook_id = w.id
    cross join lateral (
      select d.id, d.webhook_id, d.next_at from capstan.webhook_deliveries d
      where d.webhook_id = w.id and d.next_at <= (select capstan.now()) order by d.next_at, d.id limit ${MAX_PER_WEBHOOK}
    ) d
    where w.disabled_at is null and coalesce(b.n, 0) < ${MAX_PER_WEBHOOK}
  ),
  taken as (
    select d.id from capstan.webhook_deliveries d
    where d.id in (select p.id from places p where p.place <= ${MAX_PER_WEBHOOK} order by p.next_at limit $1) and d.next_at <= (select capstan.now())
    for update skip locked
  ),
  leased as (
    update capstan.webhook_deliveries d set attempts = d.attempts + 1, next_at = (select capstan.now()) + ${SEND_LEASE}
    from taken t where d.id = t.id returning d.*
  )
select l.id, l.webhook_id, l.tenant, l.run_id, l.event, l.body, l.attempts, w.url, w.name,
  case when w.previous_until > capstan.now() then array[w.secret, w.previous_secret] else array[w.secret] end as secrets
from leased l join capstan.webhooks w on w.id = l.webhook_id`;

/** What is due for a webhook that is disabled or gone comes to nothing. */
export const DROP_DELIVERIES_SQL = `
update capstan.webhook_deliveries d set next_at = null, gave_up_at = capstan.now(), error = 'the webhook is disabled'
where d.id in (
  select d.id from capstan.webhook_deliveries d where d.next_at <= (select capstan.now())
    and not exists (select from capstan.webhooks w where w.id = d.webhook_id and w.disabled_at is null)
  order by d.next_at limit 500 for update skip locked)`;

export const UNTIL_NEXT_DELIVERY_SQL =
  "select (extract(epoch from min(d.next_at) - capstan.now()) * 1000)::float8 as in_ms from capstan.webhook_deliveries d where d.next_at is not null";

/** `attempts` as it was taken: a sender whose lease had ended says nothing about the next one's try, except that it arrived. */
export const DELIVERED_SQL = `
with settled as (
  update capstan.webhook_deliveries d set next_at = null, delivered_at = coalesce(d.delivered_at, capstan.now()), gave_up_at = null, status_code = $2, error = null where d.id = $1 returning d.webhook_id
)
update capstan.webhooks w set failures = 0 from settled s where w.id = s.webhook_id and w.failures > 0`;

export const FAILED_SQL = `
update capstan.webhook_deliveries d set next_at = capstan.now() + $4::float8 * interval '1 ms', status_code = $5, error = left($6, 1000)
where d.id = $1 and d.attempts = $2 and d.delivered_at is null and d.next_at is not null and $3::uuid = d.webhook_id`;

/** Its webhook is disabled once so many in a row came to nothing ($6), or at once when the receiver says that it is gone. */
export const GAVE_UP_SQL = `
with settled as (
  update capstan.webhook_deliveries d set next_at = null, gave_up_at = capstan.now(), status_code = $3, error = left($4, 1000)
  where d.id = $1 and d.attempts = $2 and d.delivered_at is null and d.next_at is not null returning d.webhook_id
)
update capstan.webhooks w set failures = least(w.failures + 1, 32000),
  disabled_at = case when w.disabled_at is null and (w.failures + 1 >= $6::int or $5::boolean) then capstan.now() else w.disabled_at end,
  disabled_reason = case when w.disabled_at is null and $5::boolean then 'the receiver says that it is gone (410)'
    when w.disabled_at is null and w.failures + 1 >= $6::int then format('%s deliveries in a row were given up', w.failures + 1) else w.disabled_reason end
from settled s where w.id = s.webhook_id returning w.disabled_at is not null as disabled`;
