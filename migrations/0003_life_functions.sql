-- What runs wait for, and what people do to them while they do (docs/waiting.md, docs/stopping.md). SQLSTATEs beside those
-- of 0001: KC008 not an interactive run; KC009 not in the middle of a turn; KC010 no such wait; KC011 the wait has
-- expired; KC017 the wait was answered already, or is over.

-- Puts an answer into the inbox of the run that waits for it, and wakes the run. The caller holds the run's row.
CREATE FUNCTION capstan.hand_over(run capstan.runs, wait_id uuid, payload jsonb, actor text) RETURNS void LANGUAGE plpgsql AS $$
declare v_now timestamptz := capstan.now();
begin
  insert into capstan.inbox (id, run_id, at, kind, payload, dedupe_key, actor)
    values (capstan.uuid_v7(), run.id, v_now, 'wait', payload || jsonb_build_object('wait_id', wait_id), 'wait:' || wait_id, actor);
  update capstan.runs r set inbox_pending = r.inbox_pending + 1, updated_at = v_now where r.id = run.id returning * into run;
  if run.state = 'waiting' and run.wait_reason in ('approval', 'children', 'signal', 'timer') then perform capstan.wish_for(run, v_now); end if;
end $$;
--> statement-breakpoint
-- Starts the runs that a call asks for: all of them in the commit of its event, the first few at once, the others one by
-- one as their elder siblings end. They are told apart by (parent, call, index), so that a call never spawns twice.
CREATE FUNCTION capstan.spawn_children(parent capstan.runs, call text, wait jsonb, at timestamptz) RETURNS int LANGUAGE plpgsql AS $$
declare
  v_child jsonb;
  v_index int := 0;
  v_payload jsonb;
  v_run capstan.runs;
  v_call jsonb := jsonb_build_object('run_id', parent.id, 'call_id', wait ->> 'call_id');
begin
  for v_child in select c from jsonb_array_elements(wait -> 'children') with ordinality as x(c, n) order by n loop
    v_payload := jsonb_strip_nulls(jsonb_build_object('compaction', v_child -> 'compaction', 'grants', v_child -> 'grants', 'budget', v_child -> 'budget'))
      || jsonb_build_object('origin', 'spawn', 'agent', v_child ->> 'agent', 'definition_sha', v_child ->> 'definition_sha', 'input', v_child -> 'input',
        'parent', v_call || jsonb_build_object('index', v_index));
    insert into capstan.runs (id, created_at, updated_at, tenant, subject, agent, origin, interactive, pool, priority, labels, metadata, deadline,
        traceparent, tracestate, definition_sha, policy, overrides, grants, parent_run_id, parent_call, child_index, root_run_id, depth, next_seq, journal_bytes)
      values ((v_child ->> 'run_id')::uuid, at, at, parent.tenant, parent.subject, v_child ->> 'agent', 'spawn', false, parent.pool, parent.priority, parent.labels,
        parent.metadata, least(parent.deadline, (v_child ->> 'deadline')::timestamptz), coalesce(parent.last_span, parent.traceparent), parent.tracestate,
        v_child ->> 'definition_sha', v_child -> 'compaction', case when v_child ? 'budget' then jsonb_build_object('budget', v_child -> 'budget') end, v_child -> 'grants', parent.id, call, v_index, coalesce(parent.root_run_id, parent.id), parent.depth + 1, 2,
        octet_length(v_payload::text))
      returning * into v_run;
    insert into capstan.events (run_id, at, append_id, seq, turn, fencing_token, view_epoch, size, version, attempt, type, origin, payload)
      values (v_run.id, at, (random() * 2147483647)::int, 1, 0, 0, 0, octet_length(v_payload::text), 1, 0, 'run.created', 'agent:' || parent.agent, v_payload);
    -- One that has to wait for a sibling has a wish that never comes due by itself: without any it would be taken for lost.
    perform capstan.wish_for(v_run, case when v_index < coalesce((wait ->> 'concurrency')::int, 4) then at else '9999-12-31' end);
    v_index := v_index + 1;
  end loop;
  return v_index;
