-- Runs that begin with another run's view: forks, retries, the next run of a conversation (docs/forking.md; ADR 0017). What
-- the base wrote is never copied but read through the reference. SQLSTATEs beside those of 0001: KC014 no place to fork at;
-- KC015 the conversation's last run is at work; KC016 no such conversation; KC018 not a failed or cancelled run.
-- Lock order: conversation, then the base's row (FOR KEY SHARE: it may go on, and must not be deleted), then the new run's.

-- Where a run's journal has come to after each of its events: `boundary` (no call is open, nothing is unanswered), `answered`
-- (a response without calls), `requested`, `failed`, `calling`. The same as the phase of the fold (src/domain/fold.ts).
CREATE FUNCTION capstan.run_phases(run_id uuid) RETURNS TABLE (from_seq int, to_seq int, phase text) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
declare
  v_last int;
begin
  select r.next_seq - 1 into v_last from capstan.runs r where r.id = run_phases.run_id;
  return query
    with told as (
      select e.seq, e.type, case when e.type = 'model.responded' then (select count(*) from json_array_elements(e.payload -> 'content') c where c ->> 'type' = 'tool_call') end as calls
      from capstan.events e
      where e.run_id = run_phases.run_id and e.type in ('run.created', 'model.requested', 'model.responded', 'model.failed', 'model.corrected',
        'tool.completed', 'tool.failed', 'tool.interrupted', 'turn.stopped', 'input.applied')
        -- The model was told to wrap up: a message, as a correction is one.
        or (e.run_id = run_phases.run_id and e.type = 'budget.reached' and e.payload ->> 'text' is not null)
    ), grouped as (
      select t.*, count(*) filter (where t.type not like 'tool.%') over (order by t.seq) as opener, lead(t.seq) over (order by t.seq) as next_seq from told t
    ), counted as (
      select g.seq, g.next_seq, first_value(g.type) over w as opened_by, first_value(g.calls) over w as calls, row_number() over w - 1 as ends
      from grouped g window w as (partition by g.opener order by g.seq)
    )
    select c.seq, coalesce(c.next_seq - 1, v_last), case c.opened_by
        when 'model.requested' then 'requested'
        when 'model.failed' then 'failed'
        when 'model.responded' then case when c.calls = 0 then 'answered' when c.ends >= c.calls then 'boundary' else 'calling' end
        when 'run.created' then capstan.first_phase(run_phases.run_id)
        else 'boundary' end
    from counted c order by c.seq;
end $$;
--> statement-breakpoint
-- A fork of an interactive run may begin behind an answer, and then waits for input as the other did.
CREATE FUNCTION capstan.first_phase(run_id uuid) RETURNS text LANGUAGE plpgsql STABLE AS $$
declare v_run capstan.runs;
begin
  select * into v_run from capstan.runs r where r.id = first_phase.run_id;
  if v_run.forked_from_run is null then return 'boundary'; end if;
  return coalesce((select p.phase from capstan.run_phases(v_run.forked_from_run) p where v_run.forked_from_seq between p.from_seq and p.to_seq), 'boundary');
end $$;
--> statement-breakpoint
-- The seq that a run can be continued from: `at` itself, or the last one. `behind_answer`: there is input, or the new run waits for it.
CREATE FUNCTION capstan.fork_point(run capstan.runs, at int, behind_answer boolean) RETURNS int LANGUAGE plpgsql STABLE AS $$
declare
  v_at int := coalesce(fork_point.at, run.next_seq - 1);
  v_before int;
  v_after int;
  v_phase text;
