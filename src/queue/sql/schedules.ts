/** Statements of the schedules loop. `expected_at` is text with microseconds: a JavaScript date would lose three digits, and then match nothing. */
const ISO = `'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'`;

/** Left alone by this worker for a while: tenants and names in two arrays. */
const notResting = (tenants: number): string =>
  `not exists (select from unnest($${tenants}::text[], $${tenants + 1}::text[]) as r(tenant, name) where r.tenant = s.tenant and r.name = s.name)`;

/**
 * The oldest due ones that nobody is just writing to. READ COMMITTED; the locks end with this statement: they only skip
 * what another worker or an operator has in hand. No row: nothing is due.
 */
export const DUE_SCHEDULES_SQL = `
select s.tenant, s.name, s.cron, s.timezone, s.catch_up, to_char(s.next_at at time zone 'UTC', ${ISO}) as expected_at, capstan.now() as now
from capstan.schedules s
where not s.paused and s.next_at is not null and s.next_at <= (select capstan.now()) and ${notResting(2)}
order by s.next_at limit $1 for update skip locked`;

export const UNTIL_NEXT_SCHEDULE_SQL = `
select (extract(epoch from min(s.next_at) - capstan.now()) * 1000)::float8 as in_ms
from capstan.schedules s where not s.paused and s.next_at is not null and ${notResting(1)}`;

/** Its own transaction. Null: see the function. */
export const TICK_SCHEDULE_SQL = `
select capstan.tick_schedule(tenant => $1, name => $2, cron => $3, timezone => $4, expected_at => $5::timestamptz, ticks => $6::timestamptz[], next_at => $7::timestamptz) as ticked`;

export const NOTE_SCHEDULE_ERROR_SQL = `
update capstan.schedules s set last_error = jsonb_build_object('at', to_char(capstan.now() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), 'code', $4::text, 'message', left($5::text, 4000))
where s.tenant = $1 and s.name = $2 and s.next_at = $3::timestamptz`;
