-- tables, columns and storage settings

table agent_definitions
  sha text not null
  name text not null
  definition jsonb not null
  created_at timestamp with time zone not null default capstan.now()

table agent_promotions
  id bigint not null generated always as identity
  name text not null
  sha text not null
  actor text
  at timestamp with time zone not null default capstan.now()

table agents
  name text not null
  promoted_sha text not null
  retired_at timestamp with time zone
  updated_at timestamp with time zone not null default capstan.now()

table api_tokens
  id uuid not null
  name text not null
  hash bytea not null
  tenant text not null
  subject text
  scopes text[] not null
  created_at timestamp with time zone not null default capstan.now()
  expires_at timestamp with time zone
  revoked_at timestamp with time zone
  last_used_at timestamp with time zone

table audit_log
  id bigint not null generated always as identity
  at timestamp with time zone not null default capstan.now()
  tenant text not null
  actor text not null
  token_id uuid
  action text not null
  target text not null
  detail jsonb

table blob_chunks
  tenant text not null
  sha256 text not null
  n integer not null
  bytes bytea not null

table blob_refs
  tenant text not null
  sha256 text not null
  run_id uuid not null

table blobs
  tenant text not null
  sha256 text not null
  size_bytes bigint not null
  media_type text not null
  codec text
  key_id text
  created_at timestamp with time zone not null default capstan.now()

table compaction_tasks
  id uuid not null
  run_id uuid not null
  tenant text not null
  agent text not null
  state text not null
  trigger text not null
  requested_at timestamp with time zone not null
  updated_at timestamp with time zone not null
  due_at timestamp with time zone not null
  dispatched_at timestamp with time zone
  view_epoch integer not null
  from_seq integer not null
  to_seq integer not null
  first_kept_seq integer not null
  worker_id uuid
  fencing_token integer not null default 0
  attempts smallint not null default 0
  deaths smallint not null default 0
  wait_reason text
  request jsonb not null
  result jsonb
  error jsonb

partitioned table events partition by RANGE (run_id)
  run_id uuid not null
  at timestamp with time zone not null
  append_id integer not null
  seq integer not null
  turn integer not null
  fencing_token integer not null
  view_epoch integer not null
  size integer not null
  version smallint not null
  attempt smallint not null
  type text not null
  step_key text
  origin text
  actor text
  inbox_id uuid
  blob_refs text[]
  codec text
  key_id text
  payload json
  payload_sealed bytea

table events_default default of events
  run_id uuid not null
  at timestamp with time zone not null
  append_id integer not null
  seq integer not null
  turn integer not null
  fencing_token integer not null
  view_epoch integer not null
  size integer not null
  version smallint not null
  attempt smallint not null
  type text not null
  step_key text
  origin text
  actor text
  inbox_id uuid
  blob_refs text[]
  codec text
  key_id text
  payload json
  payload_sealed bytea

table inbox
  id uuid not null
  run_id uuid not null
  at timestamp with time zone not null
  kind text not null
  payload jsonb not null
  dedupe_key text
  actor text
  traceparent text
  applied_seq integer

table migrations
  id integer not null default nextval('capstan.migrations_id_seq'::regclass)
  hash text not null
  created_at bigint

table quota_buckets with (fillfactor=50)
  bucket text not null
  window_start timestamp with time zone not null
  window_end timestamp with time zone not null
  leased bigint not null
  last_lease bigint not null

table quota_limits
  scope text not null
  value text not null default '*'::text
  kind text not null
  unit text not null
  window text not null
  amount bigint not null
  updated_at timestamp with time zone not null default capstan.now()

table quota_reservations with (autovacuum_vacuum_scale_factor=0.01, autovacuum_vacuum_threshold=1000)
  id uuid not null
  bucket text not null
  window_start timestamp with time zone not null
  window_end timestamp with time zone not null
  run_id uuid not null
  turn integer not null
  attempt smallint not null
  worker_id uuid not null
  amount bigint not null
  reserved_at timestamp with time zone not null
  settled_at timestamp with time zone
  settled_amount bigint

table quota_slices
  worker_id uuid not null
  bucket text not null
  window_start timestamp with time zone not null
  window_end timestamp with time zone not null
  leased bigint not null
  used bigint not null default 0

table quota_slots with (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000)
  bucket text not null
  slot integer not null
  reservation_id uuid not null
  worker_id uuid not null
  taken_at timestamp with time zone not null