begin
  select max(least(p.to_seq, v_at)) filter (where p.from_seq <= v_at), min(greatest(p.from_seq, v_at)) filter (where p.to_seq >= v_at) into v_before, v_after
    from capstan.run_phases(run.id) p where p.phase = 'boundary' or (p.phase = 'answered' and fork_point.behind_answer);
  if v_before is not null and (v_before = v_at or fork_point.at is null) then return v_before; end if;
  select p.phase into v_phase from capstan.run_phases(run.id) p where v_at between p.from_seq and p.to_seq;
  raise exception 'run % cannot be continued from event %: %', run.id, v_at, case
      when v_phase is null then 'it has the events 1 to ' || run.next_seq - 1
      when v_phase = 'calling' then 'calls of the model are open there'
      when v_phase = 'requested' then 'the model was asked there and has not answered'
      when v_phase = 'failed' then 'the model''s call has failed there and is to be made again'
      else 'the model has answered there and nothing is left to do without input' end
    using errcode = 'KC014', detail = jsonb_build_object('run_id', run.id, 'at', v_at, 'before', v_before, 'after', v_after)::text,
      hint = case when v_before is null and v_after is null then 'There is no other place; give input, or enqueue a new run.'
        else 'The nearest places are ' || concat_ws(' and ', v_before, v_after) || '.' end;
