-- How many runs may be queued, and how many of a concurrency key may go at once (docs/quotas.md). SQLSTATEs: KC019 the queue
-- is full; KC020 the key is held by another run.

-- Refuses a run whose tenant, agent or installation has as many queued runs (never begun) as a limit of kind `run` allows.
-- Counted by index and no further than the limit. No row is updated and no lock taken, which would put enqueues of a tenant
-- one behind another until their callers commit: what other transactions have not committed yet is not seen, so that a limit
-- may be passed by as many runs as are enqueued at the same moment.
CREATE FUNCTION capstan.check_queue(tenant text, agent text) RETURNS void LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_variable
declare
  v_limit capstan.quota_limits;
  v_queued bigint;
begin
  for v_limit in
    -- A limit by name stands in place of that for each.
    select distinct on (l.scope) l.* from capstan.quota_limits l
    where l.kind = 'run' and l.unit = 'queued'
      and (l.scope = 'overall' or (l.scope = 'tenant' and l.value in ('*', check_queue.tenant)) or (l.scope = 'agent' and l.value in ('*', check_queue.agent)))
    order by l.scope, l.value = '*'
  loop
    -- Three statements, so that each has the index it needs.
    if v_limit.scope = 'tenant' then
      select count(*) into v_queued from (select from capstan.runs r where r.state = 'queued' and r.tenant = check_queue.tenant limit v_limit.amount) q;
    elsif v_limit.scope = 'agent' then
      select count(*) into v_queued from (select from capstan.runs r where r.state = 'queued' and r.agent = check_queue.agent limit v_limit.amount) q;
    else
      select count(*) into v_queued from (select from capstan.runs r where r.state = 'queued' limit v_limit.amount) q;
    end if;
    if v_queued >= v_limit.amount then
      raise exception '% queued runs % are allowed, and as many wait', v_limit.amount, case v_limit.scope when 'overall' then 'in all' else 'of ' || v_limit.scope || ' ' || case v_limit.scope when 'tenant' then tenant else agent end end
        using errcode = 'KC019', hint = 'Enqueue again when some of them have begun, or raise the limit: capstan quotas set.',
          -- Nobody can foretell when a run begins: a time after which it is worth another try.
          detail = jsonb_build_object('scope', v_limit.scope, 'value', case v_limit.scope when 'tenant' then tenant when 'agent' then agent else '*' end,
            'limit', v_limit.amount, 'queued', v_queued, 'retry_after_s', 5)::text;
    end if;
  end loop;