table runs with (autovacuum_analyze_scale_factor=0.05, autovacuum_vacuum_scale_factor=0.01, autovacuum_vacuum_threshold=500, fillfactor=70)
  id uuid not null
  created_at timestamp with time zone not null
  tenant text not null default 'default'::text
  subject text
  kind text not null default 'agent'::text
  agent text not null
  overrides jsonb
  policy jsonb
  grants jsonb
  origin text not null default 'api'::text
  parent_run_id uuid
  parent_call text
  child_index integer
  root_run_id uuid
  depth smallint not null default 0
  conversation_id uuid
  continued_from_run uuid
  continued_from_seq integer
  forked_from_run uuid
  forked_from_seq integer
  interactive boolean not null default false
  pool text not null default 'turn'::text
  priority smallint not null default 0
  concurrency_key text
  labels text[]
  metadata jsonb
  deadline timestamp with time zone
  run_at timestamp with time zone
  traceparent text
  tracestate text
  idempotency_key text
  input_digest bytea
  hold boolean not null default false
  definition_sha text
  paused boolean not null default false
  cancel_requested_at timestamp with time zone
  finished_at timestamp with time zone
  error_code text
  view_marker_seq integer
  context_window integer
  state text not null default 'queued'::text
  wait_reason text
  wake_at timestamp with time zone
  crash_count smallint not null default 0
  retry_count smallint not null default 0
  taken_over boolean not null default false
  growth_level smallint not null default 0
  view_epoch integer not null default 0
  inbox_pending integer not null default 0
  context_scale text
  cost_usd_micros bigint not null default 0
  cache_read_tokens bigint not null default 0
  cache_write_tokens bigint not null default 0
  input_tokens bigint not null default 0
  output_tokens bigint not null default 0
  context_tokens integer
  transcript_bytes bigint not null default 0
  journal_bytes bigint not null default 0
  updated_at timestamp with time zone not null
  next_seq integer not null default 1
  turn integer not null default 0
  fencing_token integer not null default 0
  last_span text
  worker_id uuid

view usage
  run_id uuid
  tenant text
  agent text
  model text
  kind text
  turn integer
  attempt smallint
  at timestamp with time zone
  outcome text
  input_tokens bigint
  output_tokens bigint
  cache_read_tokens bigint
  cache_write_tokens bigint
  cost_usd_micros bigint
  estimated boolean

table usage_ledger
  id uuid not null
  at timestamp with time zone not null
  run_id uuid not null
  tenant text not null
  agent text not null
  model text
  kind text not null
  turn integer not null
  attempt smallint not null
  outcome text not null
  input_tokens bigint not null default 0
  output_tokens bigint not null default 0
  cache_read_tokens bigint not null default 0
  cache_write_tokens bigint not null default 0
  cost_usd_micros bigint not null default 0
  estimated boolean not null default false

table wishes with (autovacuum_vacuum_cost_delay=0, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000)
  run_id uuid not null
  at timestamp with time zone not null
  priority smallint not null
  ready boolean not null
  pool text not null
  agent text not null
  tenant text not null

table workers with (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=200, fillfactor=50)
  id uuid not null
  pool text not null
  host text not null
  pid integer not null
  version text not null
  started_at timestamp with time zone not null
  heartbeat_at timestamp with time zone not null
  lease_ms integer not null
  ended_at timestamp with time zone
  end_reason text
  slots integer not null
  busy integer not null default 0
  queue_pools text[] not null default '{}'::text[]
  agents text[] not null default '{}'::text[]
  tools jsonb
  event_versions jsonb
  labels jsonb

