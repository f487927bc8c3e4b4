-- Tokens, audit, roles.
-- Roles (docs/sql.md#rights). Members of `<schema>_enqueuer` call what enqueues and steers runs and read no table: these
-- functions run with their owner's rights. A role can be pinned to tenants: what it calls then reaches no other tenant's runs,
-- which look like none at all (KC002, KC010), and naming another tenant is refused: KC021. Who calls is the session's login
-- with the roles that it can use, neither of which a session can change; a setting would be the caller's to choose.

-- The tenants that the session is pinned to; null: none, it may reach all of them. A superuser is a member of every role and
-- pinned by none but its own name.
CREATE FUNCTION capstan.pinned_tenants() RETURNS text[] LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  select case when exists (select from capstan.role_tenants) then (
    select array_agg(distinct t.tenant) from capstan.role_tenants t join pg_roles r on r.rolname = t.role
    where t.role = session_user
      or (not (select s.rolsuper from pg_roles s where s.rolname = session_user)
        -- With 16 a membership may be one by which its holder only hands the role on.
        and pg_has_role(session_user, r.oid, case when current_setting('server_version_num')::int >= 160000 then 'USAGE, SET' else 'MEMBER' end))) end
$$;
--> statement-breakpoint
CREATE FUNCTION capstan.reaches(tenant text) RETURNS boolean LANGUAGE sql STABLE AS $$
  select coalesce(reaches.tenant = any(capstan.pinned_tenants()), true)
$$;
--> statement-breakpoint
-- For the owner: others may not write the table. Several tenants are several pins.
CREATE FUNCTION capstan.pin_role(role text, tenant text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
begin
  if not exists (select from pg_catalog.pg_roles r where r.rolname = pin_role.role) then
    raise exception 'there is no role %', coalesce(pin_role.role, 'null') using errcode = 'KC006', hint = 'Create it first: create role ... login in role ..._enqueuer.';
  end if;
  if pin_role.tenant is null or length(pin_role.tenant) not between 1 and 200 then raise exception 'tenant must have 1 to 200 characters' using errcode = 'KC006'; end if;
  insert into capstan.role_tenants (role, tenant) values (pin_role.role, pin_role.tenant) on conflict do nothing;
  if found then insert into capstan.audit_log (tenant, actor, action, target) values (pin_role.tenant, session_user, 'role.pin', pin_role.role); end if;
end $$;
--> statement-breakpoint
-- Without a tenant: from all of them, and the role reaches every tenant again. Gives how many pins were removed.
CREATE FUNCTION capstan.unpin_role(role text, tenant text default null) RETURNS int LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare v_count int;
begin
  with removed as (
    delete from capstan.role_tenants t where t.role = unpin_role.role and (unpin_role.tenant is null or t.tenant = unpin_role.tenant) returning t.tenant
  ), audited as (
    insert into capstan.audit_log (tenant, actor, action, target) select r.tenant, session_user, 'role.unpin', unpin_role.role from removed r
  )
  select count(*) into v_count from removed;
  return v_count;
end $$;
--> statement-breakpoint
-- Many runs at once, all or none: a JSON array of objects whose members are the arguments of enqueue_run. Gives their ids in
-- the array's order. A refusal names the run by its place, from 0.
CREATE FUNCTION capstan.enqueue_runs(runs jsonb) RETURNS uuid[] LANGUAGE plpgsql AS $$
#variable_conflict use_variable
declare
  v_known text[] := '{agent,input,tenant,idempotency_key,priority,run_at,deadline,interactive,metadata,labels,subject,pool,definition_sha,concurrency_key,traceparent,tracestate,actor,run_id,concurrency_limit,concurrency_scope,on_conflict,compaction,budget}';
  v_ids uuid[];
  v_item jsonb;
  v_n int;
  v_strange text;
  v_message text;
  v_detail text;
  v_hint text;
begin
  if jsonb_typeof(runs) is distinct from 'array' then raise exception 'runs is not a JSON array' using errcode = 'KC006'; end if;
  if jsonb_array_length(runs) > 1000 then
    raise exception 'runs has % members and may have 1000', jsonb_array_length(runs) using errcode = 'KC006', hint = 'Enqueue them in several calls; one transaction may hold them all.';
  end if;
  v_ids := array_fill(null::uuid, array[jsonb_array_length(runs)]);
  -- In one order for all callers: two batches that name the same idempotency keys must not wait for each other in a circle.
  for v_item, v_n in
    select e.item, e.n::int - 1 from jsonb_array_elements(runs) with ordinality e(item, n)
    order by coalesce(e.item ->> 'tenant', 'default') || ' ' || coalesce(e.item ->> 'idempotency_key', '') collate "C", e.n
  loop
    begin
      if jsonb_typeof(v_item) <> 'object' then raise exception 'is not a JSON object' using errcode = 'KC006'; end if;
      select k into v_strange from jsonb_object_keys(v_item) k where k <> all(v_known) limit 1;
      if found then raise exception '% is not an argument of enqueue_run', v_strange using errcode = 'KC006', hint = 'There are ' || array_to_string(v_known, ', ') || '.'; end if;
      v_ids[v_n + 1] := capstan.enqueue_run(agent => v_item ->> 'agent', input => v_item -> 'input', tenant => coalesce(v_item ->> 'tenant', 'default'),
        idempotency_key => v_item ->> 'idempotency_key', priority => coalesce((v_item ->> 'priority')::int, 0), run_at => (v_item ->> 'run_at')::timestamptz,
        deadline => (v_item ->> 'deadline')::timestamptz, interactive => (v_item ->> 'interactive')::boolean, metadata => nullif(v_item -> 'metadata', 'null'),
        labels => case when jsonb_typeof(v_item -> 'labels') = 'array' then array(select l.label from jsonb_array_elements_text(v_item -> 'labels') with ordinality l(label, n) order by l.n) end,
        subject => v_item ->> 'subject', pool => coalesce(v_item ->> 'pool', 'turn'), definition_sha => v_item ->> 'definition_sha', concurrency_key => v_item ->> 'concurrency_key',
        traceparent => v_item ->> 'traceparent', tracestate => v_item ->> 'tracestate', actor => v_item ->> 'actor', run_id => (v_item ->> 'run_id')::uuid,
        concurrency_limit => (v_item ->> 'concurrency_limit')::int, concurrency_scope => v_item ->> 'concurrency_scope', on_conflict => v_item ->> 'on_conflict',
        compaction => nullif(v_item -> 'compaction', 'null'), budget => nullif(v_item -> 'budget', 'null'));
    exception when others then
      get stacked diagnostics v_message = message_text, v_detail = pg_exception_detail, v_hint = pg_exception_hint;
      raise exception using errcode = sqlstate, message = 'runs[' || v_n || ']: ' || v_message, detail = v_detail, hint = v_hint;
    end;
  end loop;
  return v_ids;
end $$;
--> statement-breakpoint
-- How these runs have ended, for who waits for many: a row for each that has, and one without a state for each that there is not.
CREATE FUNCTION capstan.run_ends(ids uuid[]) RETURNS TABLE (id uuid, state text, payload json) LANGUAGE sql STABLE AS $$
  select x.id, r.state, e.payload from unnest(run_ends.ids) as x(id) left join capstan.runs r on r.id = x.id and capstan.reaches(r.tenant)
  left join lateral (
    select e.payload from capstan.events e where e.run_id = r.id and e.type in ('run.completed', 'run.failed', 'run.cancelled') order by e.seq desc limit 1) e on true
  where r.id is null or r.finished_at is not null
$$;
--> statement-breakpoint
-- Whoever may call these needs no right on what they touch. A caller's search_path finds nothing of theirs, and the setting that
-- switches the journal's triggers off counts only for sessions that may write the tables themselves.
ALTER FUNCTION capstan.enqueue_run SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
--> statement-breakpoint
ALTER FUNCTION capstan.enqueue_runs SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
--> statement-breakpoint
ALTER FUNCTION capstan.send SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
--> statement-breakpoint
ALTER FUNCTION capstan.cancel_run SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
--> statement-breakpoint
ALTER FUNCTION capstan.run_status SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
--> statement-breakpoint
ALTER FUNCTION capstan.run_ends SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
--> statement-breakpoint
ALTER FUNCTION capstan.decide SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
--> statement-breakpoint
ALTER FUNCTION capstan.answer SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
--> statement-breakpoint
ALTER FUNCTION capstan.signal SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
--> statement-breakpoint
ALTER FUNCTION capstan.compact_run SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
--> statement-breakpoint
-- The API says once per transaction by which token something is done; lines that other functions write in it then name it too.
CREATE FUNCTION capstan.audit_token() RETURNS trigger LANGUAGE plpgsql AS $$
begin
  new.token_id := nullif(current_setting('capstan_audit.token', true), '')::uuid;
  return new;
end $$;
--> statement-breakpoint
CREATE TRIGGER audit_log_token BEFORE INSERT ON capstan.audit_log FOR EACH ROW WHEN (new.token_id is null) EXECUTE FUNCTION capstan.audit_token();
