-- What goes, and what must stay (docs/retention.md). Lock order: conversation, then runs, then what is theirs; nothing here
-- waits for a lock of a run: one that somebody holds (a fork at this moment, an input) stays until the next time. SQLSTATEs:
-- KC006 a call that cannot be meant; KC023 a partition that holds what must stay.

-- Why a run stays, whatever refers to it; null when it may go. What was asked for before `ended_before` and never done (a
-- compaction, a webhook) keeps nothing for ever. The end of parents and children is final, so that it needs no lock.
CREATE FUNCTION capstan.kept_because(run capstan.runs, ended_before timestamptz, with_conversations boolean) RETURNS text LANGUAGE sql STABLE AS $$
  select case
    when run.finished_at is null then 'not_ended'
    when run.finished_at >= ended_before then 'young'
    when run.hold then 'hold'
    when exists (select from capstan.runs p where p.id = run.parent_run_id and p.finished_at is null) then 'parent_alive'
    when exists (select from capstan.runs c where c.parent_run_id = run.id and c.finished_at is null) then 'child_alive'
    when exists (select from capstan.compaction_tasks t where t.run_id = run.id and t.state in ('requested', 'summarizing', 'ready') and t.requested_at > run.finished_at
        and (ended_before is null or t.requested_at >= ended_before))
      or exists (select from capstan.inbox i where i.run_id = run.id and i.applied_seq is null and i.kind = 'compact' and (ended_before is null or i.at >= ended_before)) then 'compaction'
    when exists (select from capstan.webhook_deliveries d where d.run_id = run.id and d.next_at is not null and (ended_before is null or d.at >= ended_before)) then 'webhook'
    when exists (select from capstan.conversations c where c.id = run.conversation_id and c.last_run_id = run.id
        and not (with_conversations and (ended_before is null or c.updated_at < ended_before))) then 'conversation'
  end
$$;
--> statement-breakpoint
-- The runs of a set that runs outside of it begin with. Their events are read through the reference and copied nowhere.
CREATE FUNCTION capstan.bases_needed(ids uuid[]) RETURNS uuid[] LANGUAGE sql STABLE AS $$
  select array_agg(n.id) from (
    select f.forked_from_run as id from capstan.runs f where f.forked_from_run = any(ids) and f.id <> all(ids)
    union
    select c.continued_from_run from capstan.runs c where c.continued_from_run = any(ids) and c.id <> all(ids)
  ) n
$$;
--> statement-breakpoint
-- What runs have used is added to their tenant's days before they go. In the order of the key: two that do so at once must
-- not wait for each other in a circle.
CREATE FUNCTION capstan.roll_up_usage(ids uuid[]) RETURNS void LANGUAGE sql AS $$
  insert into capstan.usage_rollup as u (tenant, day, agent, model, kind, calls, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd_micros)
    select g.tenant, (g.at at time zone 'UTC')::date, g.agent, coalesce(g.model, ''), g.kind, count(*), sum(g.input_tokens), sum(g.output_tokens),
      sum(g.cache_read_tokens), sum(g.cache_write_tokens), sum(g.cost_usd_micros)
    from capstan.usage g where g.run_id = any(ids) group by 1, 2, 3, 4, 5 order by 1, 2, 3, 4, 5
    on conflict (tenant, day, agent, model, kind) do update set calls = u.calls + excluded.calls, input_tokens = u.input_tokens + excluded.input_tokens,
      output_tokens = u.output_tokens + excluded.output_tokens, cache_read_tokens = u.cache_read_tokens + excluded.cache_read_tokens,
      cache_write_tokens = u.cache_write_tokens + excluded.cache_write_tokens, cost_usd_micros = u.cost_usd_micros + excluded.cost_usd_micros