-- constraints
capstan.agent_definitions: agent_definitions_pkey PRIMARY KEY (sha)
capstan.agent_promotions: agent_promotions_pkey PRIMARY KEY (id)
capstan.agents: agents_pkey PRIMARY KEY (name)
capstan.agents: agents_promoted_sha_agent_definitions_sha_fk FOREIGN KEY (promoted_sha) REFERENCES capstan.agent_definitions(sha)
capstan.api_tokens: api_tokens_hash UNIQUE (hash)
capstan.api_tokens: api_tokens_pkey PRIMARY KEY (id)
capstan.audit_log: audit_log_pkey PRIMARY KEY (id)
capstan.blob_chunks: blob_chunks_tenant_sha256_n_pk PRIMARY KEY (tenant, sha256, n)
capstan.blob_refs: blob_refs_tenant_sha256_run_id_pk PRIMARY KEY (tenant, sha256, run_id)
capstan.blobs: blobs_tenant_sha256_pk PRIMARY KEY (tenant, sha256)
capstan.compaction_tasks: compaction_tasks_pkey PRIMARY KEY (id)
capstan.compaction_tasks: compaction_tasks_state CHECK ((state = ANY (ARRAY['requested'::text, 'summarizing'::text, 'ready'::text, 'applied'::text, 'skipped'::text, 'failed'::text, 'superseded'::text])))
capstan.events: events_one_payload CHECK ((((codec IS NULL) = (payload IS NOT NULL)) AND ((codec IS NULL) = (payload_sealed IS NULL))))
capstan.events: events_run_id_seq_pk PRIMARY KEY (run_id, seq)
capstan.events: events_seq CHECK ((seq >= 1))
capstan.events_default: events_default_pkey PRIMARY KEY (run_id, seq)
capstan.events_default: events_one_payload CHECK ((((codec IS NULL) = (payload IS NOT NULL)) AND ((codec IS NULL) = (payload_sealed IS NULL))))
capstan.events_default: events_seq CHECK ((seq >= 1))
capstan.inbox: inbox_pkey PRIMARY KEY (id)
capstan.migrations: migrations_pkey PRIMARY KEY (id)
capstan.quota_buckets: quota_buckets_bucket_window_start_pk PRIMARY KEY (bucket, window_start)
capstan.quota_limits: quota_limits_amount CHECK ((amount >= 0))
capstan.quota_limits: quota_limits_kind CHECK ((kind = ANY (ARRAY['turn'::text, 'summary'::text, 'tool'::text])))
capstan.quota_limits: quota_limits_scope CHECK (((scope = ANY (ARRAY['overall'::text, 'tenant'::text, 'agent'::text, 'model'::text])) AND ((scope <> 'overall'::text) OR (value = '*'::text))))
capstan.quota_limits: quota_limits_scope_value_kind_unit_window_pk PRIMARY KEY (scope, value, kind, unit, "window")
capstan.quota_limits: quota_limits_unit CHECK ((unit = ANY (ARRAY['calls'::text, 'tokens'::text, 'cost_usd_micros'::text, 'concurrent'::text])))
capstan.quota_limits: quota_limits_window CHECK ((("window" = ANY (ARRAY['minute'::text, 'day'::text, 'month'::text, 'none'::text])) AND (("window" = 'none'::text) = (unit = 'concurrent'::text))))
capstan.quota_reservations: quota_reservations_id_bucket_pk PRIMARY KEY (id, bucket)
capstan.quota_reservations: quota_reservations_settled CHECK (((settled_at IS NULL) = (settled_amount IS NULL)))
capstan.quota_slices: quota_slices_worker_id_bucket_window_start_pk PRIMARY KEY (worker_id, bucket, window_start)
capstan.quota_slots: quota_slots_bucket_slot_pk PRIMARY KEY (bucket, slot)
capstan.quota_slots: quota_slots_slot CHECK ((slot >= 1))
capstan.runs: runs_finished_at CHECK (((state = ANY (ARRAY['completed'::text, 'failed'::text, 'cancelled'::text])) = (finished_at IS NOT NULL)))
capstan.runs: runs_finished_unheld CHECK (((finished_at IS NULL) OR (worker_id IS NULL)))
capstan.runs: runs_pkey PRIMARY KEY (id)
capstan.runs: runs_positive CHECK (((fencing_token >= 0) AND (next_seq >= 1) AND (inbox_pending >= 0)))
capstan.runs: runs_state CHECK ((state = ANY (ARRAY['queued'::text, 'running'::text, 'waiting'::text, 'completed'::text, 'failed'::text, 'cancelled'::text])))
capstan.runs: runs_waiting_has_reason CHECK (((state = 'waiting'::text) = (wait_reason IS NOT NULL)))
capstan.usage_ledger: usage_ledger_pkey PRIMARY KEY (id)
capstan.wishes: wishes_pkey PRIMARY KEY (run_id)
capstan.workers: workers_pkey PRIMARY KEY (id)