end $$;
--> statement-breakpoint
-- Makes a run whose view begins with the base's events up to one of them. For our own functions.
CREATE FUNCTION capstan.derive_run(
  base capstan.runs,
  origin text,
  at int,
  input jsonb,
  definition_sha text,
  compaction jsonb,
  interactive boolean,
  conversation_id uuid,
  idempotency_key text,
  digest bytea,
  options jsonb,
  actor text,
  run_id uuid,
  budget jsonb default null
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare
  v_id uuid := coalesce(derive_run.run_id, capstan.uuid_v7());
  v_now timestamptz := capstan.now();
  v_options jsonb := coalesce(derive_run.options, '{}');
  v_is_next boolean := derive_run.origin = 'continue';
  v_definition jsonb;
  v_interactive boolean := coalesce(derive_run.interactive, base.interactive);
  v_at int;
  v_last capstan.events;
  v_first capstan.events;
  v_epoch int;
  v_marker int;
  v_is_last_view boolean;
  v_compaction jsonb;
  v_budget jsonb;
  v_problem text;
  v_payload jsonb;
  v_size int;
  v_run capstan.runs;
  v_found capstan.runs;
begin
  if length(derive_run.idempotency_key) not between 1 and 500 then raise exception 'idempotency_key must have 1 to 500 characters' using errcode = 'KC006'; end if;
  if (v_options ->> 'priority')::int not between -1000 and 1000 then raise exception 'priority % is outside -1000..1000', v_options ->> 'priority' using errcode = 'KC006'; end if;
  if v_options ->> 'pool' = 'summarize' then
    raise exception 'pool summarize makes summaries and takes no runs' using errcode = 'KC006', hint = 'Leave pool out, or name one that workers of yours serve.';
  end if;
  if derive_run.definition_sha is not null then
    select d.definition into v_definition from capstan.agent_definitions d where d.sha = derive_run.definition_sha and d.name = base.agent;
    if not found then raise exception 'agent % has no definition %', base.agent, derive_run.definition_sha using errcode = 'KC006'; end if;
  end if;
  if exists (select from capstan.quota_limits l where l.kind = 'run')
    and not exists (select from capstan.runs r where r.tenant = base.tenant and r.idempotency_key = derive_run.idempotency_key) then
    perform capstan.check_queue(base.tenant, base.agent);
  end if;
  v_at := capstan.fork_point(base, derive_run.at, derive_run.input is not null or v_interactive);
  select * into v_first from capstan.events e where e.run_id = base.id and e.seq = 1;
  select * into v_last from capstan.events e where e.run_id = base.id and e.seq = v_at;
  v_epoch := v_last.view_epoch + case
    when v_last.type = 'context.pruned' or (v_last.type = 'context.compacted' and v_last.payload #>> '{head,summary}' ~ '\S') then 1 else 0 end;
  if v_epoch > 0 then
    -- The newest marker of the whole line, which may be in a run before the base.
    with recursive line as (
      select base.id as id, v_at as last, base.seq_offset as seq_offset, coalesce(base.forked_from_run, base.continued_from_run) as before, coalesce(base.forked_from_seq, base.continued_from_seq) as before_seq
      union all
      select r.id, l.before_seq, r.seq_offset, coalesce(r.forked_from_run, r.continued_from_run), coalesce(r.forked_from_seq, r.continued_from_seq)
      from line l join capstan.runs r on r.id = l.before
    )
    select max(m.seq + l.seq_offset) into v_marker from line l
      cross join lateral (select e.seq from capstan.events e where e.run_id = l.id and e.seq <= l.last and e.type = 'context.compacted' order by e.seq desc limit 1) m;
  end if;
  v_is_last_view := not exists (select from capstan.events e where e.run_id = base.id and e.seq > v_at
    and (e.type in ('model.responded', 'model.corrected', 'tool.completed', 'tool.failed', 'tool.interrupted', 'input.applied', 'context.compacted', 'context.pruned')
      or (e.type = 'budget.reached' and e.payload ->> 'text' is not null)));
  -- A policy of the base's own goes with its forks; each run of a conversation has its own. What it may use at most goes with all.
  v_compaction := nullif(case when v_is_next or jsonb_typeof(derive_run.compaction) <> 'object' then derive_run.compaction
    else coalesce((v_first.payload -> 'compaction')::jsonb, '{}') || coalesce(derive_run.compaction, '{}') end, '{}');
  v_budget := case when v_is_next or jsonb_typeof(derive_run.budget) <> 'object' then nullif(derive_run.budget, '{}')
    else capstan.merged_budget((v_first.payload -> 'budget')::jsonb, derive_run.budget) end;
  -- Only what is given is held against the definition: what comes from the base was, or was handed down.
  v_problem := coalesce(capstan.compaction_problem(v_compaction, v_definition -> 'compaction'), capstan.budget_problem(derive_run.budget, v_definition -> 'budget'));
  if v_problem is not null then raise exception '%', v_problem using errcode = 'KC006'; end if;
  v_payload := jsonb_strip_nulls(jsonb_build_object('interactive', case when v_interactive then true end, 'conversation_id', derive_run.conversation_id,
      'compaction', v_compaction, 'budget', v_budget, 'grants', (v_first.payload -> 'grants')::jsonb))
    || jsonb_build_object('origin', derive_run.origin, 'agent', base.agent, 'definition_sha', derive_run.definition_sha,
      'input', case when v_is_next then derive_run.input else (v_first.payload -> 'input')::jsonb end,
      'base', jsonb_build_object('run_id', base.id, 'seq', v_at, 'position', base.seq_offset + v_at));
  v_size := octet_length(v_payload::text);
  if v_size > coalesce((v_definition #>> '{limits,inline_payload_bytes}')::int, 1048576) then
    raise exception 'input of % bytes is over the inline limit of % bytes; send large content as a file part that names a blob, or raise limits.inline_payload_bytes (up to 16 MiB) of agent %',
      v_size, coalesce((v_definition #>> '{limits,inline_payload_bytes}')::int, 1048576), base.agent using errcode = 'KC005';
  end if;
  insert into capstan.runs (id, created_at, updated_at, tenant, subject, kind, agent, overrides, policy, grants, origin, root_run_id, depth, conversation_id,
      continued_from_run, continued_from_seq, forked_from_run, forked_from_seq, seq_offset, interactive, pool, priority, concurrency_key, concurrency_limit, labels, metadata,
      deadline, run_at, traceparent, tracestate, idempotency_key, input_digest, definition_sha, view_marker_seq, view_epoch, turn, taken_over, transcript_bytes, growth_level,
      next_seq, journal_bytes)
    values (v_id, v_now, v_now, base.tenant, base.subject, base.kind, base.agent, case when v_budget is not null then jsonb_build_object('budget', v_budget) end, v_compaction, base.grants, derive_run.origin, v_id, base.depth, derive_run.conversation_id,
      case when v_is_next then base.id end, case when v_is_next then v_at end, case when not v_is_next then base.id end, case when not v_is_next then v_at end,
      base.seq_offset + v_at, v_interactive, coalesce(v_options ->> 'pool', base.pool), coalesce((v_options ->> 'priority')::int, base.priority), base.concurrency_key, base.concurrency_limit,
      coalesce((select array_agg(l.label order by l.n) from jsonb_array_elements_text(v_options -> 'labels') with ordinality l(label, n)), base.labels),
      coalesce(v_options -> 'metadata', base.metadata),
      coalesce((v_options ->> 'deadline')::timestamptz, v_now + (v_definition #>> '{limits,deadline_ms}')::bigint * interval '1 ms'),
      (v_options ->> 'run_at')::timestamptz, v_options ->> 'traceparent', v_options ->> 'tracestate', derive_run.idempotency_key, derive_run.digest, derive_run.definition_sha,
      -- A view that is as large as it was says so once more: its first turn here may be the first that can.
      v_marker, v_epoch, v_last.turn, not v_is_next, case when v_is_last_view then base.transcript_bytes else 0 end, case when v_is_last_view then base.growth_level else 0 end,
      2, v_size)
    on conflict (tenant, idempotency_key) where idempotency_key is not null do nothing
    returning * into v_run;
  if v_run.id is null then
    v_found := capstan.run_of_key(base.tenant, derive_run.idempotency_key, derive_run.digest);
    if v_found.id is null then
      raise exception 'another transaction has just used idempotency key %', derive_run.idempotency_key using errcode = '40001', hint = 'Begin the transaction again.';
    end if;
    return v_found.id;
  end if;
  insert into capstan.events (run_id, at, append_id, seq, turn, fencing_token, view_epoch, size, version, attempt, type, origin, actor, payload)
    values (v_id, v_now, (random() * 2147483647)::int, 1, v_last.turn, 0, v_epoch, v_size, 1, 0, 'run.created', case when not v_is_next then v_first.origin end, derive_run.actor, v_payload);
  -- What the inherited view points to can be read, and stays as long as this run does.
  insert into capstan.blob_refs (tenant, sha256, run_id) select b.tenant, b.sha256, v_id from capstan.blob_refs b where b.run_id = base.id on conflict do nothing;
  if not v_is_next and derive_run.input is not null then perform capstan.send(v_id, derive_run.input, actor => derive_run.actor); end if;
  if v_run.concurrency_key is null then perform capstan.wish_for(v_run, coalesce(v_run.run_at, v_now));
  else perform capstan.enter_key(v_run, 'queue', v_now); end if;
  return v_id;
end $$;
--> statement-breakpoint
-- The run that has an idempotency key already; refuses a key that was used for something else.
CREATE FUNCTION capstan.run_of_key(tenant text, idempotency_key text, digest bytea) RETURNS capstan.runs LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
declare v_run capstan.runs;
begin
  select * into v_run from capstan.runs r where r.tenant = run_of_key.tenant and r.idempotency_key = run_of_key.idempotency_key;
  if found and v_run.input_digest is distinct from run_of_key.digest then
    raise exception 'idempotency key % of tenant % belongs to run %, which was asked for otherwise', run_of_key.idempotency_key, run_of_key.tenant, v_run.id
      using errcode = 'KC001', detail = v_run.id::text, hint = 'Use a new key, or ask for the same again to get the same run.';
  end if;
  return v_run;
end $$;
--> statement-breakpoint
-- A new run whose view begins with this one's up to event `at` (the last place where that is possible, when it is null).
-- `input` is shown behind it as the user's message. Tools may do again what they did in the base behind that event.
-- `options`: priority, pool, labels, metadata, run_at, deadline, traceparent, tracestate; what is not given is the base's, but
-- for deadline (the definition's) and traceparent.
CREATE FUNCTION capstan.fork_run(
  run_id uuid,
  at int default null,
  input jsonb default null,
  definition_sha text default null,
  compaction jsonb default null,
  interactive boolean default null,
  idempotency_key text default null,
  options jsonb default null,
  actor text default null,
  budget jsonb default null
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare
  v_base capstan.runs;
  v_found capstan.runs;
  v_digest bytea := sha256(convert_to((jsonb_build_array('fork', fork_run.run_id, fork_run.at, fork_run.input, fork_run.definition_sha, fork_run.compaction, fork_run.interactive)
    || case when fork_run.budget is null then '[]' else jsonb_build_array(fork_run.budget) end)::text, 'UTF8'));
begin
  select * into v_base from capstan.runs r where r.id = fork_run.run_id for key share;
  if not found then raise exception 'no run %', fork_run.run_id using errcode = 'KC002'; end if;
  if fork_run.idempotency_key is not null then
    v_found := capstan.run_of_key(v_base.tenant, fork_run.idempotency_key, v_digest);
    if v_found.id is not null then return v_found.id; end if;
  end if;
  return capstan.derive_run(v_base, 'fork', fork_run.at, fork_run.input, coalesce(fork_run.definition_sha, v_base.definition_sha), fork_run.compaction, fork_run.interactive, null,
    fork_run.idempotency_key, v_digest, fork_run.options, fork_run.actor, null, fork_run.budget);
end $$;
--> statement-breakpoint
-- Starts a failed or cancelled run again from its last good place, as a run of its own. While that one has not ended, asking
-- again gives it again; with `once` also when it has ended. The last run of a conversation is followed by its retry there, too.
CREATE FUNCTION capstan.retry_run(run_id uuid, definition_sha text default null, once boolean default false, options jsonb default null, actor text default null,
  compaction jsonb default null, budget jsonb default null) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare
  v_base capstan.runs;
  v_id uuid;
  v_times int;
  v_conversation uuid;
begin
  select * into v_base from capstan.runs r where r.id = retry_run.run_id for key share;
  if not found then raise exception 'no run %', retry_run.run_id using errcode = 'KC002'; end if;
  if v_base.state not in ('failed', 'cancelled') then
    raise exception 'run % has not failed (%)', retry_run.run_id, coalesce(v_base.wait_reason, v_base.state) using errcode = 'KC018',
      hint = case when v_base.finished_at is null then 'It is still to end; cancel it first, or fork it.' else 'Fork it to go on from one of its events.' end;
  end if;
  select r.id into v_id from capstan.runs r where r.forked_from_run = v_base.id and r.origin = 'retry' and (retry_run.once or r.finished_at is null) order by r.id limit 1;
  if found then return v_id; end if;
  -- Not by their count: retention may have taken some of them.
  select coalesce(max(substring(r.idempotency_key from ':(\d+)$')::int), 0) + 1 into v_times from capstan.runs r where r.forked_from_run = v_base.id and r.origin = 'retry';
  select c.id into v_conversation from capstan.conversations c where c.id = v_base.conversation_id and c.last_run_id = v_base.id for no key update;
  v_id := capstan.derive_run(v_base, 'retry', null, null, coalesce(retry_run.definition_sha, v_base.definition_sha), retry_run.compaction, null, v_conversation,
    'retry:' || v_base.id || ':' || v_times, sha256(convert_to('retry:' || v_base.id, 'UTF8')), retry_run.options, retry_run.actor, null, retry_run.budget);
  update capstan.conversations c set last_run_id = v_id, updated_at = capstan.now() where c.id = v_conversation;
  return v_id;
end $$;
--> statement-breakpoint
CREATE FUNCTION capstan.create_conversation(
  agent text,
  tenant text default 'default',
  subject text default null,
  title text default null,
  budget jsonb default null,
  metadata jsonb default null
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare v_id uuid := capstan.uuid_v7();
begin
  if create_conversation.agent is null or create_conversation.agent !~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$' then
    raise exception 'agent % is not a name: use 1 to 64 of A-Z a-z 0-9 _ . - and begin with a letter or digit', coalesce(create_conversation.agent, 'null') using errcode = 'KC006';
  end if;
  if create_conversation.tenant is null or length(create_conversation.tenant) not between 1 and 200 then raise exception 'tenant must have 1 to 200 characters' using errcode = 'KC006'; end if;
  if length(create_conversation.title) not between 1 and 500 then raise exception 'title must have 1 to 500 characters' using errcode = 'KC006'; end if;
  if create_conversation.budget is not null then
    if jsonb_typeof(create_conversation.budget) <> 'object' or create_conversation.budget - '{max_tokens,summarizer}'::text[] <> '{}'
      or coalesce(jsonb_typeof(create_conversation.budget -> 'max_tokens'), '') <> 'number' or coalesce(jsonb_typeof(create_conversation.budget -> 'summarizer'), 'string') <> 'string' then
      raise exception 'budget is {"max_tokens": n, "summarizer": name}, the second if wanted' using errcode = 'KC006';
    end if;
    if (create_conversation.budget ->> 'max_tokens')::numeric not between 512 and 2147483647 or (create_conversation.budget ->> 'max_tokens')::numeric % 1 <> 0 then
      raise exception 'budget.max_tokens is a whole number from 512 on, not %', create_conversation.budget ->> 'max_tokens' using errcode = 'KC006';
    end if;
  end if;
  insert into capstan.conversations (id, tenant, agent, subject, title, budget, metadata, created_at, updated_at)
    values (v_id, create_conversation.tenant, create_conversation.agent, create_conversation.subject, create_conversation.title, create_conversation.budget,
      create_conversation.metadata, capstan.now(), capstan.now());
  return v_id;
end $$;
--> statement-breakpoint
-- What was stored for one run is another's. Gives that other one.
CREATE FUNCTION capstan.give_blobs(from_run uuid, to_run uuid) RETURNS uuid LANGUAGE plpgsql AS $$
begin
  if from_run is distinct from to_run then
    insert into capstan.blob_refs (tenant, sha256, run_id) select b.tenant, b.sha256, to_run from capstan.blob_refs b where b.run_id = from_run on conflict do nothing;
    delete from capstan.blob_refs b where b.run_id = from_run;
  end if;
  return to_run;
end $$;
--> statement-breakpoint
-- The next message of a conversation: starts its next run, which begins with the view of the last one; an interactive last
-- run that waits for input takes it itself. Gives the run. Sent again with the same key it is the same message. `run_id` is for
-- callers who had to name the run before: blobs that they stored for it become those of the run that takes the message.
CREATE FUNCTION capstan.continue_conversation(
  conversation_id uuid,
  input jsonb,
  idempotency_key text default null,
  definition_sha text default null,
  compaction jsonb default null,
  interactive boolean default null,
  options jsonb default null,
  actor text default null,
  run_id uuid default null,
  budget jsonb default null
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare
  v_conversation capstan.conversations;
  v_options jsonb := coalesce(continue_conversation.options, '{}');
  v_last capstan.runs;
  v_found capstan.runs;
  v_sha text := continue_conversation.definition_sha;
  v_interactive boolean := continue_conversation.interactive;
  v_id uuid;
  v_compaction jsonb := continue_conversation.compaction;
  v_digest bytea := sha256(convert_to(jsonb_build_array('continue', continue_conversation.conversation_id, continue_conversation.input)::text, 'UTF8'));
begin
  if continue_conversation.input is null then raise exception 'input is null; give a JSON value (''null''::jsonb for none)' using errcode = 'KC006'; end if;
  select * into v_conversation from capstan.conversations c where c.id = continue_conversation.conversation_id for update;
  if not found then raise exception 'no conversation %', continue_conversation.conversation_id using errcode = 'KC016'; end if;
  if continue_conversation.idempotency_key is not null then
    v_found := capstan.run_of_key(v_conversation.tenant, continue_conversation.idempotency_key, v_digest);
    if v_found.id is not null then return capstan.give_blobs(continue_conversation.run_id, v_found.id); end if;
    select i.run_id into v_id from capstan.inbox i join capstan.runs r on r.id = i.run_id
      where r.conversation_id = v_conversation.id and i.dedupe_key = continue_conversation.idempotency_key;
    if found then return capstan.give_blobs(continue_conversation.run_id, v_id); end if;
  end if;
  if v_conversation.last_run_id is not null then
    select * into v_last from capstan.runs r where r.id = v_conversation.last_run_id for key share;
    if v_last.state = 'waiting' and v_last.wait_reason = 'input' then
      perform capstan.send(v_last.id, continue_conversation.input, dedupe_key => continue_conversation.idempotency_key, actor => continue_conversation.actor);
      update capstan.conversations c set updated_at = capstan.now() where c.id = v_conversation.id;
      return capstan.give_blobs(continue_conversation.run_id, v_last.id);
    end if;
    if v_last.finished_at is null then
      raise exception 'run % of conversation % is still to end (%)', v_last.id, v_conversation.id, coalesce(v_last.wait_reason, v_last.state)
        using errcode = 'KC015', detail = v_last.id::text, hint = 'Send again when it has ended; or steer it, or cancel it.';
    end if;
  end if;
  -- A thread with a budget is carried by a rolling summary: each of its runs compacts what came before from there on.
  if v_conversation.budget is not null then
    v_compaction := jsonb_strip_nulls(jsonb_build_object('enabled', true, 'at_tokens', v_conversation.budget -> 'max_tokens', 'summarizer', v_conversation.budget -> 'summarizer'))
      || coalesce(v_compaction, '{}');
  end if;
  -- As an enqueue by name: a new message is answered by the agent as it is now.
  if v_sha is null then
    if exists (select from capstan.agents a where a.name = v_conversation.agent and a.retired_at is not null) then
      raise exception 'agent % is retired and no run is started by its name; bring it back with: capstan agents unretire %', v_conversation.agent, v_conversation.agent using errcode = 'KC006';
    end if;
    select a.promoted_sha into v_sha from capstan.agents a where a.name = v_conversation.agent;
  end if;
  if v_interactive is null then select (d.definition ->> 'interactive')::boolean into v_interactive from capstan.agent_definitions d where d.sha = v_sha; end if;
  if v_last.id is null then
    v_id := capstan.create_run(agent => v_conversation.agent, input => continue_conversation.input, tenant => v_conversation.tenant, idempotency_key => continue_conversation.idempotency_key,
      priority => coalesce((v_options ->> 'priority')::int, 0), run_at => (v_options ->> 'run_at')::timestamptz, deadline => (v_options ->> 'deadline')::timestamptz,
      interactive => v_interactive, metadata => v_options -> 'metadata',
      labels => (select array_agg(l.label order by l.n) from jsonb_array_elements_text(v_options -> 'labels') with ordinality l(label, n)),
      subject => v_conversation.subject, pool => coalesce(v_options ->> 'pool', 'turn'), definition_sha => v_sha, traceparent => v_options ->> 'traceparent',
      tracestate => v_options ->> 'tracestate', actor => continue_conversation.actor, run_id => continue_conversation.run_id,
      compaction => v_compaction, budget => continue_conversation.budget, created => jsonb_build_object('conversation_id', v_conversation.id));
    update capstan.runs r set conversation_id = v_conversation.id, input_digest = v_digest where r.id = v_id;
  else
    v_id := capstan.derive_run(v_last, 'continue', null, continue_conversation.input, coalesce(v_sha, v_last.definition_sha), v_compaction,
      coalesce(v_interactive, false), v_conversation.id, continue_conversation.idempotency_key, v_digest, v_options, continue_conversation.actor, continue_conversation.run_id, continue_conversation.budget);
  end if;
  update capstan.conversations c set last_run_id = v_id, updated_at = capstan.now() where c.id = v_conversation.id;
  return v_id;
end $$;