end $$;
--> statement-breakpoint
-- The end of a run: its waits are over, what it started ends with it, and the call that started it counts one child less.
-- Whoever ends holds its own row and takes the parent's: an append gives up after its lock timeout and tries again.
CREATE FUNCTION capstan.follow_end(ended uuid, at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
declare
  v_run capstan.runs;
  v_parent capstan.runs;
  v_wait capstan.waits;
  v_id uuid;
begin
  update capstan.waits w set settled_at = at where w.run_id = ended and w.settled_at is null;
  for v_id in select c.id from capstan.runs c where c.parent_run_id = ended and c.finished_at is null order by c.id loop
    perform capstan.cancel_run(v_id, 'the run that started it has ended');
  end loop;
  select * into v_run from capstan.runs r where r.id = ended;
  if v_run.concurrency_key is not null then perform capstan.leave_key(v_run, at); end if;
  if v_run.parent_run_id is null then return; end if;
  select * into v_parent from capstan.runs p where p.id = v_run.parent_run_id for no key update;
  if not found or v_parent.finished_at is not null then return; end if;
  update capstan.waits w set pending = w.pending - 1, answered_at = case when w.pending = 1 then at end
    where w.run_id = v_parent.id and w.kind = 'children' and 't' || w.turn || '.' || w.call_index = v_run.parent_call and w.settled_at is null and w.pending > 0
    returning * into v_wait;
  if not found then return; end if;
  if v_wait.pending = 0 then
    perform capstan.hand_over(v_parent, v_wait.id, '{}', null);
    return;
  end if;
  -- One that was cancelled while it waited for an elder sibling has left no place free.
  if exists (select from capstan.wishes h where h.run_id = ended and not h.ready and h.at = '9999-12-31') then return; end if;
  update capstan.wishes w set at = follow_end.at, ready = true from (
    select s.id from capstan.runs s join capstan.wishes h on h.run_id = s.id
    where s.parent_run_id = v_parent.id and s.parent_call = v_run.parent_call and s.finished_at is null and not h.ready and h.at = '9999-12-31'
    order by s.child_index limit 1
  ) next where w.run_id = next.id;
  if found then perform capstan.notify_wish(v_run.pool); end if;
end $$;
--> statement-breakpoint
-- As with compaction, the rows beside the journal are made and settled by its own events, in their commit.
CREATE FUNCTION capstan.follow_life() RETURNS trigger LANGUAGE plpgsql AS $$
declare
  v_payload jsonb := new.payload::jsonb;
  v_wait jsonb;
  v_run capstan.runs;
  v_children int := 0;
  v_signal capstan.signals;
  v_id uuid;
begin
  if (coalesce(current_setting('capstan_import.running', true), '') = 'on' and has_table_privilege(session_user, 'capstan.runs', 'insert')) then return null; end if;
  if new.type <> 'call.waiting' then
    if new.type = 'turn.stopped' then
      update capstan.waits w set settled_at = new.at where w.run_id = new.run_id and w.settled_at is null;
      for v_id in select c.id from capstan.runs c where c.parent_run_id = new.run_id and c.finished_at is null order by c.id loop
        perform capstan.cancel_run(v_id, 'the turn that started it was stopped');
      end loop;
    else
      perform capstan.follow_end(new.run_id, new.at);
    end if;
    return null;
  end if;
  v_wait := v_payload -> 'wait';
  select * into v_run from capstan.runs r where r.id = new.run_id;
  if v_wait ->> 'kind' = 'children' then
    v_children := capstan.spawn_children(v_run, 't' || new.turn || '.' || (v_payload ->> 'index'), v_wait || jsonb_build_object('call_id', v_payload ->> 'call_id'), new.at);
  end if;
  insert into capstan.waits (id, run_id, tenant, agent, turn, call_id, call_index, kind, name, detail, requested_at, expires_at, pending)
    values ((v_payload ->> 'wait_id')::uuid, new.run_id, v_run.tenant, v_run.agent, new.turn, v_payload ->> 'call_id', (v_payload ->> 'index')::int, v_wait ->> 'kind',
      coalesce(v_wait ->> 'signal', v_payload ->> 'name'), case when v_wait ->> 'kind' = 'children' then v_wait - 'children' else v_wait end, new.at,
      coalesce(v_wait ->> 'expires_at', v_wait ->> 'wake_at')::timestamptz, v_children);
  -- What came before anybody waited for it.
  if v_wait ->> 'kind' in ('signal', 'completion') then
    update capstan.signals s set wait_id = (v_payload ->> 'wait_id')::uuid from (
      select k.id from capstan.signals k where k.run_id = new.run_id and k.wait_id is null
        and k.name = case when v_wait ->> 'kind' = 'signal' then v_wait ->> 'signal' else 'completion:' || (v_payload ->> 'wait_id') end
      order by k.id limit 1
    ) first where s.id = first.id returning s.* into v_signal;
    if found then
      update capstan.waits w set answered_at = new.at, answer = v_signal.payload, answered_by = v_signal.actor where w.id = v_signal.wait_id;
      perform capstan.hand_over(v_run, v_signal.wait_id, jsonb_build_object('answer', v_signal.payload), v_signal.actor);
    end if;
  end if;
  return null;
end $$;
--> statement-breakpoint
CREATE TRIGGER events_life AFTER INSERT ON capstan.events FOR EACH ROW
  WHEN (new.type in ('call.waiting', 'turn.stopped', 'run.completed', 'run.failed', 'run.cancelled')) EXECUTE FUNCTION capstan.follow_life();
--> statement-breakpoint
-- Takes an open wait for an answer: the run's row first, so that of two answers one finds the other.
CREATE FUNCTION capstan.take_wait(wait_id uuid, kinds text[]) RETURNS capstan.waits LANGUAGE plpgsql AS $$
declare v_wait capstan.waits;
begin
  select * into v_wait from capstan.waits w where w.id = take_wait.wait_id;
  if not found or v_wait.kind <> all(kinds) or not capstan.reaches(v_wait.tenant) then
    raise exception 'nothing waits under % (%)', coalesce(wait_id::text, 'null'), array_to_string(kinds, ', ') using errcode = 'KC010', hint = 'capstan approvals list shows what waits for somebody.';
  end if;
  perform from capstan.runs r where r.id = v_wait.run_id for no key update;
  select * into v_wait from capstan.waits w where w.id = take_wait.wait_id for update;
  if v_wait.answered_at is not null then
    raise exception 'wait % was answered already%', wait_id, case when v_wait.answered_by is null then '' else ' by ' || v_wait.answered_by end
      using errcode = 'KC017', detail = coalesce(v_wait.answer::text, ''), hint = 'The first answer counts.';
  end if;
  if v_wait.settled_at is not null then
    raise exception 'wait % is over', wait_id using errcode = 'KC017', hint = 'Its run has gone on, was stopped or has ended.';
  end if;
  if v_wait.expires_at <= capstan.now() then
    raise exception 'wait % expired at %', wait_id, to_jsonb(v_wait.expires_at) #>> '{}' using errcode = 'KC011', hint = 'What was set for nobody''s answer counts.';
  end if;
  return v_wait;
end $$;
--> statement-breakpoint
-- A person's word on a call that waits for approval. `input`: the arguments to use instead. Exactly one decision counts.
CREATE FUNCTION capstan.decide(wait_id uuid, decision text, input jsonb default null, reason text default null, actor text default null) RETURNS void LANGUAGE plpgsql AS $$
declare
  v_wait capstan.waits;
  v_run capstan.runs;
  v_answer jsonb;
begin
  if decide.decision is null or decide.decision not in ('approve', 'deny') then
    raise exception 'decision % is not known: approve or deny', coalesce(decide.decision, 'null') using errcode = 'KC006';
  end if;
  if decide.input is not null and (decide.decision = 'deny' or jsonb_typeof(decide.input) <> 'object') then
    raise exception 'input is for approve, and is an object: the arguments to use instead' using errcode = 'KC006';
  end if;
  if octet_length(decide.reason) > 10000 then raise exception 'reason has more than 10,000 bytes' using errcode = 'KC005'; end if;
  if octet_length(decide.input::text) > 1000000 then raise exception 'input has more than 1,000,000 bytes' using errcode = 'KC005'; end if;
  v_wait := capstan.take_wait(decide.wait_id, array['approval']);
  v_answer := jsonb_strip_nulls(jsonb_build_object('decision', decide.decision, 'reason', decide.reason)) || case when decide.input is null then '{}' else jsonb_build_object('input', decide.input) end;
  update capstan.waits w set answered_at = capstan.now(), answer = v_answer, answered_by = decide.actor where w.id = v_wait.id;
  select * into v_run from capstan.runs r where r.id = v_wait.run_id;
  perform capstan.hand_over(v_run, v_wait.id, v_answer, decide.actor);
end $$;
--> statement-breakpoint
-- The answer to a question. `declined`: nobody will answer; the model is told.
CREATE FUNCTION capstan.answer(wait_id uuid, answer jsonb, declined boolean default false, actor text default null) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
declare
  v_wait capstan.waits;
  v_run capstan.runs;
  v_answer jsonb := case when coalesce(declined, false) then jsonb_build_object('declined', true) else jsonb_build_object('answer', answer) end;
begin
  if answer is null and not coalesce(declined, false) then raise exception 'answer is null; give a JSON value (''null''::jsonb for none)' using errcode = 'KC006'; end if;
  if octet_length(answer::text) > 1000000 then raise exception 'the answer has more than 1,000,000 bytes' using errcode = 'KC005'; end if;
  v_wait := capstan.take_wait(wait_id, array['question']);
  if v_answer ? 'answer' and v_wait.detail ? 'options' and not v_wait.detail -> 'options' @> jsonb_build_array(answer) then
    raise exception 'the answer is none of %', v_wait.detail -> 'options' using errcode = 'KC006';
  end if;
  update capstan.waits w set answered_at = capstan.now(), answer = v_answer, answered_by = actor where w.id = v_wait.id;
  select * into v_run from capstan.runs r where r.id = v_wait.run_id;
  perform capstan.hand_over(v_run, v_wait.id, v_answer, actor);
end $$;
--> statement-breakpoint
-- A signal: taken by the run's oldest open wait of that name, or kept until there is one. Gives its id; the same
-- dedupe_key gives the same signal.
CREATE FUNCTION capstan.signal(run_id uuid, name text, payload jsonb default 'null', dedupe_key text default null, actor text default null) RETURNS uuid LANGUAGE plpgsql AS $$
declare
  v_id uuid;
  v_run capstan.runs;
  v_wait capstan.waits;
begin
  if signal.name is null or length(signal.name) not between 1 and 200 then raise exception 'a signal''s name has 1 to 200 characters' using errcode = 'KC006'; end if;
  if signal.payload is null then raise exception 'payload is null; give a JSON value (''null''::jsonb for none)' using errcode = 'KC006'; end if;
  if length(signal.dedupe_key) not between 1 and 500 then raise exception 'dedupe_key must have 1 to 500 characters' using errcode = 'KC006'; end if;
  if octet_length(signal.payload::text) > 1000000 then raise exception 'the payload has more than 1,000,000 bytes' using errcode = 'KC005'; end if;
  select * into v_run from capstan.runs r where r.id = signal.run_id and capstan.reaches(r.tenant) for no key update;
  if not found then raise exception 'no run %', signal.run_id using errcode = 'KC002'; end if;
  if signal.dedupe_key is not null then
    select s.id into v_id from capstan.signals s where s.run_id = signal.run_id and s.dedupe_key = signal.dedupe_key;
    if found then return v_id; end if;
  end if;
  if v_run.finished_at is not null then
    raise exception 'run % has ended (%)', signal.run_id, v_run.state using errcode = 'KC003', hint = 'Start a new run.';
  end if;
  if (select count(*) from (select from capstan.signals s where s.run_id = signal.run_id and s.wait_id is null limit 1000) kept) >= 1000 then
    raise exception 'run % has 1,000 signals that nobody waits for', signal.run_id using errcode = 'KC004', hint = 'Send signals that the run waits for.';
  end if;
  select w.* into v_wait from capstan.waits w
    where w.run_id = signal.run_id and w.settled_at is null and w.answered_at is null and (w.expires_at is null or w.expires_at > capstan.now())
      and ((w.kind = 'signal' and w.name = signal.name) or (w.kind = 'completion' and signal.name = 'completion:' || w.id))
    order by w.requested_at, w.call_index limit 1 for update;
  if signal.name like 'completion:%' and v_wait.id is null and (exists (select from capstan.signals s where s.run_id = signal.run_id and s.name = signal.name)
      or exists (select from capstan.waits w where w.run_id = signal.run_id and 'completion:' || w.id = signal.name)) then
    raise exception 'the call was completed already, or waits no more' using errcode = 'KC017', hint = 'The first result counts.';
  end if;
  v_id := capstan.uuid_v7();
  insert into capstan.signals (id, run_id, name, payload, at, dedupe_key, actor, wait_id)
    values (v_id, signal.run_id, signal.name, signal.payload, capstan.now(), signal.dedupe_key, signal.actor, v_wait.id);
  if v_wait.id is not null then
    update capstan.waits w set answered_at = capstan.now(), answer = signal.payload, answered_by = signal.actor where w.id = v_wait.id;
    perform capstan.hand_over(v_run, v_wait.id, jsonb_build_object('answer', signal.payload), signal.actor);
  end if;
  return v_id;
end $$;
--> statement-breakpoint
-- Stops the turn at hand of an interactive run and keeps the run: its model call and tools are aborted wherever they run.
CREATE FUNCTION capstan.stop_run(run_id uuid, reason text default null, actor text default null) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare
  v_id uuid;
  v_run capstan.runs;
begin
  select * into v_run from capstan.runs r where r.id = stop_run.run_id for no key update;
  if not found then raise exception 'no run %', stop_run.run_id using errcode = 'KC002'; end if;
  if v_run.finished_at is not null then
    raise exception 'run % has ended (%)', stop_run.run_id, v_run.state using errcode = 'KC003', hint = 'There is nothing to stop.';
  end if;
  if not v_run.interactive then
    raise exception 'run % is not interactive: nothing could make it go on', stop_run.run_id using errcode = 'KC008', hint = 'Pause it, or cancel it.';
  end if;
  select i.id into v_id from capstan.inbox i where i.run_id = stop_run.run_id and i.kind = 'stop' and i.applied_seq is null;
  if found then
    if v_run.worker_id is null then perform capstan.wish_for(v_run, capstan.now()); end if;
    return v_id;
  end if;
  if v_run.state = 'queued' or (v_run.state = 'waiting' and v_run.wait_reason not in ('approval', 'children', 'signal', 'timer', 'retry', 'quota', 'compaction')) then
    raise exception 'run % is not in the middle of a turn (%)', stop_run.run_id, coalesce(v_run.wait_reason, v_run.state) using errcode = 'KC009', hint = 'It takes input now.';
  end if;
  v_id := capstan.uuid_v7();
  insert into capstan.inbox (id, run_id, at, kind, payload, actor)
    values (v_id, stop_run.run_id, capstan.now(), 'stop', jsonb_strip_nulls(jsonb_build_object('reason', left(stop_run.reason, 1000))), stop_run.actor);
  update capstan.runs r set inbox_pending = r.inbox_pending + 1, updated_at = capstan.now() where r.id = stop_run.run_id returning * into v_run;
  if v_run.worker_id is null then perform capstan.wish_for(v_run, capstan.now()); end if;
  return v_id;
end $$;
--> statement-breakpoint
-- No worker begins another turn of the run; the one at hand is finished. False when it was paused already.
CREATE FUNCTION capstan.pause_run(run_id uuid, actor text default null) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare v_run capstan.runs;
begin
  select * into v_run from capstan.runs r where r.id = pause_run.run_id for no key update;
  if not found then raise exception 'no run %', pause_run.run_id using errcode = 'KC002'; end if;
  if v_run.finished_at is not null then raise exception 'run % has ended (%)', pause_run.run_id, v_run.state using errcode = 'KC003', hint = 'There is nothing to pause.'; end if;
  if v_run.paused then return false; end if;
  update capstan.runs r set paused = true, updated_at = capstan.now() where r.id = pause_run.run_id;
  insert into capstan.audit_log (tenant, actor, action, target) values (v_run.tenant, coalesce(pause_run.actor, session_user), 'run.pause', pause_run.run_id::text);
  return true;
end $$;
--> statement-breakpoint
CREATE FUNCTION capstan.resume_run(run_id uuid, actor text default null) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare v_run capstan.runs;
begin
  select * into v_run from capstan.runs r where r.id = resume_run.run_id for no key update;
  if not found then raise exception 'no run %', resume_run.run_id using errcode = 'KC002'; end if;
  if not v_run.paused then return false; end if;
  update capstan.runs r set paused = false, updated_at = capstan.now() where r.id = resume_run.run_id returning * into v_run;
  insert into capstan.audit_log (tenant, actor, action, target) values (v_run.tenant, coalesce(resume_run.actor, session_user), 'run.resume', resume_run.run_id::text);
  perform capstan.wish_again(v_run);
  return true;
end $$;
--> statement-breakpoint
-- The wish that the run would have if nobody had paused it: jobs that found it paused have come to nothing.
CREATE FUNCTION capstan.wish_again(run capstan.runs) RETURNS void LANGUAGE plpgsql AS $$
begin
  if run.worker_id is not null then return; end if;
  if run.state = 'queued' and run.run_at > capstan.now() then
    -- Its wish for that time is there, unless it has come from another database.
    if not exists (select from capstan.wishes w where w.run_id = run.id) then perform capstan.wish_for(run, run.run_at); end if;
    return;
  end if;
  if run.finished_at is not null then
    -- Ended while it was paused, or after: only a compaction is still to be done for it.
    if run.inbox_pending > 0 and exists (select from capstan.inbox i where i.run_id = run.id and i.applied_seq is null and i.kind in ('compact', 'compaction')) then
      perform capstan.wish_for(run, capstan.now());
    end if;
    return;
  end if;
  if run.state in ('queued', 'running') or run.inbox_pending > 0 then
    -- One that waits for an elder sibling, or for its key, goes on waiting for it.
    if not exists (select from capstan.wishes w where w.run_id = run.id) then perform capstan.wish_for(run, capstan.now()); end if;
  elsif run.wake_at is not null or run.deadline is not null then
    perform capstan.wish_for(run, least(run.wake_at, run.deadline));
  end if;
end $$;
--> statement-breakpoint
-- A whole tenant, or everything (tenant null), stands still until it is resumed, also over restarts. False when it did already.
CREATE FUNCTION capstan.pause_all(tenant text default null, reason text default null, actor text default null) RETURNS boolean LANGUAGE plpgsql AS $$
begin
  insert into capstan.pauses (scope, value, at, reason, actor)
    values (case when pause_all.tenant is null then 'all' else 'tenant' end, coalesce(pause_all.tenant, '*'), capstan.now(), pause_all.reason, pause_all.actor)
    on conflict do nothing;
  if not found then return false; end if;
  insert into capstan.audit_log (tenant, actor, action, target) values (coalesce(pause_all.tenant, '*'), coalesce(pause_all.actor, session_user), 'pause', coalesce(pause_all.tenant, '*'));
  return true;
end $$;
--> statement-breakpoint
CREATE FUNCTION capstan.resume_all(tenant text default null, actor text default null) RETURNS boolean LANGUAGE plpgsql AS $$
declare v_run capstan.runs;
begin
  delete from capstan.pauses p where p.scope = case when resume_all.tenant is null then 'all' else 'tenant' end and p.value = coalesce(resume_all.tenant, '*');
  if not found then return false; end if;
  insert into capstan.audit_log (tenant, actor, action, target) values (coalesce(resume_all.tenant, '*'), coalesce(resume_all.actor, session_user), 'resume', coalesce(resume_all.tenant, '*'));
  -- Runs whose jobs came for nothing meanwhile. Those that a claim holds at this moment are their holder's.
  for v_run in
    select r.* from capstan.runs r where (resume_all.tenant is null or r.tenant = resume_all.tenant) and r.finished_at is null and r.worker_id is null and not r.paused
      and (r.state in ('queued', 'running') or (r.state = 'waiting' and (r.inbox_pending > 0 or r.wake_at is not null or r.deadline is not null)))
      and not exists (select from capstan.wishes w where w.run_id = r.id)
    order by r.id for no key update skip locked
  loop
    perform capstan.wish_again(v_run);
  end loop;
  perform capstan.notify_wish(p.pool) from (select distinct w.pool from capstan.wishes w where w.ready and (resume_all.tenant is null or w.tenant = resume_all.tenant)) p;
  return true;
end $$;
--> statement-breakpoint
-- The last step of an import: what the run's rows beside its journal are made of, and its wish. A summary that was being
-- made where it came from is asked for again: its events say so.
CREATE FUNCTION capstan.land_run(run_id uuid, paused boolean) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare v_run capstan.runs; v_now timestamptz := capstan.now();
begin
  insert into capstan.compaction_tasks (id, run_id, tenant, agent, state, trigger, requested_at, updated_at, due_at, view_epoch, from_seq, to_seq, first_kept_seq, request)
    select (e.payload ->> 'task_id')::uuid, r.id, r.tenant, r.agent, 'requested', e.payload ->> 'trigger', v_now, v_now, v_now, e.view_epoch,
      (e.payload #>> '{cut,from_seq}')::int, (e.payload #>> '{cut,to_seq}')::int, (e.payload #>> '{cut,first_kept_seq}')::int, e.payload::jsonb
    from capstan.events e join capstan.runs r on r.id = e.run_id
    where e.run_id = land_run.run_id and e.type = 'compaction.requested' and r.finished_at is null
      and not exists (select from capstan.events o where o.run_id = e.run_id and o.seq > e.seq and o.type in ('compaction.failed', 'context.compacted') and o.payload ->> 'task_id' = e.payload ->> 'task_id')
      -- One whose summary is made has come along.
      and not exists (select from capstan.compaction_tasks t where t.id = (e.payload ->> 'task_id')::uuid)
    order by e.seq desc limit 1;
  if found then perform capstan.notify_wish('summarize'); end if;
  update capstan.runs r set paused = land_run.paused, updated_at = v_now,
      inbox_pending = (select count(*) from capstan.inbox i where i.run_id = r.id and i.applied_seq is null)
    where r.id = land_run.run_id returning * into v_run;
  -- One that had not begun asks for its key here.
  if v_run.state = 'queued' and v_run.concurrency_key is not null and v_run.fencing_token = 0 then perform capstan.enter_key(v_run, 'queue', v_now);
  elsif not land_run.paused then perform capstan.wish_again(v_run); end if;
end $$;
