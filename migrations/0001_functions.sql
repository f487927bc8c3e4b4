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
  created jsonb default null
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
  if length(create_run.idempotency_key) not between 1 and 500 then raise exception 'idempotency_key must have 1 to 500 characters' using errcode = 'KC006'; end if;
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
  v_payload := jsonb_strip_nulls(jsonb_build_object('interactive', case when v_interactive then true end))
    || jsonb_build_object('origin', 'api', 'agent', create_run.agent, 'definition_sha', v_sha, 'input', create_run.input) || coalesce(create_run.created, '{}');
  v_size := octet_length(v_payload::text);
  if v_size > coalesce((v_definition #>> '{limits,inline_payload_bytes}')::int, 1048576) then
    raise exception 'input of % bytes is over the inline limit of % bytes; send large content as a file part that names a blob, or raise limits.inline_payload_bytes (up to 16 MiB) of agent %',
      v_size, coalesce((v_definition #>> '{limits,inline_payload_bytes}')::int, 1048576), create_run.agent using errcode = 'KC005';
  end if;
  insert into capstan.runs (id, created_at, updated_at, tenant, origin, subject, agent, interactive, pool, priority, concurrency_key, labels, metadata,
      deadline, run_at, traceparent, tracestate, idempotency_key, input_digest, definition_sha, next_seq, journal_bytes, root_run_id)
    values (v_id, v_now, v_now, create_run.tenant, v_payload ->> 'origin', create_run.subject, create_run.agent, v_interactive, create_run.pool, create_run.priority,
      create_run.concurrency_key, create_run.labels, create_run.metadata,
      coalesce(create_run.deadline, v_now + (v_definition #>> '{limits,deadline_ms}')::bigint * interval '1 ms'),
      create_run.run_at, create_run.traceparent, create_run.tracestate, create_run.idempotency_key, v_digest, v_sha, 2, v_size, v_id)
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
  perform capstan.wish_for(v_run, coalesce(create_run.run_at, v_now));
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
  run_id uuid default null
) RETURNS uuid LANGUAGE sql AS $$
  select capstan.create_run(enqueue_run.agent, enqueue_run.input, enqueue_run.tenant, enqueue_run.idempotency_key, enqueue_run.priority, enqueue_run.run_at,
    enqueue_run.deadline, enqueue_run.interactive, enqueue_run.metadata, enqueue_run.labels, enqueue_run.subject, enqueue_run.pool,
    enqueue_run.definition_sha, enqueue_run.concurrency_key, enqueue_run.traceparent, enqueue_run.tracestate, enqueue_run.actor, enqueue_run.run_id)
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
  select * into v_run from capstan.runs r where r.id = send.run_id for no key update;
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
  perform from capstan.runs r where r.id = cancel_run.run_id;
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
    if v_run.id = cancel_run.run_id then v_ended := true; end if;
  end loop;
  return v_ended;
end $$;
--> statement-breakpoint
CREATE FUNCTION capstan.run_status(run_id uuid) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
declare v_run capstan.runs; v_last jsonb;
begin
  select * into v_run from capstan.runs r where r.id = run_status.run_id;
  if not found then raise exception 'no run %', run_status.run_id using errcode = 'KC002'; end if;
  if v_run.finished_at is not null then
    -- Not simply the last: a compaction may have come behind it.
    select e.payload::jsonb into v_last from capstan.events e
      where e.run_id = run_status.run_id and e.type in ('run.completed', 'run.failed', 'run.cancelled') order by e.seq desc limit 1;
  end if;
  return jsonb_strip_nulls(jsonb_build_object('run_id', v_run.id, 'agent', v_run.agent, 'tenant', v_run.tenant, 'state', v_run.state,
    'wait_reason', v_run.wait_reason, 'wake_at', v_run.wake_at, 'paused', v_run.paused, 'turn', v_run.turn, 'last_seq', v_run.next_seq - 1,
    'created_at', v_run.created_at, 'updated_at', v_run.updated_at, 'finished_at', v_run.finished_at, 'error', v_last -> 'error',
    'usage', jsonb_build_object('input_tokens', v_run.input_tokens, 'output_tokens', v_run.output_tokens, 'cache_read_tokens', v_run.cache_read_tokens,
      'cache_write_tokens', v_run.cache_write_tokens, 'cost_usd_micros', v_run.cost_usd_micros)))
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
  if coalesce(current_setting('capstan_import.running', true), '') = 'on' then return null; end if;
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
  select * into v_run from capstan.runs r where r.id = compact_run.run_id for no key update;
  if not found then raise exception 'no run %', compact_run.run_id using errcode = 'KC002'; end if;
  if not coalesce(compact_run.at_boundary, false) and (v_run.worker_id is not null or v_run.wait_reason in ('approval', 'children')) then
    raise exception 'run % is in the middle of a turn', compact_run.run_id using errcode = 'KC007', hint = 'Ask for it at the next boundary, or again when the run rests.';
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
