-- What schedules do and what an operator does with them. Lines are parsed in TypeScript (src/domain/schedule.ts), which
-- says what the ticks are; here is what must happen in one commit. Lock order: schedule, then as capstan.create_run.
-- SQLSTATEs: KC012 no such schedule. `tick` is null for a run that somebody wants now.
CREATE FUNCTION capstan.run_of_schedule(schedule capstan.schedules, tick timestamptz, idempotency_key text, actor text) RETURNS uuid LANGUAGE plpgsql AS $$
declare
  v_options jsonb := coalesce(schedule.options, '{}');
begin
  return capstan.create_run(
    agent => schedule.agent,
    input => schedule.input,
    tenant => schedule.tenant,
    idempotency_key => run_of_schedule.idempotency_key,
    priority => coalesce((v_options ->> 'priority')::int, 0),
    interactive => (v_options ->> 'interactive')::boolean,
    metadata => v_options -> 'metadata',
    labels => (select array_agg(l.label order by l.position) from jsonb_array_elements_text(v_options -> 'labels') with ordinality l(label, position)),
    subject => v_options ->> 'subject',
    pool => coalesce(v_options ->> 'pool', 'turn'),
    concurrency_key => v_options ->> 'concurrency_key',
    concurrency_limit => (v_options ->> 'concurrency_limit')::int,
    concurrency_scope => v_options ->> 'concurrency_scope',
    on_conflict => v_options ->> 'on_conflict',
    compaction => v_options -> 'compaction',
    budget => v_options -> 'budget',
    actor => run_of_schedule.actor,
    created => jsonb_build_object('origin', 'schedule', 'schedule', jsonb_build_object('name', schedule.name,
      'tick', to_char(coalesce(run_of_schedule.tick, capstan.now()) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))));
end $$;
--> statement-breakpoint
-- Starts the runs of these ticks and moves the schedule on, in one commit: whoever moves it has started them. Null when
-- another worker has moved it, or is at it, or it is no longer the schedule that the ticks were reckoned from.
-- A tick that cannot start because of what the schedule says is noted and passed over, since it could not start later
-- either. Every other error (no space, read-only, a deadlock) undoes all of it: the tick is still due.
CREATE FUNCTION capstan.tick_schedule(
  tenant text,
  name text,
  cron text,
  timezone text,
  expected_at timestamptz,
  ticks timestamptz[],
  next_at timestamptz
) RETURNS jsonb LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare
  v_schedule capstan.schedules;
  v_tick timestamptz;
  v_iso text;
  v_run uuid;
  v_runs uuid[] := '{}';
  v_error jsonb;
begin
  select * into v_schedule from capstan.schedules s
    where s.tenant = tick_schedule.tenant and s.name = tick_schedule.name and s.next_at = tick_schedule.expected_at
      and s.cron = tick_schedule.cron and s.timezone = tick_schedule.timezone and not s.paused
    for update skip locked;
  if not found then return null; end if;
  foreach v_tick in array tick_schedule.ticks loop
    v_iso := to_char(v_tick at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"');
    begin
      v_run := capstan.run_of_schedule(v_schedule, v_tick, 'schedule:' || v_schedule.name || ':' || v_iso, 'schedule:' || v_schedule.name);
      v_runs := v_runs || v_run;
    exception when others then
      if sqlstate not like 'KC%' and left(sqlstate, 2) not in ('22', '23') then raise; end if;
      v_error := jsonb_build_object('at', to_char(capstan.now() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), 'tick', v_iso, 'code', sqlstate, 'message', sqlerrm);
    end;
  end loop;
  update capstan.schedules s set
      next_at = tick_schedule.next_at,
      last_tick_at = coalesce(v_tick, s.last_tick_at),
      last_run_id = coalesce(v_runs[cardinality(v_runs)], s.last_run_id),
      last_error = case when v_error is not null then v_error when cardinality(v_runs) > 0 then null else s.last_error end
    where s.tenant = v_schedule.tenant and s.name = v_schedule.name;
  return jsonb_build_object('runs', to_jsonb(v_runs), 'error', v_error);
end $$;
--> statement-breakpoint
-- The row, locked. Raises KC012 when there is none.
CREATE FUNCTION capstan.lock_schedule(tenant text, name text) RETURNS capstan.schedules LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare
  v_schedule capstan.schedules;
begin
  select * into v_schedule from capstan.schedules s where s.tenant = lock_schedule.tenant and s.name = lock_schedule.name for update;
  if not found then
    raise exception 'tenant % has no schedule %', coalesce(lock_schedule.tenant, 'null'), coalesce(lock_schedule.name, 'null')
      using errcode = 'KC012', hint = 'capstan schedules list shows those there are.';
  end if;
  return v_schedule;
end $$;
--> statement-breakpoint
-- No further ticks until it is resumed, by capstan schedules resume or in TypeScript: its next tick is reckoned anew
-- there. False when it was paused already. Runs that it has started go on.
CREATE FUNCTION capstan.pause_schedule(name text, tenant text default 'default', actor text default null) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare
  v_schedule capstan.schedules := capstan.lock_schedule(pause_schedule.tenant, pause_schedule.name);
begin
  if v_schedule.paused then return false; end if;
  update capstan.schedules s set paused = true, next_at = null, updated_at = capstan.now(), actor = coalesce(pause_schedule.actor, s.actor)
    where s.tenant = v_schedule.tenant and s.name = v_schedule.name;
  return true;
end $$;
--> statement-breakpoint
-- Runs that it has started stay as they are.
CREATE FUNCTION capstan.delete_schedule(name text, tenant text default 'default') RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
begin
  perform capstan.lock_schedule(delete_schedule.tenant, delete_schedule.name);
  delete from capstan.schedules s where s.tenant = delete_schedule.tenant and s.name = delete_schedule.name;
end $$;
--> statement-breakpoint
-- One run at once, also of a paused schedule. Its next tick stays where it is.
CREATE FUNCTION capstan.run_schedule(name text, tenant text default 'default', idempotency_key text default null, actor text default null) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare
  v_schedule capstan.schedules := capstan.lock_schedule(run_schedule.tenant, run_schedule.name);
  v_run uuid;
begin
  v_run := capstan.run_of_schedule(v_schedule, null, run_schedule.idempotency_key, run_schedule.actor);
  update capstan.schedules s set last_run_id = v_run where s.tenant = v_schedule.tenant and s.name = v_schedule.name;
  return v_run;
end $$;