end $$;
--> statement-breakpoint
-- Concurrency keys. Runs of a tenant with the same stored key (`<agent>/<key>`, or `*/<key>` for all agents) go `limit` at a
-- time. A run holds its key from the moment it is let go until it has ended, also while it is parked or paused. One that has
-- to wait has a wish that is not ready: with a time at the door (it has come, or its run_at has yet to come), or with the
-- time below in the line. Each end of a holder lets the first in line go, in its own transaction; workers let in who stands at
-- the door (capstan.admit_keyed), and the first in line where an end could not see it.
--
-- Who is let go is decided under a transaction-scoped advisory lock of the key. An enqueue that has to wait takes no lock, so
-- that a caller's long transaction does not hold up the ends of other runs. Lock order: runs rows, then the key, then wishes.
CREATE FUNCTION capstan.in_line() RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ select timestamptz '9998-12-31 00:00:00+00' $$;
--> statement-breakpoint
CREATE FUNCTION capstan.key_lock(tenant text, concurrency_key text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  select hashtextextended('capstan key ' || length(tenant) || ' ' || tenant || concurrency_key, 0)
$$;
--> statement-breakpoint
-- Runs that hold the key, oldest first, `most` of them at most.
CREATE FUNCTION capstan.key_holders(tenant text, concurrency_key text, most int) RETURNS SETOF uuid LANGUAGE sql VOLATILE AS $$
  select r.id from capstan.runs r
  where r.tenant = key_holders.tenant and r.concurrency_key = key_holders.concurrency_key and r.finished_at is null
    and not (r.state = 'queued' and exists (select from capstan.wishes w where w.run_id = r.id and not w.ready))
  order by r.id limit most
$$;
--> statement-breakpoint
-- The first in the line of a key: the run that was enqueued first.
CREATE FUNCTION capstan.first_in_line(tenant text, concurrency_key text) RETURNS uuid LANGUAGE sql VOLATILE AS $$
  select r.id from capstan.runs r
  where r.tenant = first_in_line.tenant and r.concurrency_key = first_in_line.concurrency_key and r.finished_at is null and r.state = 'queued'
    and exists (select from capstan.wishes w where w.run_id = r.id and not w.ready and w.at = capstan.in_line())
  order by r.id limit 1
$$;
--> statement-breakpoint
CREATE FUNCTION capstan.let_go(run_id uuid, at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
declare v_pool text;
begin
  update capstan.wishes w set at = let_go.at, ready = true where w.run_id = let_go.run_id and not w.ready returning w.pool into v_pool;
  if found then perform capstan.notify_wish(v_pool); end if;
end $$;
--> statement-breakpoint
-- A new run with a key gets its wish: at once when there is a place, else at the door.
CREATE FUNCTION capstan.enter_key(run capstan.runs, on_conflict text, at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
declare
  v_id uuid;
  v_holders uuid[];
  v_others int;
begin
  if on_conflict = 'queue' then
    select count(*) into v_others from (
      select from capstan.runs r where r.tenant = run.tenant and r.concurrency_key = run.concurrency_key and r.finished_at is null and r.id <> run.id limit run.concurrency_limit) o;
    -- With a snapshot that is older than the lock nobody can say who holds the key.
    if run.run_at > at or v_others >= run.concurrency_limit or current_setting('transaction_isolation') <> 'read committed'
      or not pg_try_advisory_xact_lock(capstan.key_lock(run.tenant, run.concurrency_key)) then
      insert into capstan.wishes (run_id, at, priority, ready, pool, agent, tenant)
        values (run.id, greatest(run.run_at, enter_key.at), run.priority, false, run.pool, run.agent, run.tenant);
      return;
    end if;
    select count(*) into v_others from (
      select from capstan.runs r where r.tenant = run.tenant and r.concurrency_key = run.concurrency_key and r.finished_at is null and r.id <> run.id limit run.concurrency_limit) o;
    insert into capstan.wishes (run_id, at, priority, ready, pool, agent, tenant)
      values (run.id, enter_key.at, run.priority, v_others < run.concurrency_limit, run.pool, run.agent, run.tenant);
    if v_others < run.concurrency_limit then perform capstan.notify_wish(run.pool); end if;
    return;
  end if;
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'on_conflict % needs a READ COMMITTED transaction: with an older snapshot nobody can say who holds the key', on_conflict using errcode = 'KC006';
  end if;
  if run.run_at > at then
    raise exception 'on_conflict % and a run_at exclude each other: what holds the key then is not known now', on_conflict using errcode = 'KC006', hint = 'Use on_conflict ''queue'', or a schedule.';
  end if;
  -- The run waits for nobody to see: it stands at the door while others are counted.
  insert into capstan.wishes (run_id, at, priority, ready, pool, agent, tenant) values (run.id, enter_key.at, run.priority, false, run.pool, run.agent, run.tenant);
  if on_conflict = 'replace' then
    -- The rows before the key, as an end takes them.
    select coalesce(array_agg(h.id order by h.id), '{}') into v_holders from (
      select r.id from capstan.runs r
      where r.id in (select capstan.key_holders(run.tenant, run.concurrency_key, 10000)) and r.finished_at is null order by r.id for no key update) h;
    perform set_config('capstan_key.replacing', run.id::text, true);
    perform pg_advisory_xact_lock(capstan.key_lock(run.tenant, run.concurrency_key));
    foreach v_id in array v_holders[1:cardinality(v_holders) - run.concurrency_limit + 1] loop
      perform capstan.cancel_run(v_id, 'replaced by run ' || run.id);
    end loop;
    perform set_config('capstan_key.replacing', '', true);
  end if;
  perform pg_advisory_xact_lock(capstan.key_lock(run.tenant, run.concurrency_key));
  select array_agg(h) into v_holders from capstan.key_holders(run.tenant, run.concurrency_key, run.concurrency_limit) h;
  if coalesce(cardinality(v_holders), 0) < run.concurrency_limit then
    perform capstan.let_go(run.id, at);
  elsif on_conflict = 'refuse' then
    raise exception 'concurrency key % is held by run %', substr(run.concurrency_key, strpos(run.concurrency_key, '/') + 1), v_holders[1]
      using errcode = 'KC020', detail = jsonb_build_object('run_id', v_holders[1], 'limit', run.concurrency_limit)::text,
        hint = 'Wait until it has ended, cancel it, or enqueue with on_conflict ''queue'' or ''replace''.';
  end if;
end $$;
--> statement-breakpoint
-- The end of a run with a key: its place goes to the first in line. Called with the ended run's row in hand.
CREATE FUNCTION capstan.leave_key(ended capstan.runs, at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
declare
  v_next uuid;
  v_limit int;
begin
  perform pg_advisory_xact_lock(capstan.key_lock(ended.tenant, ended.concurrency_key));
  -- One that was cancelled before it was let go leaves no place; nobody had claimed it, so its only token is the cancel's.
  if ended.state = 'cancelled' and ended.fencing_token <= 1 and exists (select from capstan.wishes w where w.run_id = ended.id and not w.ready) then return; end if;
  -- Its place is another's already.
  if coalesce(current_setting('capstan_key.replacing', true), '') <> '' then return; end if;
  v_next := capstan.first_in_line(ended.tenant, ended.concurrency_key);
  if v_next is null then return; end if;
  -- A limit that was lowered since: the place is not given on. Counted over the oldest, which are the ones that were let go.
  select r.concurrency_limit into v_limit from capstan.runs r where r.id = v_next;
  if (select count(*) from (
      select r.id, r.state from capstan.runs r
      where r.tenant = ended.tenant and r.concurrency_key = ended.concurrency_key and r.finished_at is null order by r.id limit v_limit + 32) o
    where not (o.state = 'queued' and exists (select from capstan.wishes w where w.run_id = o.id and not w.ready))) >= v_limit then return; end if;
  perform capstan.let_go(v_next, at);
end $$;
--> statement-breakpoint
-- One round of a worker: who stands at the door and whose time has come goes in, or joins the line. Gives how many were
-- looked at. A key that somebody else has in hand is left for the next round.
CREATE FUNCTION capstan.admit_keyed(most int default 100) RETURNS int LANGUAGE plpgsql AS $$
declare
  v_now timestamptz := capstan.now();
  v_run capstan.runs;
  v_at timestamptz;
  v_count int := 0;
begin
  for v_run in
    select r.* from (select w.run_id, w.at from capstan.wishes w where not w.ready and w.at <= v_now
        and exists (select from capstan.runs k where k.id = w.run_id and k.concurrency_key is not null and k.state = 'queued')
      order by w.at, w.run_id limit most for update skip locked) d
    join capstan.runs r on r.id = d.run_id order by d.at, r.id
  loop
    v_count := v_count + 1;
    if not pg_try_advisory_xact_lock(capstan.key_lock(v_run.tenant, v_run.concurrency_key)) then
      v_at := v_now + interval '200 ms';
    elsif capstan.first_in_line(v_run.tenant, v_run.concurrency_key) is not null
      or (select count(*) from capstan.key_holders(v_run.tenant, v_run.concurrency_key, v_run.concurrency_limit)) >= v_run.concurrency_limit then
      v_at := capstan.in_line();
    else
      perform capstan.let_go(v_run.id, v_now);
      continue;
    end if;
    update capstan.wishes w set at = v_at where w.run_id = v_run.id and not w.ready;
  end loop;
  return v_count;
end $$;
--> statement-breakpoint
-- The first in line of keys that have a free place all the same: the end that freed it was undone after another had passed
-- the line by, or was made with an old snapshot, or the limit was raised. A sample of those in line, begun anywhere.
CREATE FUNCTION capstan.look_along_lines(most int default 200) RETURNS int LANGUAGE plpgsql AS $$
declare
  v_line record;
  v_next uuid;
  v_limit int;
  v_count int := 0;
begin
  for v_line in
    select distinct r.tenant, r.concurrency_key from (
      select w.run_id from capstan.wishes w where not w.ready and w.at = capstan.in_line()
      offset (select floor(random() * least(10000, greatest(count(*) - most, 0)))::int from (select from capstan.wishes w where not w.ready and w.at = capstan.in_line() limit 10000 + most) l) limit most) s
    join capstan.runs r on r.id = s.run_id where r.concurrency_key is not null
  loop
    if not pg_try_advisory_xact_lock(capstan.key_lock(v_line.tenant, v_line.concurrency_key)) then continue; end if;
    loop
      v_next := capstan.first_in_line(v_line.tenant, v_line.concurrency_key);
      exit when v_next is null;
      select r.concurrency_limit into v_limit from capstan.runs r where r.id = v_next;
      exit when (select count(*) from capstan.key_holders(v_line.tenant, v_line.concurrency_key, v_limit)) >= v_limit;
      perform capstan.let_go(v_next, capstan.now());
      v_count := v_count + 1;
    end loop;
  end loop;
  return v_count;
end $$;
--> statement-breakpoint
-- What an operator allows; workers read it at every round of their sweep, enqueues at once. False when it was so already.
CREATE FUNCTION capstan.set_quota(scope text, value text, kind text, unit text, "window" text, amount bigint, actor text default null) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare v_before bigint;
begin
  select q.amount into v_before from capstan.quota_limits q
    where q.scope = set_quota.scope and q.value = set_quota.value and q.kind = set_quota.kind and q.unit = set_quota.unit and q."window" = set_quota."window" for update;
  if v_before = set_quota.amount then return false; end if;
  insert into capstan.quota_limits (scope, value, kind, unit, "window", amount, updated_at)
    values (set_quota.scope, set_quota.value, set_quota.kind, set_quota.unit, set_quota."window", set_quota.amount, capstan.now())
    on conflict (scope, value, kind, unit, "window") do update set amount = excluded.amount, updated_at = excluded.updated_at;
  insert into capstan.audit_log (tenant, actor, action, target, detail)
    values (case set_quota.scope when 'tenant' then set_quota.value else '*' end, coalesce(set_quota.actor, session_user), 'quota.set',
      concat_ws('/', set_quota.kind, set_quota.unit, set_quota."window", set_quota.scope, set_quota.value), jsonb_strip_nulls(jsonb_build_object('amount', set_quota.amount, 'before', v_before)));
  return true;
end $$;
--> statement-breakpoint
-- False when there was no such limit.
CREATE FUNCTION capstan.remove_quota(scope text, value text, kind text, unit text, "window" text, actor text default null) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare v_before bigint;
begin
  delete from capstan.quota_limits q
    where q.scope = remove_quota.scope and q.value = remove_quota.value and q.kind = remove_quota.kind and q.unit = remove_quota.unit and q."window" = remove_quota."window"
    returning q.amount into v_before;
  if not found then return false; end if;
  insert into capstan.audit_log (tenant, actor, action, target, detail)
    values (case remove_quota.scope when 'tenant' then remove_quota.value else '*' end, coalesce(remove_quota.actor, session_user), 'quota.remove',
      concat_ws('/', remove_quota.kind, remove_quota.unit, remove_quota."window", remove_quota.scope, remove_quota.value), jsonb_build_object('before', v_before));
  return true;
end $$;
--> statement-breakpoint
-- What buckets hold now. Of a window: what calls have taken or reserved, without what workers have leased and not used.
-- `resets_at` is null for slots. Queued runs are counted as the enqueue counts them, tenants and agents with the most first.
CREATE FUNCTION capstan.quota_use() RETURNS TABLE (bucket text, used bigint, resets_at timestamptz) LANGUAGE sql STABLE AS $$
  select b.bucket, b.leased - coalesce((
      select sum(s.leased - s.used - coalesce((select sum(coalesce(r.settled_amount, r.amount)) from capstan.quota_reservations r
        where r.worker_id = s.worker_id and r.bucket = s.bucket and r.window_start = s.window_start), 0))
      from capstan.quota_slices s where s.bucket = b.bucket and s.window_start = b.window_start), 0)::bigint, b.window_end
  from capstan.quota_buckets b where b.window_start <= capstan.now() and b.window_end > capstan.now()
  union all
  select s.bucket, count(*), null from capstan.quota_slots s group by s.bucket
  union all
  (select 'run/queued/none/tenant/' || r.tenant, count(*), null from capstan.runs r where r.state = 'queued' and exists (select from capstan.quota_limits l where l.kind = 'run' and l.scope = 'tenant')
    group by r.tenant order by count(*) desc limit 100)
  union all
  (select 'run/queued/none/agent/' || r.agent, count(*), null from capstan.runs r where r.state = 'queued' and exists (select from capstan.quota_limits l where l.kind = 'run' and l.scope = 'agent')
    group by r.agent order by count(*) desc limit 100)
  union all
  select 'run/queued/none/overall/*', c.n, null from capstan.quota_limits l cross join lateral (select count(*) as n from capstan.runs r where r.state = 'queued') c
  where l.kind = 'run' and l.scope = 'overall'
$$;
--> statement-breakpoint
-- Why a run does not go on that nobody has to answer: the quota that is used up, or the concurrency key and who holds it.
CREATE FUNCTION capstan.waits_for(run capstan.runs) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
declare
  v_detail jsonb;
begin
  if run.state = 'waiting' and run.wait_reason = 'quota' then
    select e.payload::jsonb -> 'detail' into v_detail from capstan.events e where e.run_id = run.id and e.type = 'run.parked' order by e.seq desc limit 1;
    return jsonb_strip_nulls(jsonb_build_object('kind', 'quota', 'bucket', v_detail -> 'bucket', 'needed', v_detail -> 'needed', 'limit', v_detail -> 'limit', 'until', run.wake_at));
  end if;
  if run.state = 'queued' and run.concurrency_key is not null and exists (select from capstan.wishes w where w.run_id = run.id and not w.ready) then
    return jsonb_strip_nulls(jsonb_build_object('kind', 'concurrency_key', 'key', substr(run.concurrency_key, strpos(run.concurrency_key, '/') + 1),
      'scope', case when run.concurrency_key like '*/%' then 'all' else 'agent' end, 'limit', run.concurrency_limit,
      'held_by', (select array_agg(h) from capstan.key_holders(run.tenant, run.concurrency_key, least(run.concurrency_limit, 10)) h), 'until', case when run.run_at > capstan.now() then run.run_at end));
  end if;
  return null;
end $$;