$$;
--> statement-breakpoint
-- Usage by day (UTC), of runs that are there and of those that are gone.
CREATE VIEW capstan.usage_by_day AS
  select d.tenant, d.day, d.agent, d.model, d.kind, sum(d.calls)::bigint as calls, sum(d.input_tokens)::bigint as input_tokens, sum(d.output_tokens)::bigint as output_tokens,
    sum(d.cache_read_tokens)::bigint as cache_read_tokens, sum(d.cache_write_tokens)::bigint as cache_write_tokens, sum(d.cost_usd_micros)::bigint as cost_usd_micros
  from (
    select g.tenant, (g.at at time zone 'UTC')::date as day, g.agent, coalesce(g.model, '') as model, g.kind, 1 as calls, g.input_tokens, g.output_tokens, g.cache_read_tokens, g.cache_write_tokens, g.cost_usd_micros
    from capstan.usage g
    union all
    select u.tenant, u.day, u.agent, u.model, u.kind, u.calls, u.input_tokens, u.output_tokens, u.cache_read_tokens, u.cache_write_tokens, u.cost_usd_micros from capstan.usage_rollup u
  ) d group by 1, 2, 3, 4, 5;
--> statement-breakpoint
-- Rows of runs that are locked and may go, and how many bytes: `{table: {rows, bytes}}`. For our own functions.
CREATE FUNCTION capstan.delete_rows_of(ids uuid[], with_events boolean) RETURNS jsonb LANGUAGE plpgsql AS $$
declare
  v_tables jsonb := '{}';
  v_table text;
  v_rows bigint;
  v_bytes bigint;
begin
  perform capstan.roll_up_usage(ids);
  update capstan.schedules s set last_run_id = null from (select k.tenant, k.name from capstan.schedules k where k.last_run_id = any(ids) for update skip locked) l
    where s.tenant = l.tenant and s.name = l.name;
  perform set_config('capstan_retention.running', 'on', true);
  foreach v_table in array array['webhook_deliveries', 'waits', 'signals', 'inbox', 'compaction_tasks', 'usage_ledger', 'wishes', 'blob_refs', 'events', 'runs'] loop
    continue when v_table = 'events' and not with_events;
    execute format('with gone as (delete from capstan.%I t where t.%I = any($1) returning %s as bytes) select count(*), coalesce(sum(bytes), 0) from gone',
        v_table, case v_table when 'runs' then 'id' else 'run_id' end, case v_table when 'events' then 't.size' else 'pg_column_size(t.*)' end)
      into v_rows, v_bytes using ids;
    v_tables := v_tables || jsonb_build_object(v_table, jsonb_build_object('rows', v_rows, 'bytes', v_bytes));
  end loop;
  perform set_config('capstan_retention.running', '', true);
  return v_tables;
end $$;
--> statement-breakpoint
-- Deletes those of some runs that may go, with everything that is theirs, and says of the others why they stay:
-- {deleted: [id], kept: {id: reason}, tables: {name: {rows, bytes}}, blobs: [{tenant, sha256}]}, the last being contents that
-- nothing refers to any more (capstan.delete_blobs). `last_seqs`: what was written down of each run; one that has grown since
-- stays. `erasing`: an end is enough, and only a hold or what begins with it keeps it. `dry_run` only says what would be.
CREATE FUNCTION capstan.delete_runs(
  ids uuid[],
  ended_before timestamptz default null,
  with_conversations boolean default false,
  erasing boolean default false,
  last_seqs int[] default null,
  dry_run boolean default false
) RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
declare
  v_conversations uuid[];
  v_locked uuid[];
  v_going uuid[];
  v_needed uuid[];
  v_kept jsonb;
  v_blobs jsonb;
  v_tables jsonb;
  v_threads int;