-- indexes
CREATE UNIQUE INDEX agent_definitions_pkey ON capstan.agent_definitions USING btree (sha)
CREATE INDEX agent_promotions_name ON capstan.agent_promotions USING btree (name, id)
CREATE UNIQUE INDEX agent_promotions_pkey ON capstan.agent_promotions USING btree (id)
CREATE UNIQUE INDEX agents_pkey ON capstan.agents USING btree (name)
CREATE UNIQUE INDEX api_tokens_hash ON capstan.api_tokens USING btree (hash)
CREATE UNIQUE INDEX api_tokens_pkey ON capstan.api_tokens USING btree (id)
CREATE UNIQUE INDEX audit_log_pkey ON capstan.audit_log USING btree (id)
CREATE INDEX audit_log_tenant ON capstan.audit_log USING btree (tenant, id)
CREATE UNIQUE INDEX blob_chunks_tenant_sha256_n_pk ON capstan.blob_chunks USING btree (tenant, sha256, n)
CREATE INDEX blob_refs_run ON capstan.blob_refs USING btree (run_id)
CREATE UNIQUE INDEX blob_refs_tenant_sha256_run_id_pk ON capstan.blob_refs USING btree (tenant, sha256, run_id)
CREATE UNIQUE INDEX blobs_tenant_sha256_pk ON capstan.blobs USING btree (tenant, sha256)
CREATE INDEX compaction_tasks_busy ON capstan.compaction_tasks USING btree (tenant) WHERE ((state = ANY (ARRAY['requested'::text, 'summarizing'::text])) AND (dispatched_at IS NOT NULL))
CREATE UNIQUE INDEX compaction_tasks_one_in_flight ON capstan.compaction_tasks USING btree (run_id) WHERE (state = ANY (ARRAY['requested'::text, 'summarizing'::text, 'ready'::text]))
CREATE UNIQUE INDEX compaction_tasks_pkey ON capstan.compaction_tasks USING btree (id)
CREATE INDEX compaction_tasks_waiting ON capstan.compaction_tasks USING btree (tenant, due_at) WHERE ((state = 'requested'::text) AND (dispatched_at IS NULL))
CREATE UNIQUE INDEX events_default_pkey ON capstan.events_default USING btree (run_id, seq)
CREATE UNIQUE INDEX events_default_run_id_step_key_idx ON capstan.events_default USING btree (run_id, step_key) WHERE (step_key IS NOT NULL)
CREATE UNIQUE INDEX events_run_id_seq_pk ON ONLY capstan.events USING btree (run_id, seq)
CREATE UNIQUE INDEX events_step ON ONLY capstan.events USING btree (run_id, step_key) WHERE (step_key IS NOT NULL)
CREATE UNIQUE INDEX inbox_dedupe ON capstan.inbox USING btree (run_id, dedupe_key) WHERE (dedupe_key IS NOT NULL)
CREATE INDEX inbox_pending ON capstan.inbox USING btree (run_id, id) WHERE (applied_seq IS NULL)
CREATE UNIQUE INDEX inbox_pkey ON capstan.inbox USING btree (id)
CREATE UNIQUE INDEX migrations_pkey ON capstan.migrations USING btree (id)
CREATE UNIQUE INDEX quota_buckets_bucket_window_start_pk ON capstan.quota_buckets USING btree (bucket, window_start)
CREATE UNIQUE INDEX quota_limits_scope_value_kind_unit_window_pk ON capstan.quota_limits USING btree (scope, value, kind, unit, "window")
CREATE UNIQUE INDEX quota_reservations_id_bucket_pk ON capstan.quota_reservations USING btree (id, bucket)
CREATE INDEX quota_reservations_worker ON capstan.quota_reservations USING btree (worker_id)
CREATE UNIQUE INDEX quota_slices_worker_id_bucket_window_start_pk ON capstan.quota_slices USING btree (worker_id, bucket, window_start)
CREATE UNIQUE INDEX quota_slots_bucket_slot_pk ON capstan.quota_slots USING btree (bucket, slot)
CREATE UNIQUE INDEX quota_slots_reservation ON capstan.quota_slots USING btree (reservation_id, bucket)
CREATE INDEX runs_active ON capstan.runs USING btree (state, pool) WHERE (state = ANY (ARRAY['queued'::text, 'running'::text]))
CREATE UNIQUE INDEX runs_child ON capstan.runs USING btree (parent_run_id, parent_call, child_index) WHERE (parent_run_id IS NOT NULL)
CREATE INDEX runs_deadline ON capstan.runs USING btree (deadline) WHERE ((state = 'waiting'::text) AND (deadline IS NOT NULL))
CREATE UNIQUE INDEX runs_idempotency ON capstan.runs USING btree (tenant, idempotency_key) WHERE (idempotency_key IS NOT NULL)
CREATE INDEX runs_input_waits ON capstan.runs USING btree (id) WHERE ((state = 'waiting'::text) AND (inbox_pending > 0))
CREATE UNIQUE INDEX runs_pkey ON capstan.runs USING btree (id)
CREATE INDEX runs_waiting ON capstan.runs USING btree (wait_reason, agent) WHERE (state = 'waiting'::text)
CREATE UNIQUE INDEX usage_ledger_pkey ON capstan.usage_ledger USING btree (id)
CREATE INDEX usage_ledger_run ON capstan.usage_ledger USING btree (run_id)
CREATE INDEX usage_ledger_tenant ON capstan.usage_ledger USING btree (tenant, at)
CREATE INDEX wishes_later ON capstan.wishes USING btree (at) WHERE (NOT ready)
CREATE UNIQUE INDEX wishes_pkey ON capstan.wishes USING btree (run_id)
CREATE INDEX wishes_ready ON capstan.wishes USING btree (pool, priority, at) WHERE ready
CREATE INDEX workers_alive ON capstan.workers USING btree (pool) WHERE (ended_at IS NULL)
CREATE UNIQUE INDEX workers_pkey ON capstan.workers USING btree (id)

