-- The SQL interface (docs/sql.md). Every function joins the caller's transaction. SQLSTATEs of our own begin with KC:
-- KC001 idempotency key reused with another input; KC002 no such run; KC003 run has ended; KC004 inbox full;
-- KC005 payload too large; KC006 bad argument.
CREATE FUNCTION capstan.notify_wish(pool text) RETURNS void LANGUAGE plpgsql AS $$
begin
  -- A hint only: without it relays find the wish at their next poll. A commit that holds a NOTIFY cannot share its
  -- flush with others (docs/performance.md), so heavy enqueuers may `set capstan_notify.enabled = off`.
  if coalesce(nullif(current_setting('capstan_notify.enabled', true), ''), 'on') <> 'off' then
    perform pg_notify('capstan_wish', pool);
  end if;
end $$;
--> statement-breakpoint
-- Makes sure that the run has a wish that is due at `due`, or sooner if it had one. Lock order: run row, then wish.
CREATE FUNCTION capstan.wish_for(run capstan.runs, due timestamptz) RETURNS void LANGUAGE plpgsql AS $$
begin
  insert into capstan.wishes as w (run_id, at, priority, ready, pool, agent, tenant)
    values (run.id, due, run.priority, due <= capstan.now(), run.pool, run.agent, run.tenant)
    on conflict (run_id) do update set at = least(w.at, excluded.at), ready = w.ready or excluded.ready;
  if due <= capstan.now() then perform capstan.notify_wish(run.pool); end if;
end $$;
--> statement-breakpoint
-- Settings of one run: what its caller may say of compaction and of its budget. The same fields, ranges and words as the
-- schemas have (src/domain/compaction/policy.ts, src/domain/budget.ts); a test compares the two.
CREATE FUNCTION capstan.compaction_fields() RETURNS TABLE (field text, kind text, min bigint, max bigint) LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  values ('enabled', 'boolean', null::bigint, null::bigint), ('autocompact_at_pct', 'number', 50, 95), ('at_tokens', 'number', 1, null), ('after_bytes', 'number', 1, null),
    ('keep_first', 'boolean', null, null), ('keep_last_n', 'number', 0, null), ('target_percentage', 'number', 10, 50), ('model', 'text', null, null),
    ('summarizer', 'text', null, null), ('instruction', 'text', null, null), ('max_tokens', 'number', 1, null), ('prefetch_at_pct', 'number', 1, 94)