begin
  if cardinality(ids) > 1000 then raise exception 'at most 1000 runs are deleted at once' using errcode = 'KC006', hint = 'Delete them in several calls.'; end if;
  if last_seqs is not null and cardinality(last_seqs) <> cardinality(ids) then raise exception 'last_seqs has another length than ids' using errcode = 'KC006'; end if;
  -- With an older snapshot a fork that was made before the locks are taken would not be seen.
  if current_setting('transaction_isolation') <> 'read committed' then raise exception 'runs are deleted under read committed only' using errcode = 'KC006'; end if;
  select coalesce(array_agg(l.id), '{}') into v_conversations from (
    select c.id from capstan.conversations c where c.last_run_id = any(ids) and c.id in (select r.conversation_id from capstan.runs r where r.id = any(ids)) order by c.id for update skip locked
  ) l;
  select coalesce(array_agg(l.id), '{}') into v_locked from (select r.id from capstan.runs r where r.id = any(ids) order by r.id for update skip locked) l;
  -- From here on no run can be forked, held, continued or compacted under our hands; what was before is seen.
  select coalesce(array_agg(k.id) filter (where k.reason is null), '{}'), coalesce(jsonb_object_agg(k.id, k.reason) filter (where k.reason is not null), '{}') into v_going, v_kept
    from (
      select r.id, case
          when r.next_seq - 1 <> last_seqs[array_position(ids, r.id)] then 'changed'
          when exists (select from capstan.conversations c where c.id = r.conversation_id and c.last_run_id = r.id and c.id <> all(v_conversations)) then 'locked'
          when not erasing then capstan.kept_because(r, ended_before, with_conversations)
          when r.hold then 'hold'
          when r.finished_at is null then 'not_ended' end as reason
      from capstan.runs r where r.id = any(v_locked)
    ) k;
  select v_kept || coalesce(jsonb_object_agg(g.id, case when exists (select from capstan.runs r where r.id = g.id) then 'locked' else 'missing' end), '{}') into v_kept
    from unnest(ids) g(id) where g.id <> all(v_locked);
  loop
    v_needed := capstan.bases_needed(v_going);
    exit when v_needed is null;
    select v_kept || jsonb_object_agg(n.id, 'referenced') into v_kept from unnest(v_needed) n(id);
    v_going := array(select unnest(v_going) except select unnest(v_needed));
  end loop;
  if dry_run then return jsonb_build_object('deleted', to_jsonb(v_going), 'kept', v_kept, 'blobs', '[]'::jsonb, 'tables', '{}'::jsonb); end if;
  select coalesce(jsonb_agg(distinct jsonb_build_object('tenant', b.tenant, 'sha256', b.sha256)), '[]') into v_blobs from capstan.blob_refs b
    where b.run_id = any(v_going)
      and not exists (select from capstan.blob_refs o where o.tenant = b.tenant and o.sha256 = b.sha256 and o.run_id <> all(v_going));
  v_tables := capstan.delete_rows_of(v_going, true);
  delete from capstan.conversations c where c.id = any(v_conversations) and c.last_run_id = any(v_going);
  get diagnostics v_threads = row_count;
  return jsonb_build_object('deleted', to_jsonb(v_going), 'kept', v_kept, 'blobs', v_blobs,
    'tables', v_tables || jsonb_build_object('conversations', jsonb_build_object('rows', v_threads, 'bytes', 0)));
end $$;
--> statement-breakpoint
REVOKE EXECUTE ON FUNCTION capstan.delete_runs(uuid[], timestamptz, boolean, boolean, int[], boolean) FROM PUBLIC;
--> statement-breakpoint
-- Contents that no run refers to. Whoever stores one takes the tenant's lock as a sharer until its reference is committed
-- (src/store/blobs.ts); this takes it alone and never waits for it: null when somebody stores just now.
CREATE FUNCTION capstan.delete_blobs(tenant text, sha256s text[]) RETURNS jsonb LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare v_gone jsonb;
begin
  if not pg_try_advisory_xact_lock(1667330146, hashtext(delete_blobs.tenant)) then return null; end if;
  with loose as (
    select g.sha256 from unnest(delete_blobs.sha256s) g(sha256) where not exists (select from capstan.blob_refs r where r.tenant = delete_blobs.tenant and r.sha256 = g.sha256)
  ), parts as (
    delete from capstan.blob_chunks c using loose l where c.tenant = delete_blobs.tenant and c.sha256 = l.sha256 returning octet_length(c.bytes) as bytes
  ), heads as (
    delete from capstan.blobs b using loose l where b.tenant = delete_blobs.tenant and b.sha256 = l.sha256 returning 1
  )
  select jsonb_build_object('blobs', (select count(*) from heads), 'parts', (select count(*) from parts), 'bytes', (select coalesce(sum(p.bytes), 0) from parts p)) into v_gone;
  return v_gone;