-- triggers
CREATE TRIGGER events_append_only BEFORE DELETE OR UPDATE ON capstan.events FOR EACH ROW EXECUTE FUNCTION capstan.refuse_rewrite()
CREATE TRIGGER events_compaction AFTER INSERT ON capstan.events FOR EACH ROW WHEN ((new.type = ANY (ARRAY['compaction.requested'::text, 'compaction.failed'::text, 'context.compacted'::text]))) EXECUTE FUNCTION capstan.follow_compaction()
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON capstan.events FOR EACH STATEMENT EXECUTE FUNCTION capstan.refuse_rewrite()
CREATE TRIGGER events_append_only BEFORE DELETE OR UPDATE ON capstan.events_default FOR EACH ROW EXECUTE FUNCTION capstan.refuse_rewrite()
CREATE TRIGGER events_compaction AFTER INSERT ON capstan.events_default FOR EACH ROW WHEN ((new.type = ANY (ARRAY['compaction.requested'::text, 'compaction.failed'::text, 'context.compacted'::text]))) EXECUTE FUNCTION capstan.follow_compaction()
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON capstan.events_default FOR EACH STATEMENT EXECUTE FUNCTION capstan.refuse_rewrite()

-- functions
CREATE OR REPLACE FUNCTION capstan.cancel_run(run_id uuid, reason text DEFAULT NULL::text, actor text DEFAULT NULL::text)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
declare
  v_now timestamptz := capstan.now();
  v_payload jsonb := jsonb_strip_nulls(jsonb_build_object('reason', cancel_run.reason));
  v_ended boolean := false;
  v_run capstan.runs;
begin
  perform from capstan.runs r where r.id = cancel_run.run_id;
  if not found then raise exception 'no run %', cancel_run.run_id using errcode = 'KC002'; end if;
  for v_run in
    with recursive tree as (
      select r.id from capstan.runs r where r.id = cancel_run.run_id
      union
      select c.id from capstan.runs c join tree t on c.parent_run_id = t.id
    )
    select r.* from capstan.runs r where r.id in (select id from tree) and r.finished_at is null order by r.id for no key update
  loop
    update capstan.runs r set state = 'cancelled', wait_reason = null, wake_at = null, finished_at = v_now, updated_at = v_now, worker_id = null,
        cancel_requested_at = v_now, fencing_token = r.fencing_token + 1, next_seq = r.next_seq + 1,
        journal_bytes = r.journal_bytes + octet_length(v_payload::text), error_code = 'RUN_CANCELLED'
      where r.id = v_run.id;
    insert into capstan.events (run_id, at, append_id, seq, turn, fencing_token, view_epoch, size, version, attempt, type, actor, payload)
      values (v_run.id, v_now, (random() * 2147483647)::int, v_run.next_seq, v_run.turn, v_run.fencing_token + 1, v_run.view_epoch,
        octet_length(v_payload::text), 1, 0, 'run.cancelled', cancel_run.actor, v_payload);
    delete from capstan.wishes w where w.run_id = v_run.id;
    if v_run.id = cancel_run.run_id then v_ended := true; end if;
  end loop;
  return v_ended;
end $function$

CREATE OR REPLACE FUNCTION capstan.compact_run(run_id uuid, at_boundary boolean DEFAULT false, actor text DEFAULT NULL::text)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
declare
  v_id uuid;
  v_run capstan.runs;
begin
  select * into v_run from capstan.runs r where r.id = compact_run.run_id for no key update;
  if not found then raise exception 'no run %', compact_run.run_id using errcode = 'KC002'; end if;
  if v_run.finished_at is not null then
    raise exception 'run % has ended (%)', compact_run.run_id, v_run.state using errcode = 'KC003', hint = 'Its journal stays as it is.';
  end if;
  if not coalesce(compact_run.at_boundary, false) and (v_run.worker_id is not null or v_run.wait_reason in ('approval', 'children')) then
    raise exception 'run % is in the middle of a turn', compact_run.run_id using errcode = 'KC007', hint = 'Ask for it at the next boundary, or again when the run rests.';
  end if;
  select i.id into v_id from capstan.inbox i where i.run_id = compact_run.run_id and i.kind = 'compact' and i.applied_seq is null;
  if found then return v_id; end if;
  v_id := capstan.uuid_v7();
  insert into capstan.inbox (id, run_id, at, kind, payload, actor) values (v_id, compact_run.run_id, capstan.now(), 'compact', '{}', compact_run.actor);
  update capstan.runs set inbox_pending = inbox_pending + 1, updated_at = capstan.now() where id = compact_run.run_id;
  if v_run.state = 'waiting' and v_run.wait_reason in ('input', 'compaction', 'context_exhausted') then perform capstan.wish_for(v_run, capstan.now()); end if;
  return v_id;