$$;
--> statement-breakpoint
CREATE FUNCTION capstan.budget_fields() RETURNS TABLE (field text, kind text, min bigint, max bigint) LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  values ('turns', 'number', 1::bigint, 1000000::bigint), ('tokens', 'number', 1, null), ('cost_usd_micros', 'number', 1, null), ('wall_ms', 'number', 1, null)
$$;
--> statement-breakpoint
-- What is wrong with a value, or null. Numbers go up to what JavaScript can count.
CREATE FUNCTION capstan.setting_problem(value jsonb, kind text, min bigint, max bigint) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  select case when case kind
      when 'boolean' then jsonb_typeof(value) = 'boolean'
      when 'text' then jsonb_typeof(value) = 'string' and value <> '""'
      else case when jsonb_typeof(value) = 'number' then value::numeric % 1 = 0 and value::numeric between min and coalesce(max, 9007199254740991) else false end end
    then null else 'must be ' || case kind when 'boolean' then 'true or false' when 'text' then 'a text that is not empty'
      else 'a whole number ' || case when max is null then 'of at least ' || min else 'from ' || min || ' to ' || max end end
    || ', not ' || case jsonb_typeof(value) when 'string' then to_json(left(value #>> '{}', 40))::text when 'array' then 'a list' when 'object' then 'a object' else value::text end end
$$;
--> statement-breakpoint
-- The first field that is wrong, with its range; null when all are right, also together with the policy that `given` stands over.
CREATE FUNCTION capstan.compaction_problem(given jsonb, base jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
declare
  v_merged jsonb := coalesce(base, '{}') || given;
  v_problem text;
  v_pct bigint;
  v_bytes bigint;
  v_tokens bigint;
begin
  if given is null or given = '{}' then return null; end if;
  if jsonb_typeof(given) <> 'object' then return 'compaction is not an object'; end if;
  select 'compaction.' || k.key || ' ' || coalesce(capstan.setting_problem(k.value, f.kind, f.min, f.max),
      'is not a field of the policy: there are ' || (select string_agg(field, ', ') from capstan.compaction_fields()))
    into v_problem from jsonb_each(given) k left join capstan.compaction_fields() f on f.field = k.key
    where f.field is null or capstan.setting_problem(k.value, f.kind, f.min, f.max) is not null limit 1;
  if v_problem is not null then return v_problem; end if;
  v_pct := coalesce((v_merged ->> 'autocompact_at_pct')::bigint, 80);
  if (v_merged ->> 'prefetch_at_pct')::bigint >= v_pct then
    return format('compaction.prefetch_at_pct must be below autocompact_at_pct, from 1 to %s, not %s', v_pct - 1, v_merged ->> 'prefetch_at_pct');
  end if;
  v_bytes := (v_merged ->> 'after_bytes')::bigint;
  v_tokens := coalesce((v_merged ->> 'max_tokens')::bigint, 1024);
  if not v_merged ? 'summarizer' and v_bytes <= v_tokens * 4::numeric then
    return format('compaction.after_bytes must be a whole number above %s (max_tokens %s x 4), not %s: the summary alone could be as large; a good value is %s or more',
      v_tokens * 4::numeric, v_tokens, v_bytes, v_tokens * 16::numeric);
  end if;
  return null;
end $$;
--> statement-breakpoint
-- The same of a budget. `base`: the definition's, whose hard limits are the most that a run may have.
CREATE FUNCTION capstan.budget_problem(given jsonb, base jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
declare
  v_level text;
  v_problem text;
begin
  if given is null then return null; end if;
  if jsonb_typeof(given) <> 'object' then return 'budget is not an object'; end if;
  select 'budget.' || k.key || ' is not a field of a budget: there are soft, hard, wrap_up' into v_problem
    from jsonb_object_keys(given) k(key) where k.key not in ('soft', 'hard', 'wrap_up') limit 1;
  if v_problem is not null then return v_problem; end if;
  if given ? 'wrap_up' and capstan.setting_problem(given -> 'wrap_up', 'boolean', null, null) is not null then
    return 'budget.wrap_up ' || capstan.setting_problem(given -> 'wrap_up', 'boolean', null, null);
  end if;
  foreach v_level in array array['soft', 'hard'] loop
    continue when not given ? v_level;
    if jsonb_typeof(given -> v_level) <> 'object' then return format('budget.%s is not an object', v_level); end if;
    select format('budget.%s.%s ', v_level, k.key) || coalesce(capstan.setting_problem(k.value, f.kind, f.min, f.max),
        'is not a limit: there are ' || (select string_agg(field, ', ') from capstan.budget_fields()))
      into v_problem from jsonb_each(given -> v_level) k left join capstan.budget_fields() f on f.field = k.key
      where f.field is null or capstan.setting_problem(k.value, f.kind, f.min, f.max) is not null limit 1;
    if v_problem is not null then return v_problem; end if;
  end loop;
  select case
      when (given #>> array['soft', f.field])::bigint >= (given #>> array['hard', f.field])::bigint
        then format('budget.soft.%s must be below budget.hard.%s, which is %s, not %s', f.field, f.field, given #>> array['hard', f.field], given #>> array['soft', f.field])
      else format('budget.hard.%s must be at most %s, which is what the definition allows, not %s', f.field, base #>> array['hard', f.field], given #>> array['hard', f.field]) end
    into v_problem from capstan.budget_fields() f
    where (given #>> array['soft', f.field])::bigint >= (given #>> array['hard', f.field])::bigint
      or (given #>> array['hard', f.field])::bigint > (base #>> array['hard', f.field])::bigint limit 1;
  return v_problem;
end $$;
--> statement-breakpoint
-- What is in force, with defaults: resolvePolicy(mergeCompaction(...)) and mergeBudget(...) of the domain.
CREATE FUNCTION capstan.resolved_compaction(base jsonb, own jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  select '{"enabled": false, "autocompact_at_pct": 80, "keep_first": true, "keep_last_n": 4, "target_percentage": 10}'::jsonb
    || case when m.merged -> 'enabled' = 'false' then m.merged - 'after_bytes' else m.merged end
  from (select coalesce(base, '{}') || coalesce(own, '{}') as merged) m
$$;
--> statement-breakpoint
CREATE FUNCTION capstan.resolved_budget(base jsonb, own jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  select nullif(jsonb_strip_nulls(jsonb_build_object(
    'soft', nullif(coalesce(base -> 'soft', '{}') || coalesce(own -> 'soft', '{}'), '{}'),
    'hard', (select jsonb_object_agg(f.field, least((base #>> array['hard', f.field])::bigint, (own #>> array['hard', f.field])::bigint)) from capstan.budget_fields() f
      where coalesce(base #> array['hard', f.field], own #> array['hard', f.field]) is not null),
    'wrap_up', coalesce(own -> 'wrap_up', base -> 'wrap_up'))), '{}')
$$;
--> statement-breakpoint
-- `over` in place of `base`, limit by limit: a fork's settings over those of the run that it begins with.
CREATE FUNCTION capstan.merged_budget(base jsonb, over jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  select nullif(jsonb_strip_nulls(jsonb_build_object(
    'soft', nullif(coalesce(base -> 'soft', '{}') || coalesce(over -> 'soft', '{}'), '{}'),
    'hard', nullif(coalesce(base -> 'hard', '{}') || coalesce(over -> 'hard', '{}'), '{}'),
    'wrap_up', coalesce(over -> 'wrap_up', base -> 'wrap_up'))), '{}')
$$;
--> statement-breakpoint
-- Makes a run. For our own functions: `created` is merged into the payload of run.created (its origin, the schedule's tick...).
CREATE FUNCTION capstan.create_run(
  agent text,
  input jsonb,
  tenant text default 'default',
  idempotency_key text default null,
  priority int default 0,
  run_at timestamptz default null,
  deadline timestamptz default null,
  interactive boolean default null,
  metadata jsonb default null,
  labels text[] default null,
  subject text default null,
  pool text default 'turn',
  definition_sha text default null,
  concurrency_key text default null,
  traceparent text default null,
  tracestate text default null,
  actor text default null,
  run_id uuid default null,
  created jsonb default null,
  concurrency_limit int default null,
  concurrency_scope text default null,
  on_conflict text default null,
  compaction jsonb default null,
  budget jsonb default null
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare
  v_id uuid := coalesce(create_run.run_id, capstan.uuid_v7());
  v_now timestamptz := capstan.now();
  v_digest bytea := sha256(convert_to(create_run.input::text, 'UTF8'));
  v_sha text := create_run.definition_sha;
  v_retired boolean;
  v_definition jsonb;
  v_interactive boolean;
  v_compaction jsonb := nullif(create_run.compaction, '{}');
  v_budget jsonb := nullif(create_run.budget, '{}');
  v_problem text;
  v_payload jsonb;
  v_size int;
  v_found capstan.runs;
  v_run capstan.runs;
begin
  if create_run.agent is null or create_run.agent !~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$' then
    raise exception 'agent % is not a name: use 1 to 64 of A-Z a-z 0-9 _ . - and begin with a letter or digit', coalesce(create_run.agent, 'null') using errcode = 'KC006';
  end if;
  if create_run.input is null then raise exception 'input is null; give a JSON value (''null''::jsonb for none)' using errcode = 'KC006'; end if;
  if create_run.pool = 'summarize' then
    raise exception 'pool summarize makes summaries and takes no runs' using errcode = 'KC006', hint = 'Leave pool out, or name one that workers of yours serve.';
  end if;
  if create_run.priority not between -1000 and 1000 then raise exception 'priority % is outside -1000..1000', create_run.priority using errcode = 'KC006'; end if;
  if create_run.tenant is null or length(create_run.tenant) not between 1 and 200 then raise exception 'tenant must have 1 to 200 characters' using errcode = 'KC006'; end if;
  if not capstan.reaches(create_run.tenant) then
    raise exception 'this login may not enqueue for tenant %', create_run.tenant using errcode = 'KC021', hint = 'It is pinned to ' || array_to_string(capstan.pinned_tenants(), ', ') || '.';
  end if;
  -- An id that is taken would tell of another tenant's run.
  if create_run.run_id is not null and capstan.pinned_tenants() is not null then raise exception 'run_id is not for logins that are pinned to a tenant' using errcode = 'KC006'; end if;
  if length(create_run.idempotency_key) not between 1 and 500 then raise exception 'idempotency_key must have 1 to 500 characters' using errcode = 'KC006'; end if;
  if create_run.concurrency_key is null and coalesce(create_run.concurrency_limit::text, create_run.concurrency_scope, create_run.on_conflict) is not null then
    raise exception 'concurrency_limit, concurrency_scope and on_conflict belong to a concurrency_key' using errcode = 'KC006';
  end if;
  if length(create_run.concurrency_key) not between 1 and 200 then raise exception 'concurrency_key must have 1 to 200 characters' using errcode = 'KC006'; end if;
  if create_run.concurrency_limit not between 1 and 10000 then raise exception 'concurrency_limit % is outside 1..10000', create_run.concurrency_limit using errcode = 'KC006'; end if;
  if create_run.concurrency_scope not in ('agent', 'all') then raise exception 'concurrency_scope % is not known: agent or all', create_run.concurrency_scope using errcode = 'KC006'; end if;
  if create_run.on_conflict not in ('queue', 'replace', 'refuse') then raise exception 'on_conflict % is not known: queue, replace or refuse', create_run.on_conflict using errcode = 'KC006'; end if;
  -- An enqueue that is repeated still finds the run that it made before.
  if exists (select from capstan.quota_limits l where l.kind = 'run')
    and not exists (select from capstan.runs r where r.tenant = create_run.tenant and r.idempotency_key = create_run.idempotency_key) then
    perform capstan.check_queue(create_run.tenant, create_run.agent);
  end if;
  if v_sha is null then
    select a.promoted_sha, a.retired_at is not null into v_sha, v_retired from capstan.agents a where a.name = create_run.agent;
    -- An enqueue that is repeated still finds the run that it made before.
    if v_retired and not exists (select from capstan.runs r where r.tenant = create_run.tenant and r.idempotency_key = create_run.idempotency_key) then
      raise exception 'agent % is retired and no run is started by its name; bring it back with: capstan agents unretire %', create_run.agent, create_run.agent using errcode = 'KC006';
    end if;
  end if;
  if v_sha is not null then
    select d.definition into v_definition from capstan.agent_definitions d where d.sha = v_sha and d.name = create_run.agent;
    if not found then raise exception 'agent % has no definition %', create_run.agent, v_sha using errcode = 'KC006'; end if;
  end if;
  v_interactive := coalesce(create_run.interactive, (v_definition ->> 'interactive')::boolean, false);
  v_problem := coalesce(capstan.compaction_problem(v_compaction, v_definition -> 'compaction'), capstan.budget_problem(v_budget, v_definition -> 'budget'));
  if v_problem is not null then raise exception '%', v_problem using errcode = 'KC006'; end if;
  v_payload := jsonb_strip_nulls(jsonb_build_object('interactive', case when v_interactive then true end, 'compaction', v_compaction, 'budget', v_budget))
    || jsonb_build_object('origin', 'api', 'agent', create_run.agent, 'definition_sha', v_sha, 'input', create_run.input) || coalesce(create_run.created, '{}');
  v_size := octet_length(v_payload::text);
  if v_size > coalesce((v_definition #>> '{limits,inline_payload_bytes}')::int, 1048576) then
    raise exception 'input of % bytes is over the inline limit of % bytes; send large content as a file part that names a blob, or raise limits.inline_payload_bytes (up to 16 MiB) of agent %',
      v_size, coalesce((v_definition #>> '{limits,inline_payload_bytes}')::int, 1048576), create_run.agent using errcode = 'KC005';
  end if;
  insert into capstan.runs (id, created_at, updated_at, tenant, origin, subject, agent, interactive, pool, priority, concurrency_key, concurrency_limit, labels, metadata,
      deadline, run_at, traceparent, tracestate, idempotency_key, input_digest, definition_sha, policy, overrides, next_seq, journal_bytes, root_run_id)
    values (v_id, v_now, v_now, create_run.tenant, v_payload ->> 'origin', create_run.subject, create_run.agent, v_interactive, create_run.pool, create_run.priority,
      case create_run.concurrency_scope when 'all' then '*' else create_run.agent end || '/' || create_run.concurrency_key,
      case when create_run.concurrency_key is not null then coalesce(create_run.concurrency_limit, 1) end, create_run.labels, create_run.metadata,
      coalesce(create_run.deadline, v_now + (v_definition #>> '{limits,deadline_ms}')::bigint * interval '1 ms'),
      create_run.run_at, create_run.traceparent, create_run.tracestate, create_run.idempotency_key, v_digest, v_sha, v_compaction,
      case when v_budget is not null then jsonb_build_object('budget', v_budget) end, 2, v_size, v_id)
    on conflict (tenant, idempotency_key) where idempotency_key is not null do nothing
    returning * into v_run;
  if v_run.id is null then
    select * into v_found from capstan.runs r where r.tenant = create_run.tenant and r.idempotency_key = create_run.idempotency_key;
    if v_found.id is null then
      -- REPEATABLE READ: the run that has the key was committed after this transaction began.
      raise exception 'another transaction has just used idempotency key %', create_run.idempotency_key using errcode = '40001', hint = 'Begin the transaction again.';
    end if;
    -- The digest is over jsonb's text, in which 1 and 1.0 differ though they are equal: compare the values before refusing.
    if v_found.agent = create_run.agent and (v_found.input_digest = v_digest
        or exists (select from capstan.events e where e.run_id = v_found.id and e.seq = 1 and (e.payload -> 'input')::jsonb = create_run.input)) then
      return v_found.id;
    end if;
    raise exception 'idempotency key % of tenant % belongs to run % with another %', create_run.idempotency_key, create_run.tenant, v_found.id,
      case when v_found.agent = create_run.agent then 'input' else 'agent' end
      using errcode = 'KC001', detail = v_found.id::text, hint = 'Use a new key for new input, or send the same input again to get the same run.';
  end if;
  insert into capstan.events (run_id, at, append_id, seq, turn, fencing_token, view_epoch, size, version, attempt, type, actor, payload)
    values (v_id, v_now, (random() * 2147483647)::int, 1, 0, 0, 0, v_size, 1, 0, 'run.created', create_run.actor, v_payload);
  if v_run.concurrency_key is null then perform capstan.wish_for(v_run, coalesce(create_run.run_at, v_now));
  else perform capstan.enter_key(v_run, coalesce(create_run.on_conflict, 'queue'), v_now); end if;
  return v_id;
end $$;
--> statement-breakpoint
-- The one way in for applications.
CREATE FUNCTION capstan.enqueue_run(
  agent text,
  input jsonb,
  tenant text default 'default',
  idempotency_key text default null,
  priority int default 0,
  run_at timestamptz default null,
  deadline timestamptz default null,
  interactive boolean default null,
  metadata jsonb default null,
  labels text[] default null,
  subject text default null,
  pool text default 'turn',
  definition_sha text default null,
  concurrency_key text default null,
  traceparent text default null,
  tracestate text default null,
  actor text default null,
  run_id uuid default null,
  concurrency_limit int default null,
  concurrency_scope text default null,
  on_conflict text default null,
  compaction jsonb default null,
  budget jsonb default null
) RETURNS uuid LANGUAGE sql AS $$
  select capstan.create_run(enqueue_run.agent, enqueue_run.input, enqueue_run.tenant, enqueue_run.idempotency_key, enqueue_run.priority, enqueue_run.run_at,
    enqueue_run.deadline, enqueue_run.interactive, enqueue_run.metadata, enqueue_run.labels, enqueue_run.subject, enqueue_run.pool,
    enqueue_run.definition_sha, enqueue_run.concurrency_key, enqueue_run.traceparent, enqueue_run.tracestate, enqueue_run.actor, enqueue_run.run_id,
    concurrency_limit => enqueue_run.concurrency_limit, concurrency_scope => enqueue_run.concurrency_scope, on_conflict => enqueue_run.on_conflict,
    compaction => enqueue_run.compaction, budget => enqueue_run.budget)
$$;
--> statement-breakpoint
-- Puts something into a run's inbox: applied at the next boundary, exactly once. The counter on the run row is what
-- serialises this with the statement that ends the run: whichever comes second sees the other.
CREATE FUNCTION capstan.send(
  run_id uuid,
  payload jsonb,
  kind text default 'input',
  dedupe_key text default null,
  actor text default null,
  traceparent text default null
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare
  v_id uuid;
  v_run capstan.runs;
begin
  if send.kind is distinct from 'input' then raise exception 'kind % is not known: send takes ''input''', coalesce(send.kind, 'null') using errcode = 'KC006'; end if;
  if send.payload is null then raise exception 'payload is null' using errcode = 'KC006'; end if;
  if length(send.dedupe_key) not between 1 and 500 then raise exception 'dedupe_key must have 1 to 500 characters' using errcode = 'KC006'; end if;
  if octet_length(send.payload::text) > 1048576 then
    raise exception 'input of % bytes is over the inline limit of 1048576 bytes', octet_length(send.payload::text) using errcode = 'KC005';
  end if;
  select * into v_run from capstan.runs r where r.id = send.run_id and capstan.reaches(r.tenant) for no key update;
  if not found then raise exception 'no run %', send.run_id using errcode = 'KC002'; end if;
  if send.dedupe_key is not null then
    select i.id into v_id from capstan.inbox i where i.run_id = send.run_id and i.dedupe_key = send.dedupe_key;
    if found then return v_id; end if;
  end if;
  if v_run.finished_at is not null then
    raise exception 'run % has ended (%)', send.run_id, v_run.state using errcode = 'KC003', hint = 'Start a new run.';
  end if;
  if v_run.inbox_pending >= 16 and (select count(*) from capstan.inbox i where i.run_id = send.run_id and i.kind = 'input' and i.applied_seq is null) >= 16 then
    raise exception 'run % has 16 messages waiting', send.run_id using errcode = 'KC004', hint = 'Wait until the run has taken some of them.';
  end if;
  v_id := capstan.uuid_v7();
  insert into capstan.inbox (id, run_id, at, kind, payload, dedupe_key, actor, traceparent)
    values (v_id, send.run_id, capstan.now(), send.kind, send.payload, send.dedupe_key, send.actor, send.traceparent);
  update capstan.runs set inbox_pending = inbox_pending + 1, updated_at = capstan.now() where id = send.run_id;
  if v_run.state = 'waiting' and v_run.wait_reason = 'input' then perform capstan.wish_for(v_run, capstan.now()); end if;
  return v_id;
end $$;
--> statement-breakpoint
-- Ends a run and all its descendants at once, from anywhere: raises the fencing token, so that the old holder's next
-- append is refused, and writes the last event. Idempotent: false when the run had ended already.
CREATE FUNCTION capstan.cancel_run(run_id uuid, reason text default null, actor text default null) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare
  v_now timestamptz := capstan.now();
  v_payload jsonb := jsonb_strip_nulls(jsonb_build_object('reason', cancel_run.reason));
  v_ended boolean := false;
  v_run capstan.runs;
begin
  perform from capstan.runs r where r.id = cancel_run.run_id and capstan.reaches(r.tenant);
  if not found then raise exception 'no run %', cancel_run.run_id using errcode = 'KC002'; end if;
  -- From above to below, so that two cancels in one tree cannot wait for each other in a circle: the end of a run is told
  -- to the run that started it, whose row is therefore taken before its own.
  perform from capstan.runs p where p.id = (select r.parent_run_id from capstan.runs r where r.id = cancel_run.run_id) for no key update;
  for v_run in
    with recursive tree as (
      select r.id from capstan.runs r where r.id = cancel_run.run_id
      union
      select c.id from capstan.runs c join tree t on c.parent_run_id = t.id
    )
    select r.* from capstan.runs r where r.id in (select id from tree) and r.finished_at is null order by r.depth, r.id for no key update
  loop
    update capstan.runs r set state = 'cancelled', wait_reason = null, wake_at = null, finished_at = v_now, updated_at = v_now, worker_id = null,
        cancel_requested_at = v_now, fencing_token = r.fencing_token + 1, next_seq = r.next_seq + 1,
        journal_bytes = r.journal_bytes + octet_length(v_payload::text), error_code = 'RUN_CANCELLED'
      where r.id = v_run.id and r.finished_at is null;
    -- The end of its parent, a moment ago in this loop, has ended it already.
    if not found then continue; end if;
    insert into capstan.events (run_id, at, append_id, seq, turn, fencing_token, view_epoch, size, version, attempt, type, actor, payload)
      values (v_run.id, v_now, (random() * 2147483647)::int, v_run.next_seq, v_run.turn, v_run.fencing_token + 1, v_run.view_epoch,
        octet_length(v_payload::text), 1, 0, 'run.cancelled', cancel_run.actor, v_payload);
    delete from capstan.wishes w where w.run_id = v_run.id;
    if v_run.id = cancel_run.run_id then
      v_ended := true;
      insert into capstan.audit_log (tenant, actor, action, target) values (v_run.tenant, coalesce(cancel_run.actor, session_user), 'run.cancel', v_run.id::text);
    end if;
  end loop;
  return v_ended;
end $$;
--> statement-breakpoint
CREATE FUNCTION capstan.run_status(run_id uuid) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
declare v_run capstan.runs; v_last jsonb; v_definition jsonb; v_budget jsonb;
begin
  select * into v_run from capstan.runs r where r.id = run_status.run_id and capstan.reaches(r.tenant);
  if not found then raise exception 'no run %', run_status.run_id using errcode = 'KC002'; end if;
  if v_run.finished_at is not null then
    -- Not simply the last: a compaction may have come behind it.
    select e.payload::jsonb into v_last from capstan.events e
      where e.run_id = run_status.run_id and e.type in ('run.completed', 'run.failed', 'run.cancelled') order by e.seq desc limit 1;
  end if;
  select d.definition into v_definition from capstan.agent_definitions d where d.sha = v_run.definition_sha;
  v_budget := capstan.resolved_budget(v_definition -> 'budget', v_run.overrides -> 'budget');
  return jsonb_strip_nulls(jsonb_build_object('run_id', v_run.id, 'agent', v_run.agent, 'tenant', v_run.tenant, 'state', v_run.state,
    'wait_reason', v_run.wait_reason, 'wake_at', v_run.wake_at, 'waits_for', capstan.waits_for(v_run), 'paused', v_run.paused, 'turn', v_run.turn, 'last_seq', v_run.next_seq - 1,
    'created_at', v_run.created_at, 'updated_at', v_run.updated_at, 'finished_at', v_run.finished_at, 'error', v_last -> 'error',
    'usage', jsonb_build_object('input_tokens', v_run.input_tokens, 'output_tokens', v_run.output_tokens, 'cache_read_tokens', v_run.cache_read_tokens,
      'cache_write_tokens', v_run.cache_write_tokens, 'cost_usd_micros', v_run.cost_usd_micros),
    'compaction', capstan.resolved_compaction(v_definition -> 'compaction', v_run.policy), 'budget', v_budget,
    'budget_level', case when v_budget is not null then v_run.budget_level end))
    || case when v_last ? 'output' then jsonb_build_object('output', v_last -> 'output') else '{}' end;
end $$;
--> statement-breakpoint
CREATE FUNCTION capstan.refuse_rewrite() RETURNS trigger LANGUAGE plpgsql AS $$
begin
  if coalesce(current_setting('capstan_retention.running', true), '') = 'on' then
    return case when tg_op = 'DELETE' then old else new end;
  end if;
  raise exception 'the journal is append-only: % of % refused', tg_op, tg_table_name using errcode = 'insufficient_privilege',
    hint = 'Events are removed by retention alone.';
end $$;
--> statement-breakpoint
CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON capstan.events FOR EACH ROW EXECUTE FUNCTION capstan.refuse_rewrite();
--> statement-breakpoint
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON capstan.events FOR EACH STATEMENT EXECUTE FUNCTION capstan.refuse_rewrite();
--> statement-breakpoint
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON capstan.events_default FOR EACH STATEMENT EXECUTE FUNCTION capstan.refuse_rewrite();
--> statement-breakpoint
-- Usage per call: read from the events that record the calls, and from the ledger for calls that no event tells of.
CREATE VIEW capstan.usage AS
  select e.run_id, r.tenant, r.agent, coalesce(e.payload ->> 'model', q.payload ->> 'model') as model, 'turn' as kind, e.turn, e.attempt, e.at,
    case e.type when 'model.responded' then 'ok' else e.payload #>> '{error,code}' end as outcome,
    coalesce((e.payload #>> '{usage,input}')::bigint, 0) as input_tokens,
    coalesce((e.payload #>> '{usage,output}')::bigint, 0) as output_tokens,
    coalesce((e.payload #>> '{usage,cache_read}')::bigint, 0) as cache_read_tokens,
    coalesce((e.payload #>> '{usage,cache_write}')::bigint, 0) as cache_write_tokens,
    coalesce((e.payload ->> 'cost_usd_micros')::bigint, 0) as cost_usd_micros,
    e.payload #>> '{usage,scale}' is distinct from 'provider' as estimated
  from capstan.events e
  join capstan.runs r on r.id = e.run_id
  left join lateral (select p.payload from capstan.events p where p.run_id = e.run_id and p.seq < e.seq and p.type = 'model.requested' order by p.seq desc limit 1) q on true
  where e.type in ('model.responded', 'model.failed')
  union all
  select e.run_id, r.tenant, r.agent, null, 'tool', e.turn, e.attempt, e.at,
    case e.type when 'tool.completed' then 'ok' when 'tool.interrupted' then 'interrupted' else e.payload #>> '{error,code}' end, 0, 0, 0, 0, 0, false
  from capstan.events e join capstan.runs r on r.id = e.run_id
  where e.type in ('tool.completed', 'tool.failed', 'tool.interrupted')
  union all
  select run_id, tenant, agent, model, kind, turn, attempt, at, outcome, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd_micros, estimated
  from capstan.usage_ledger;
--> statement-breakpoint
-- A compaction's task is made and settled by the run's own events, in their commit: the journal says what is wanted and
-- what came of it, the task's row is where the work is done in between. (run row before task, as everywhere.)
CREATE FUNCTION capstan.follow_compaction() RETURNS trigger LANGUAGE plpgsql AS $$
declare v_payload jsonb := new.payload::jsonb;
begin
  if (coalesce(current_setting('capstan_import.running', true), '') = 'on' and has_table_privilege(session_user, 'capstan.runs', 'insert')) then return null; end if;
  if new.type = 'compaction.requested' then
    insert into capstan.compaction_tasks (id, run_id, tenant, agent, state, trigger, requested_at, updated_at, due_at, view_epoch, from_seq, to_seq, first_kept_seq, request)
      select (v_payload ->> 'task_id')::uuid, r.id, r.tenant, r.agent, 'requested', v_payload ->> 'trigger', new.at, new.at, new.at, new.view_epoch,
        (v_payload #>> '{cut,from_seq}')::int, (v_payload #>> '{cut,to_seq}')::int, (v_payload #>> '{cut,first_kept_seq}')::int, v_payload
      from capstan.runs r where r.id = new.run_id;
    perform capstan.notify_wish('summarize');
  else
    update capstan.compaction_tasks t set updated_at = new.at, worker_id = null, result = null,
        state = case when new.type = 'context.compacted' then 'applied' when v_payload ->> 'reason' = 'superseded' then 'superseded' else 'failed' end
      where t.id = (v_payload ->> 'task_id')::uuid and t.run_id = new.run_id and t.state in ('requested', 'summarizing', 'ready');
  end if;
  return null;
end $$;
--> statement-breakpoint
CREATE TRIGGER events_compaction AFTER INSERT ON capstan.events FOR EACH ROW
  WHEN (new.type in ('compaction.requested', 'compaction.failed', 'context.compacted')) EXECUTE FUNCTION capstan.follow_compaction();
--> statement-breakpoint
-- Hands what came of a task to its run: the task waits as `ready` until the run's own writer has journaled it. False when
-- the task is no longer the caller's. A run that has ended takes only what was asked for after its end.
CREATE FUNCTION capstan.finish_compaction(task uuid, token int, result jsonb, error jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
declare
  v_now timestamptz := capstan.now();
  v_task capstan.compaction_tasks;
  v_run capstan.runs;
begin
  select * into v_task from capstan.compaction_tasks t where t.id = finish_compaction.task;
  if not found then return false; end if;
  select * into v_run from capstan.runs r where r.id = v_task.run_id for no key update;
  update capstan.compaction_tasks t set updated_at = v_now, worker_id = null, wait_reason = null, result = finish_compaction.result, error = finish_compaction.error,
      state = case when v_run.finished_at is null or v_task.requested_at > v_run.finished_at then 'ready' else 'superseded' end
    where t.id = v_task.id and t.state = 'summarizing' and t.fencing_token = finish_compaction.token;
  if not found then return false; end if;
  if v_run.finished_at is null or v_task.requested_at > v_run.finished_at then
    insert into capstan.inbox (id, run_id, at, kind, payload, dedupe_key)
      values (capstan.uuid_v7(), v_run.id, v_now, 'compaction', jsonb_build_object('task_id', v_task.id), 'compaction:' || v_task.id);
    update capstan.runs set inbox_pending = inbox_pending + 1, updated_at = v_now where id = v_run.id;
    if v_run.finished_at is not null or (v_run.state = 'waiting' and v_run.wait_reason in ('input', 'compaction', 'context_exhausted')) then perform capstan.wish_for(v_run, v_now); end if;
  end if;
  return true;
end $$;
--> statement-breakpoint
-- Asks for a compaction by hand; gives the id of the inbox item by which the outcome is found. A run that works on a turn
-- is refused (KC007) unless it may be done at the next boundary. One that has ended is compacted for the run that continues it.
CREATE FUNCTION capstan.compact_run(run_id uuid, at_boundary boolean default false, actor text default null) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare
  v_id uuid;
  v_run capstan.runs;
begin
  select * into v_run from capstan.runs r where r.id = compact_run.run_id and capstan.reaches(r.tenant) for no key update;
  if not found then raise exception 'no run %', compact_run.run_id using errcode = 'KC002'; end if;
  if not coalesce(compact_run.at_boundary, false) and (v_run.worker_id is not null or v_run.wait_reason in ('approval', 'children')) then
    raise exception 'run % is in the middle of a turn', compact_run.run_id using errcode = 'KC007', hint = 'Ask for it at the next boundary, or again when the run rests.';
  end if;
  -- Which model summarizes, and by which policy, is the definition's to say.
  if not exists (select from capstan.agent_definitions d where d.sha = coalesce(v_run.definition_sha, (select a.promoted_sha from capstan.agents a where a.name = v_run.agent))) then
    raise exception 'agent % of run % has no definition', v_run.agent, compact_run.run_id using errcode = 'KC022', hint = 'Start a worker that brings the agent, then ask again.';
  end if;
  select i.id into v_id from capstan.inbox i where i.run_id = compact_run.run_id and i.kind = 'compact' and i.applied_seq is null;
  if not found then
    v_id := capstan.uuid_v7();
    insert into capstan.inbox (id, run_id, at, kind, payload, actor) values (v_id, compact_run.run_id, capstan.now(), 'compact', '{}', compact_run.actor);
    update capstan.runs set inbox_pending = inbox_pending + 1, updated_at = capstan.now() where id = compact_run.run_id;
  end if;
  -- Also for one that was asked for before: the wish that it had went with the run's end.
  if v_run.finished_at is not null or (v_run.state = 'waiting' and v_run.wait_reason in ('input', 'compaction', 'context_exhausted')) then perform capstan.wish_for(v_run, capstan.now()); end if;
  return v_id;
end $$;