end $$;
--> statement-breakpoint
-- Entries of the audit log stay and lose what they tell of content: all of a tenant, or those about runs that are gone.
CREATE FUNCTION capstan.strip_audit(tenant text, only_gone boolean) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
declare v_rows bigint;
begin
  perform set_config('capstan_retention.running', 'on', true);
  update capstan.audit_log a set detail = null
    where a.tenant = strip_audit.tenant and a.detail is not null and a.action <> 'erase'
      and (not only_gone or (a.target ~ '^[0-9a-f]{8}-[0-9a-f]{4}-' and not exists (select from capstan.runs r where r.id::text = a.target)));
  get diagnostics v_rows = row_count;
  perform set_config('capstan_retention.running', '', true);
  return v_rows;
end $$;
--> statement-breakpoint
REVOKE EXECUTE ON FUNCTION capstan.strip_audit(text, boolean) FROM PUBLIC;
--> statement-breakpoint
-- Keeps a run, and the runs that it begins with, until it is released: retention and erasure pass them by. False when it
-- was so already.
CREATE FUNCTION capstan.set_hold(run_id uuid, hold boolean, reason text, actor text) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare v_run capstan.runs;
begin
  select * into v_run from capstan.runs r where r.id = set_hold.run_id for no key update;
  if not found then raise exception 'no run %', set_hold.run_id using errcode = 'KC002'; end if;
  if v_run.hold = set_hold.hold then return false; end if;
  update capstan.runs r set hold = set_hold.hold, updated_at = capstan.now() where r.id = set_hold.run_id;
  insert into capstan.audit_log (tenant, actor, action, target, detail)
    values (v_run.tenant, coalesce(set_hold.actor, session_user), case when set_hold.hold then 'run.hold' else 'run.release' end, set_hold.run_id::text,
      case when set_hold.reason is not null then jsonb_build_object('reason', left(set_hold.reason, 1000)) end);
  return true;
end $$;
--> statement-breakpoint
CREATE FUNCTION capstan.hold_run(run_id uuid, reason text default null, actor text default null) RETURNS boolean LANGUAGE sql AS $$
  select capstan.set_hold(hold_run.run_id, true, hold_run.reason, hold_run.actor)
$$;
--> statement-breakpoint
CREATE FUNCTION capstan.release_run(run_id uuid, actor text default null) RETURNS boolean LANGUAGE sql AS $$
  select capstan.set_hold(release_run.run_id, false, null, release_run.actor)
$$;
--> statement-breakpoint
-- Partitions of the journal with their bounds; the default one has none.
CREATE VIEW capstan.event_partitions AS
  select c.relname::text as name, coalesce(substring(b.bound from 'FROM \(''([0-9a-f-]{36})''\)'), case when b.bound like '%FROM (MINVALUE)%' then '00000000-0000-0000-0000-000000000000' end)::uuid as from_id,
    substring(b.bound from 'TO \(''([0-9a-f-]{36})''\)')::uuid as below_id, pg_total_relation_size(c.oid) as bytes
  from pg_inherits i join pg_class c on c.oid = i.inhrelid
  cross join lateral (select pg_get_expr(c.relpartbound, c.oid) as bound) b
  where i.inhparent = 'capstan.events'::regclass;
--> statement-breakpoint
-- Why the runs of a partition stay: `{reason: n}`, empty when all of them may go together.
CREATE FUNCTION capstan.partition_keeps(from_id uuid, below_id uuid, ended_before timestamptz, with_conversations boolean default false) RETURNS jsonb LANGUAGE sql STABLE AS $$
  select coalesce(jsonb_object_agg(k.reason, k.n), '{}') from (
    select x.reason, count(*) as n from (
      select coalesce(capstan.kept_because(r, ended_before, with_conversations), case
          when exists (select from capstan.runs f where f.forked_from_run = r.id and not (f.id >= from_id and f.id < below_id))
            or exists (select from capstan.runs c where c.continued_from_run = r.id and not (c.id >= from_id and c.id < below_id)) then 'referenced' end) as reason
      from capstan.runs r where r.id >= from_id and r.id < below_id
    ) x where x.reason is not null group by x.reason
  ) k