end $function$

CREATE OR REPLACE FUNCTION capstan.enqueue_run(agent text, input jsonb, tenant text DEFAULT 'default'::text, idempotency_key text DEFAULT NULL::text, priority integer DEFAULT 0, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, deadline timestamp with time zone DEFAULT NULL::timestamp with time zone, interactive boolean DEFAULT NULL::boolean, metadata jsonb DEFAULT NULL::jsonb, labels text[] DEFAULT NULL::text[], subject text DEFAULT NULL::text, pool text DEFAULT 'turn'::text, definition_sha text DEFAULT NULL::text, concurrency_key text DEFAULT NULL::text, traceparent text DEFAULT NULL::text, tracestate text DEFAULT NULL::text, actor text DEFAULT NULL::text, run_id uuid DEFAULT NULL::uuid)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
declare
  v_id uuid := coalesce(enqueue_run.run_id, capstan.uuid_v7());
  v_now timestamptz := capstan.now();
  v_digest bytea := sha256(convert_to(enqueue_run.input::text, 'UTF8'));
  v_sha text := enqueue_run.definition_sha;
  v_definition jsonb;
  v_interactive boolean;
  v_payload jsonb;
  v_size int;
  v_found capstan.runs;
  v_run capstan.runs;
begin
  if enqueue_run.agent is null or enqueue_run.agent !~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$' then
    raise exception 'agent % is not a name: use 1 to 64 of A-Z a-z 0-9 _ . - and begin with a letter or digit', coalesce(enqueue_run.agent, 'null') using errcode = 'KC006';
  end if;
  if enqueue_run.input is null then raise exception 'input is null; give a JSON value (''null''::jsonb for none)' using errcode = 'KC006'; end if;
  if enqueue_run.pool = 'summarize' then
    raise exception 'pool summarize makes summaries and takes no runs' using errcode = 'KC006', hint = 'Leave pool out, or name one that workers of yours serve.';
  end if;
  if enqueue_run.priority not between -1000 and 1000 then raise exception 'priority % is outside -1000..1000', enqueue_run.priority using errcode = 'KC006'; end if;
  if enqueue_run.tenant is null or length(enqueue_run.tenant) not between 1 and 200 then raise exception 'tenant must have 1 to 200 characters' using errcode = 'KC006'; end if;
  if length(enqueue_run.idempotency_key) not between 1 and 500 then raise exception 'idempotency_key must have 1 to 500 characters' using errcode = 'KC006'; end if;
  if v_sha is null then
    select a.promoted_sha into v_sha from capstan.agents a where a.name = enqueue_run.agent and a.retired_at is null;
  end if;
  if v_sha is not null then
    select d.definition into v_definition from capstan.agent_definitions d where d.sha = v_sha and d.name = enqueue_run.agent;
    if not found then raise exception 'agent % has no definition %', enqueue_run.agent, v_sha using errcode = 'KC006'; end if;
  end if;
  v_interactive := coalesce(enqueue_run.interactive, (v_definition ->> 'interactive')::boolean, false);
  v_payload := jsonb_strip_nulls(jsonb_build_object('interactive', case when v_interactive then true end))
    || jsonb_build_object('origin', 'api', 'agent', enqueue_run.agent, 'definition_sha', v_sha, 'input', enqueue_run.input);
  v_size := octet_length(v_payload::text);
  if v_size > coalesce((v_definition #>> '{limits,inline_payload_bytes}')::int, 1048576) then
    raise exception 'input of % bytes is over the inline limit of % bytes; send large content as a file part that names a blob, or raise limits.inline_payload_bytes (up to 16 MiB) of agent %',
      v_size, coalesce((v_definition #>> '{limits,inline_payload_bytes}')::int, 1048576), enqueue_run.agent using errcode = 'KC005';
  end if;
  insert into capstan.runs (id, created_at, updated_at, tenant, subject, agent, interactive, pool, priority, concurrency_key, labels, metadata,
      deadline, run_at, traceparent, tracestate, idempotency_key, input_digest, definition_sha, next_seq, journal_bytes, root_run_id)
    values (v_id, v_now, v_now, enqueue_run.tenant, enqueue_run.subject, enqueue_run.agent, v_interactive, enqueue_run.pool, enqueue_run.priority,
      enqueue_run.concurrency_key, enqueue_run.labels, enqueue_run.metadata,
      coalesce(enqueue_run.deadline, v_now + (v_definition #>> '{limits,deadline_ms}')::bigint * interval '1 ms'),
      enqueue_run.run_at, enqueue_run.traceparent, enqueue_run.tracestate, enqueue_run.idempotency_key, v_digest, v_sha, 2, v_size, v_id)
    on conflict (tenant, idempotency_key) where idempotency_key is not null do nothing
    returning * into v_run;
  if v_run.id is null then
    select * into v_found from capstan.runs r where r.tenant = enqueue_run.tenant and r.idempotency_key = enqueue_run.idempotency_key;
    if v_found.id is null then
      -- REPEATABLE READ: the run that has the key was committed after this transaction began.
      raise exception 'another transaction has just used idempotency key %', enqueue_run.idempotency_key using errcode = '40001', hint = 'Begin the transaction again.';
    end if;
    -- The digest is over jsonb's text, in which 1 and 1.0 differ though they are equal: compare the values before refusing.
    if v_found.agent = enqueue_run.agent and (v_found.input_digest = v_digest
        or exists (select from capstan.events e where e.run_id = v_found.id and e.seq = 1 and (e.payload -> 'input')::jsonb = enqueue_run.input)) then
      return v_found.id;
    end if;
    raise exception 'idempotency key % of tenant % belongs to run % with another %', enqueue_run.idempotency_key, enqueue_run.tenant, v_found.id,
      case when v_found.agent = enqueue_run.agent then 'input' else 'agent' end
      using errcode = 'KC001', detail = v_found.id::text, hint = 'Use a new key for new input, or send the same input again to get the same run.';
  end if;
  insert into capstan.events (run_id, at, append_id, seq, turn, fencing_token, view_epoch, size, version, attempt, type, actor, payload)
    values (v_id, v_now, (random() * 2147483647)::int, 1, 0, 0, 0, v_size, 1, 0, 'run.created', enqueue_run.actor, v_payload);
  perform capstan.wish_for(v_run, coalesce(enqueue_run.run_at, v_now));
  return v_id;
end $function$

CREATE OR REPLACE FUNCTION capstan.finish_compaction(task uuid, token integer, result jsonb, error jsonb)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
declare
  v_now timestamptz := capstan.now();
  v_task capstan.compaction_tasks;
  v_run capstan.runs;
begin
  select * into v_task from capstan.compaction_tasks t where t.id = finish_compaction.task;
  if not found then return false; end if;
  select * into v_run from capstan.runs r where r.id = v_task.run_id for no key update;
  update capstan.compaction_tasks t set updated_at = v_now, worker_id = null, wait_reason = null, result = finish_compaction.result, error = finish_compaction.error,
      state = case when v_run.finished_at is null then 'ready' else 'superseded' end
    where t.id = v_task.id and t.state = 'summarizing' and t.fencing_token = finish_compaction.token;
  if not found then return false; end if;
  if v_run.finished_at is null then
    insert into capstan.inbox (id, run_id, at, kind, payload, dedupe_key)
      values (capstan.uuid_v7(), v_run.id, v_now, 'compaction', jsonb_build_object('task_id', v_task.id), 'compaction:' || v_task.id);
    update capstan.runs set inbox_pending = inbox_pending + 1, updated_at = v_now where id = v_run.id;
    if v_run.state = 'waiting' and v_run.wait_reason in ('input', 'compaction', 'context_exhausted') then perform capstan.wish_for(v_run, v_now); end if;
  end if;
  return true;
end $function$

CREATE OR REPLACE FUNCTION capstan.follow_compaction()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
declare v_payload jsonb := new.payload::jsonb;
begin
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
end $function$

CREATE OR REPLACE FUNCTION capstan.notify_wish(pool text)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
begin
  -- A hint only: without it relays find the wish at their next poll. A commit that holds a NOTIFY cannot share its
  -- flush with others (docs/performance.md), so heavy enqueuers may `set capstan_notify.enabled = off`.
  if coalesce(nullif(current_setting('capstan_notify.enabled', true), ''), 'on') <> 'off' then
    perform pg_notify('capstan_wish', pool);
  end if;
end $function$

CREATE OR REPLACE FUNCTION capstan.now()
 RETURNS timestamp with time zone
 LANGUAGE sql
 PARALLEL SAFE
AS $function$
  select clock_timestamp() + coalesce(nullif(current_setting('capstan_clock.offset', true), '')::interval, interval '0')
$function$

CREATE OR REPLACE FUNCTION capstan.refuse_rewrite()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  if coalesce(current_setting('capstan_retention.running', true), '') = 'on' then
    return case when tg_op = 'DELETE' then old else new end;
  end if;
  raise exception 'the journal is append-only: % of % refused', tg_op, tg_table_name using errcode = 'insufficient_privilege',
    hint = 'Events are removed by retention alone.';
end $function$

CREATE OR REPLACE FUNCTION capstan.run_status(run_id uuid)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
#variable_conflict use_column
declare v_run capstan.runs; v_last jsonb;
begin
  select * into v_run from capstan.runs r where r.id = run_status.run_id;
  if not found then raise exception 'no run %', run_status.run_id using errcode = 'KC002'; end if;
  if v_run.finished_at is not null then
    select e.payload::jsonb into v_last from capstan.events e where e.run_id = run_status.run_id and e.seq = v_run.next_seq - 1;
  end if;
  return jsonb_strip_nulls(jsonb_build_object('run_id', v_run.id, 'agent', v_run.agent, 'tenant', v_run.tenant, 'state', v_run.state,
    'wait_reason', v_run.wait_reason, 'wake_at', v_run.wake_at, 'paused', v_run.paused, 'turn', v_run.turn, 'last_seq', v_run.next_seq - 1,
    'created_at', v_run.created_at, 'updated_at', v_run.updated_at, 'finished_at', v_run.finished_at, 'error', v_last -> 'error',
    'usage', jsonb_build_object('input_tokens', v_run.input_tokens, 'output_tokens', v_run.output_tokens, 'cache_read_tokens', v_run.cache_read_tokens,
      'cache_write_tokens', v_run.cache_write_tokens, 'cost_usd_micros', v_run.cost_usd_micros)))
    || case when v_last ? 'output' then jsonb_build_object('output', v_last -> 'output') else '{}' end;
end $function$

CREATE OR REPLACE FUNCTION capstan.send(run_id uuid, payload jsonb, kind text DEFAULT 'input'::text, dedupe_key text DEFAULT NULL::text, actor text DEFAULT NULL::text, traceparent text DEFAULT NULL::text)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
declare
  v_id uuid;
  v_run capstan.runs;
begin
  if send.kind is distinct from 'input' then raise exception 'kind % is not known: send takes ''input''', coalesce(send.kind, 'null') using errcode = 'KC006'; end if;
  if send.payload is null then raise exception 'payload is null' using errcode = 'KC006'; end if;
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
end $function$

CREATE OR REPLACE FUNCTION capstan.uuid_v7()
 RETURNS uuid
 LANGUAGE sql
 PARALLEL SAFE
AS $function$
  select encode(
    overlay(overlay(uuid_send(gen_random_uuid()) placing substring(int8send(t.us / 1000) from 3) from 1 for 6)
      placing int2send((28672 + t.us % 1000 * 4096 / 1000)::int2) from 7 for 2), 'hex')::uuid
  from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) t
$function$

CREATE OR REPLACE FUNCTION capstan.wish_for(run capstan.runs, due timestamp with time zone)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
begin
  insert into capstan.wishes as w (run_id, at, priority, ready, pool, agent, tenant)
    values (run.id, due, run.priority, due <= capstan.now(), run.pool, run.agent, run.tenant)
    on conflict (run_id) do update set at = least(w.at, excluded.at), ready = w.ready or excluded.ready;
  if due <= capstan.now() then perform capstan.notify_wish(run.pool); end if;
end $function$


-- rights of the application role
agent_definitions: insert, select
agent_promotions: delete, insert, select, update
agent_promotions_id_seq: usage
agents: delete, insert, select, update
api_tokens: delete, insert, select, update
audit_log: delete, insert, select, update
audit_log_id_seq: usage
blob_chunks: delete, insert, select, update
blob_refs: delete, insert, select, update
blobs: delete, insert, select, update
compaction_tasks: delete, insert, select, update
events: insert, select
events_default: insert, select
inbox: delete, insert, select, update
migrations: delete, insert, select, update
migrations_id_seq: usage
quota_buckets: delete, insert, select, update
quota_limits: delete, insert, select, update
quota_reservations: delete, insert, select, update
quota_slices: delete, insert, select, update
quota_slots: delete, insert, select, update
runs: delete, insert, select, update
usage: delete, insert, select, update
usage_ledger: delete, insert, select, update
wishes: delete, insert, select, update
workers: delete, insert, select, update