$$;
--> statement-breakpoint
-- Drops a partition with all runs of its range, in one transaction, if every one of them may go; KC023 with the reasons else.
-- `last_seqs` as in capstan.delete_runs: then each run must be among `ids`. The drop itself, for which nobody may be
-- reading or writing the journal, comes last and waits no longer than lock_timeout.
CREATE FUNCTION capstan.drop_partition(
  name text,
  ended_before timestamptz,
  with_conversations boolean default false,
  ids uuid[] default null,
  last_seqs int[] default null
) RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
declare
  v_part capstan.event_partitions;
  v_runs uuid[];
  v_there bigint;
  v_keeps jsonb;
  v_tables jsonb;
  v_events bigint;
  v_blobs jsonb;
begin
  if drop_partition.ended_before is null then raise exception 'ended_before is null' using errcode = 'KC006'; end if;
  if current_setting('transaction_isolation') <> 'read committed' then raise exception 'partitions are dropped under read committed only' using errcode = 'KC006'; end if;
  select * into v_part from capstan.event_partitions p where p.name = drop_partition.name;
  if not found then raise exception 'the journal has no partition %', drop_partition.name using errcode = 'KC006'; end if;
  if v_part.from_id is null or v_part.below_id is null then
    raise exception 'partition % has no bounds on both sides and takes new runs', drop_partition.name using errcode = 'KC006', hint = 'Split it first (docs/scaling.md).';
  end if;
  -- Nobody writes to a range that is past; a run that is given an id of it at this moment must not be dropped unseen.
  execute format('lock table capstan.%I in share row exclusive mode', v_part.name);
  if drop_partition.with_conversations then
    perform from capstan.conversations c join capstan.runs r on r.id = c.last_run_id where r.id >= v_part.from_id and r.id < v_part.below_id order by c.id for update of c;
  end if;
  select coalesce(array_agg(l.id), '{}') into v_runs from (
    select r.id from capstan.runs r where r.id >= v_part.from_id and r.id < v_part.below_id order by r.id for update skip locked
  ) l;
  select count(*) into v_there from capstan.runs r where r.id >= v_part.from_id and r.id < v_part.below_id;
  v_keeps := capstan.partition_keeps(v_part.from_id, v_part.below_id, drop_partition.ended_before, drop_partition.with_conversations);
  if v_there > cardinality(v_runs) then v_keeps := v_keeps || jsonb_build_object('locked', v_there - cardinality(v_runs)); end if;
  if drop_partition.ids is not null then
    select v_keeps || case when count(*) > 0 then jsonb_build_object('changed', count(*)) else '{}' end into v_keeps from capstan.runs r
      left join unnest(drop_partition.ids, drop_partition.last_seqs) g(id, last_seq) on g.id = r.id
      where r.id = any(v_runs) and r.next_seq - 1 is distinct from g.last_seq;
  end if;
  if v_keeps <> '{}' then
    raise exception 'partition % holds runs that must stay: %', drop_partition.name, v_keeps using errcode = 'KC023', detail = v_keeps::text, hint = 'Wait, release them, or delete what may go run by run.';
  end if;
  select coalesce(jsonb_agg(distinct jsonb_build_object('tenant', b.tenant, 'sha256', b.sha256)), '[]') into v_blobs from capstan.blob_refs b where b.run_id = any(v_runs);
  delete from capstan.conversations c where drop_partition.with_conversations and c.last_run_id = any(v_runs);
  v_tables := capstan.delete_rows_of(v_runs, false);
  execute format('select count(*) from capstan.%I', v_part.name) into v_events;
  execute format('drop table capstan.%I', v_part.name);
  return jsonb_build_object('deleted', cardinality(v_runs), 'blobs', v_blobs, 'tables', v_tables || jsonb_build_object('events', jsonb_build_object('rows', v_events, 'bytes', v_part.bytes)));
end $$;
--> statement-breakpoint
REVOKE EXECUTE ON FUNCTION capstan.drop_partition(text, timestamptz, boolean, uuid[], int[]) FROM PUBLIC;
