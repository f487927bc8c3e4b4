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

table conversations
  id uuid not null
  tenant text not null
  agent text not null
  subject text
  title text
  budget jsonb
  metadata jsonb
  last_run_id uuid
  summary jsonb
  created_at timestamp with time zone not null
  updated_at timestamp with time zone not null

view event_partitions
  name text
  from_id uuid
  below_id uuid
  bytes bigint

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

table pauses
  scope text not null
  value text not null
  at timestamp with time zone not null
  reason text
  actor text

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

table redaction_rules
  name text not null
  n smallint not null
  kind text not null
  pattern text
  replacement text not null

table role_tenants
  role text not null
  tenant text not null
  created_at timestamp with time zone not null default capstan.now()

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
  seq_offset integer not null default 0
  concurrency_limit smallint
  budget_level smallint not null default 0

table schedules
  tenant text not null
  name text not null
  agent text not null
  input jsonb not null
  cron text not null
  timezone text not null
  catch_up text not null
  paused boolean not null default false
  options jsonb
  next_at timestamp with time zone
  last_tick_at timestamp with time zone
  last_run_id uuid
  last_error jsonb
  created_at timestamp with time zone not null
  updated_at timestamp with time zone not null
  actor text

table signals
  id uuid not null
  run_id uuid not null
  name text not null
  payload jsonb not null
  at timestamp with time zone not null
  dedupe_key text
  actor text
  wait_id uuid

table tenant_keys
  tenant text not null
  version integer not null
  wrapped bytea
  master_key text not null
  created_at timestamp with time zone not null default capstan.now()
  destroyed_at timestamp with time zone

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

view usage_by_day
  tenant text
  day date
  agent text
  model text
  kind text
  calls bigint
  input_tokens bigint
  output_tokens bigint
  cache_read_tokens bigint
  cache_write_tokens bigint
  cost_usd_micros bigint

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

table usage_rollup
  tenant text not null
  day date not null
  agent text not null
  model text not null default ''::text
  kind text not null
  calls bigint not null default 0
  input_tokens bigint not null default 0
  output_tokens bigint not null default 0
  cache_read_tokens bigint not null default 0
  cache_write_tokens bigint not null default 0
  cost_usd_micros bigint not null default 0

table waits
  id uuid not null
  run_id uuid not null
  tenant text not null
  agent text not null
  turn integer not null
  call_id text not null
  call_index integer not null
  kind text not null
  name text not null
  detail jsonb not null
  requested_at timestamp with time zone not null
  expires_at timestamp with time zone
  pending integer not null default 0
  answered_at timestamp with time zone
  answer jsonb
  answered_by text
  settled_at timestamp with time zone

table webhook_deliveries
  id uuid not null
  webhook_id uuid not null
  tenant text not null
  run_id uuid not null
  event text not null
  body jsonb not null
  at timestamp with time zone not null
  attempts smallint not null default 0
  next_at timestamp with time zone
  delivered_at timestamp with time zone
  gave_up_at timestamp with time zone
  status_code smallint
  error text

table webhooks
  id uuid not null
  tenant text not null
  name text not null
  url text not null
  secret text not null
  events text[] not null
  agent text
  actor text
  created_at timestamp with time zone not null default capstan.now()
  disabled_at timestamp with time zone
  disabled_reason text
  previous_secret text
  previous_until timestamp with time zone
  content boolean not null default false
  failures smallint not null default 0

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
capstan.conversations: conversations_pkey PRIMARY KEY (id)
capstan.events: events_one_payload CHECK ((((codec IS NULL) = (payload IS NOT NULL)) AND ((codec IS NULL) = (payload_sealed IS NULL))))
capstan.events: events_run_id_seq_pk PRIMARY KEY (run_id, seq)
capstan.events: events_seq CHECK ((seq >= 1))
capstan.events_default: events_default_pkey PRIMARY KEY (run_id, seq)
capstan.events_default: events_one_payload CHECK ((((codec IS NULL) = (payload IS NOT NULL)) AND ((codec IS NULL) = (payload_sealed IS NULL))))
capstan.events_default: events_seq CHECK ((seq >= 1))
capstan.inbox: inbox_pkey PRIMARY KEY (id)
capstan.migrations: migrations_pkey PRIMARY KEY (id)
capstan.pauses: pauses_scope CHECK (((scope = ANY (ARRAY['tenant'::text, 'all'::text])) AND ((scope = 'all'::text) = (value = '*'::text))))
capstan.pauses: pauses_scope_value_pk PRIMARY KEY (scope, value)
capstan.quota_buckets: quota_buckets_bucket_window_start_pk PRIMARY KEY (bucket, window_start)
capstan.quota_limits: quota_limits_amount CHECK ((amount >= 0))
capstan.quota_limits: quota_limits_kind CHECK (((kind = ANY (ARRAY['turn'::text, 'summary'::text, 'tool'::text, 'run'::text])) AND ((kind = 'run'::text) = (unit = 'queued'::text))))
capstan.quota_limits: quota_limits_scope CHECK (((scope = ANY (ARRAY['overall'::text, 'tenant'::text, 'agent'::text, 'model'::text])) AND ((scope <> 'overall'::text) OR (value = '*'::text))))
capstan.quota_limits: quota_limits_scope_value_kind_unit_window_pk PRIMARY KEY (scope, value, kind, unit, "window")
capstan.quota_limits: quota_limits_unit CHECK ((unit = ANY (ARRAY['calls'::text, 'tokens'::text, 'cost_usd_micros'::text, 'concurrent'::text, 'queued'::text])))
capstan.quota_limits: quota_limits_window CHECK ((("window" = ANY (ARRAY['minute'::text, 'day'::text, 'month'::text, 'none'::text])) AND (("window" = 'none'::text) = (unit = ANY (ARRAY['concurrent'::text, 'queued'::text])))))
capstan.quota_reservations: quota_reservations_id_bucket_pk PRIMARY KEY (id, bucket)
capstan.quota_reservations: quota_reservations_settled CHECK (((settled_at IS NULL) = (settled_amount IS NULL)))
capstan.quota_slices: quota_slices_worker_id_bucket_window_start_pk PRIMARY KEY (worker_id, bucket, window_start)
capstan.quota_slots: quota_slots_bucket_slot_pk PRIMARY KEY (bucket, slot)
capstan.quota_slots: quota_slots_slot CHECK ((slot >= 1))
capstan.redaction_rules: redaction_rules_kind CHECK (((kind = ANY (ARRAY['pattern'::text, 'card'::text, 'account'::text])) AND ((kind = 'pattern'::text) = (pattern IS NOT NULL))))
capstan.redaction_rules: redaction_rules_pkey PRIMARY KEY (name)
capstan.role_tenants: role_tenants_role_tenant_pk PRIMARY KEY (role, tenant)
capstan.runs: runs_finished_at CHECK (((state = ANY (ARRAY['completed'::text, 'failed'::text, 'cancelled'::text])) = (finished_at IS NOT NULL)))
capstan.runs: runs_finished_unheld CHECK (((finished_at IS NULL) OR (worker_id IS NULL)))
capstan.runs: runs_pkey PRIMARY KEY (id)
capstan.runs: runs_positive CHECK (((fencing_token >= 0) AND (next_seq >= 1) AND (inbox_pending >= 0)))
capstan.runs: runs_state CHECK ((state = ANY (ARRAY['queued'::text, 'running'::text, 'waiting'::text, 'completed'::text, 'failed'::text, 'cancelled'::text])))
capstan.runs: runs_waiting_has_reason CHECK (((state = 'waiting'::text) = (wait_reason IS NOT NULL)))
capstan.schedules: schedules_catch_up CHECK ((catch_up = ANY (ARRAY['none'::text, 'last'::text, 'all'::text])))
capstan.schedules: schedules_tenant_name_pk PRIMARY KEY (tenant, name)
capstan.signals: signals_pkey PRIMARY KEY (id)
capstan.tenant_keys: tenant_keys_tenant_version_pk PRIMARY KEY (tenant, version)
capstan.usage_ledger: usage_ledger_pkey PRIMARY KEY (id)
capstan.usage_rollup: usage_rollup_tenant_day_agent_model_kind_pk PRIMARY KEY (tenant, day, agent, model, kind)
capstan.waits: waits_kind CHECK ((kind = ANY (ARRAY['approval'::text, 'question'::text, 'signal'::text, 'timer'::text, 'children'::text, 'completion'::text])))
capstan.waits: waits_pending CHECK ((pending >= 0))
capstan.waits: waits_pkey PRIMARY KEY (id)
capstan.webhook_deliveries: webhook_deliveries_pkey PRIMARY KEY (id)
capstan.webhooks: webhooks_pkey PRIMARY KEY (id)
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
CREATE INDEX compaction_tasks_run ON capstan.compaction_tasks USING btree (run_id)
CREATE INDEX compaction_tasks_waiting ON capstan.compaction_tasks USING btree (tenant, due_at) WHERE ((state = 'requested'::text) AND (dispatched_at IS NULL))
CREATE UNIQUE INDEX conversations_pkey ON capstan.conversations USING btree (id)
CREATE INDEX conversations_tenant ON capstan.conversations USING btree (tenant, id)
CREATE UNIQUE INDEX events_default_pkey ON capstan.events_default USING btree (run_id, seq)
CREATE UNIQUE INDEX events_default_run_id_step_key_idx ON capstan.events_default USING btree (run_id, step_key) WHERE (step_key IS NOT NULL)
CREATE UNIQUE INDEX events_run_id_seq_pk ON ONLY capstan.events USING btree (run_id, seq)
CREATE UNIQUE INDEX events_step ON ONLY capstan.events USING btree (run_id, step_key) WHERE (step_key IS NOT NULL)
CREATE UNIQUE INDEX inbox_dedupe ON capstan.inbox USING btree (run_id, dedupe_key) WHERE (dedupe_key IS NOT NULL)
CREATE INDEX inbox_pending ON capstan.inbox USING btree (run_id, id) WHERE (applied_seq IS NULL)
CREATE UNIQUE INDEX inbox_pkey ON capstan.inbox USING btree (id)
CREATE INDEX inbox_run ON capstan.inbox USING btree (run_id)
CREATE UNIQUE INDEX migrations_pkey ON capstan.migrations USING btree (id)
CREATE UNIQUE INDEX pauses_scope_value_pk ON capstan.pauses USING btree (scope, value)
CREATE UNIQUE INDEX quota_buckets_bucket_window_start_pk ON capstan.quota_buckets USING btree (bucket, window_start)
CREATE UNIQUE INDEX quota_limits_scope_value_kind_unit_window_pk ON capstan.quota_limits USING btree (scope, value, kind, unit, "window")
CREATE UNIQUE INDEX quota_reservations_id_bucket_pk ON capstan.quota_reservations USING btree (id, bucket)
CREATE INDEX quota_reservations_worker ON capstan.quota_reservations USING btree (worker_id)
CREATE UNIQUE INDEX quota_slices_worker_id_bucket_window_start_pk ON capstan.quota_slices USING btree (worker_id, bucket, window_start)
CREATE UNIQUE INDEX quota_slots_bucket_slot_pk ON capstan.quota_slots USING btree (bucket, slot)
CREATE UNIQUE INDEX quota_slots_reservation ON capstan.quota_slots USING btree (reservation_id, bucket)
CREATE UNIQUE INDEX redaction_rules_pkey ON capstan.redaction_rules USING btree (name)
CREATE UNIQUE INDEX role_tenants_role_tenant_pk ON capstan.role_tenants USING btree (role, tenant)
CREATE INDEX runs_active ON capstan.runs USING btree (state, pool) WHERE (state = ANY (ARRAY['queued'::text, 'running'::text]))
CREATE UNIQUE INDEX runs_child ON capstan.runs USING btree (parent_run_id, parent_call, child_index) WHERE (parent_run_id IS NOT NULL)
CREATE INDEX runs_concurrency ON capstan.runs USING btree (tenant, concurrency_key, id) WHERE ((concurrency_key IS NOT NULL) AND (finished_at IS NULL))
CREATE INDEX runs_continuations ON capstan.runs USING btree (continued_from_run) WHERE (continued_from_run IS NOT NULL)
CREATE INDEX runs_conversation ON capstan.runs USING btree (conversation_id, id) WHERE (conversation_id IS NOT NULL)
CREATE INDEX runs_deadline ON capstan.runs USING btree (deadline) WHERE ((state = 'waiting'::text) AND (deadline IS NOT NULL))
CREATE INDEX runs_ended_inbox ON capstan.runs USING btree (id) WHERE ((finished_at IS NOT NULL) AND (inbox_pending > 0))
CREATE INDEX runs_finished ON capstan.runs USING btree (finished_at) WHERE (finished_at IS NOT NULL)
CREATE INDEX runs_forks ON capstan.runs USING btree (forked_from_run) WHERE (forked_from_run IS NOT NULL)
CREATE UNIQUE INDEX runs_idempotency ON capstan.runs USING btree (tenant, idempotency_key) WHERE (idempotency_key IS NOT NULL)
CREATE INDEX runs_input_waits ON capstan.runs USING btree (id) WHERE ((state = 'waiting'::text) AND (inbox_pending > 0))
CREATE UNIQUE INDEX runs_pkey ON capstan.runs USING btree (id)
CREATE INDEX runs_queued_agent ON capstan.runs USING btree (agent) WHERE (state = 'queued'::text)
CREATE INDEX runs_queued_tenant ON capstan.runs USING btree (tenant) WHERE (state = 'queued'::text)
CREATE INDEX runs_subject ON capstan.runs USING btree (tenant, subject) WHERE (subject IS NOT NULL)
CREATE INDEX runs_tenant ON capstan.runs USING btree (tenant, id)
CREATE INDEX runs_waiting ON capstan.runs USING btree (wait_reason, agent) WHERE (state = 'waiting'::text)
CREATE INDEX runs_wake ON capstan.runs USING btree (wake_at) WHERE ((state = 'waiting'::text) AND (wake_at IS NOT NULL))
CREATE INDEX schedules_due ON capstan.schedules USING btree (next_at) WHERE ((NOT paused) AND (next_at IS NOT NULL))
CREATE UNIQUE INDEX schedules_tenant_name_pk ON capstan.schedules USING btree (tenant, name)
CREATE UNIQUE INDEX signals_dedupe ON capstan.signals USING btree (run_id, dedupe_key) WHERE (dedupe_key IS NOT NULL)
CREATE INDEX signals_kept ON capstan.signals USING btree (run_id, name, id) WHERE (wait_id IS NULL)
CREATE UNIQUE INDEX signals_pkey ON capstan.signals USING btree (id)
CREATE INDEX signals_run ON capstan.signals USING btree (run_id)
CREATE UNIQUE INDEX tenant_keys_tenant_version_pk ON capstan.tenant_keys USING btree (tenant, version)
CREATE UNIQUE INDEX usage_ledger_pkey ON capstan.usage_ledger USING btree (id)
CREATE INDEX usage_ledger_run ON capstan.usage_ledger USING btree (run_id)
CREATE INDEX usage_ledger_tenant ON capstan.usage_ledger USING btree (tenant, at)
CREATE UNIQUE INDEX usage_rollup_tenant_day_agent_model_kind_pk ON capstan.usage_rollup USING btree (tenant, day, agent, model, kind)
CREATE INDEX waits_of_run ON capstan.waits USING btree (run_id) WHERE (settled_at IS NULL)
CREATE INDEX waits_open ON capstan.waits USING btree (tenant, kind, id) WHERE (settled_at IS NULL)
CREATE UNIQUE INDEX waits_pkey ON capstan.waits USING btree (id)
CREATE INDEX waits_run ON capstan.waits USING btree (run_id)
CREATE INDEX webhook_deliveries_due ON capstan.webhook_deliveries USING btree (next_at) WHERE (next_at IS NOT NULL)
CREATE UNIQUE INDEX webhook_deliveries_pkey ON capstan.webhook_deliveries USING btree (id)
CREATE INDEX webhook_deliveries_run ON capstan.webhook_deliveries USING btree (run_id)
CREATE INDEX webhook_deliveries_waiting ON capstan.webhook_deliveries USING btree (webhook_id, next_at) WHERE (next_at IS NOT NULL)
CREATE INDEX webhook_deliveries_webhook ON capstan.webhook_deliveries USING btree (webhook_id, id)
CREATE UNIQUE INDEX webhooks_name ON capstan.webhooks USING btree (tenant, name)
CREATE UNIQUE INDEX webhooks_pkey ON capstan.webhooks USING btree (id)
CREATE INDEX wishes_later ON capstan.wishes USING btree (at) WHERE (NOT ready)
CREATE UNIQUE INDEX wishes_pkey ON capstan.wishes USING btree (run_id)
CREATE INDEX wishes_ready ON capstan.wishes USING btree (pool, tenant, priority, at) WHERE ready
CREATE INDEX workers_alive ON capstan.workers USING btree (pool) WHERE (ended_at IS NULL)
CREATE UNIQUE INDEX workers_pkey ON capstan.workers USING btree (id)

-- triggers
CREATE TRIGGER agent_promotions_audit AFTER INSERT ON capstan.agent_promotions FOR EACH ROW EXECUTE FUNCTION capstan.audit_promotion()
CREATE TRIGGER audit_append_only BEFORE DELETE OR UPDATE ON capstan.audit_log FOR EACH ROW EXECUTE FUNCTION capstan.refuse_rewrite()
CREATE TRIGGER audit_log_token BEFORE INSERT ON capstan.audit_log FOR EACH ROW WHEN ((new.token_id IS NULL)) EXECUTE FUNCTION capstan.audit_token()
CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON capstan.audit_log FOR EACH STATEMENT EXECUTE FUNCTION capstan.refuse_rewrite()
CREATE TRIGGER conversations_redact BEFORE INSERT OR UPDATE OF metadata ON capstan.conversations FOR EACH ROW WHEN ((new.metadata IS NOT NULL)) EXECUTE FUNCTION capstan.redact_metadata()
CREATE TRIGGER events_append_only BEFORE DELETE OR UPDATE ON capstan.events FOR EACH ROW EXECUTE FUNCTION capstan.refuse_rewrite()
CREATE TRIGGER events_compaction AFTER INSERT ON capstan.events FOR EACH ROW WHEN ((new.type = ANY (ARRAY['compaction.requested'::text, 'compaction.failed'::text, 'context.compacted'::text]))) EXECUTE FUNCTION capstan.follow_compaction()
CREATE TRIGGER events_keep_blobs AFTER INSERT ON capstan.events FOR EACH ROW WHEN (((new.type = 'run.created'::text) AND (json_typeof((new.payload -> 'input'::text)) = 'array'::text))) EXECUTE FUNCTION capstan.keep_input_blobs()
CREATE TRIGGER events_life AFTER INSERT ON capstan.events FOR EACH ROW WHEN ((new.type = ANY (ARRAY['call.waiting'::text, 'turn.stopped'::text, 'run.completed'::text, 'run.failed'::text, 'run.cancelled'::text]))) EXECUTE FUNCTION capstan.follow_life()
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON capstan.events FOR EACH STATEMENT EXECUTE FUNCTION capstan.refuse_rewrite()
CREATE TRIGGER events_redact BEFORE INSERT ON capstan.events FOR EACH ROW WHEN (((new.type = ANY (ARRAY['run.created'::text, 'run.cancelled'::text])) AND (new.payload IS NOT NULL))) EXECUTE FUNCTION capstan.redact_event()
CREATE TRIGGER events_webhooks AFTER INSERT ON capstan.events FOR EACH ROW WHEN ((new.type = ANY (ARRAY['run.completed'::text, 'run.failed'::text, 'run.cancelled'::text]))) EXECUTE FUNCTION capstan.tell_webhooks()
CREATE TRIGGER events_webhooks_waiting AFTER INSERT ON capstan.events FOR EACH ROW WHEN (((new.type = 'run.parked'::text) AND (COALESCE((new.payload ->> 'reason'::text), 'approval'::text) = ANY (ARRAY['approval'::text, 'input'::text, 'crash_loop'::text, 'agent_missing'::text, 'context_exhausted'::text])))) EXECUTE FUNCTION capstan.tell_webhooks()
CREATE TRIGGER events_append_only BEFORE DELETE OR UPDATE ON capstan.events_default FOR EACH ROW EXECUTE FUNCTION capstan.refuse_rewrite()
CREATE TRIGGER events_compaction AFTER INSERT ON capstan.events_default FOR EACH ROW WHEN ((new.type = ANY (ARRAY['compaction.requested'::text, 'compaction.failed'::text, 'context.compacted'::text]))) EXECUTE FUNCTION capstan.follow_compaction()
CREATE TRIGGER events_keep_blobs AFTER INSERT ON capstan.events_default FOR EACH ROW WHEN (((new.type = 'run.created'::text) AND (json_typeof((new.payload -> 'input'::text)) = 'array'::text))) EXECUTE FUNCTION capstan.keep_input_blobs()
CREATE TRIGGER events_life AFTER INSERT ON capstan.events_default FOR EACH ROW WHEN ((new.type = ANY (ARRAY['call.waiting'::text, 'turn.stopped'::text, 'run.completed'::text, 'run.failed'::text, 'run.cancelled'::text]))) EXECUTE FUNCTION capstan.follow_life()
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON capstan.events_default FOR EACH STATEMENT EXECUTE FUNCTION capstan.refuse_rewrite()
CREATE TRIGGER events_redact BEFORE INSERT ON capstan.events_default FOR EACH ROW WHEN (((new.type = ANY (ARRAY['run.created'::text, 'run.cancelled'::text])) AND (new.payload IS NOT NULL))) EXECUTE FUNCTION capstan.redact_event()
CREATE TRIGGER events_webhooks AFTER INSERT ON capstan.events_default FOR EACH ROW WHEN ((new.type = ANY (ARRAY['run.completed'::text, 'run.failed'::text, 'run.cancelled'::text]))) EXECUTE FUNCTION capstan.tell_webhooks()
CREATE TRIGGER events_webhooks_waiting AFTER INSERT ON capstan.events_default FOR EACH ROW WHEN (((new.type = 'run.parked'::text) AND (COALESCE((new.payload ->> 'reason'::text), 'approval'::text) = ANY (ARRAY['approval'::text, 'input'::text, 'crash_loop'::text, 'agent_missing'::text, 'context_exhausted'::text])))) EXECUTE FUNCTION capstan.tell_webhooks()
CREATE TRIGGER inbox_keep_blobs AFTER INSERT ON capstan.inbox FOR EACH ROW WHEN (((new.kind = 'input'::text) AND (jsonb_typeof(new.payload) = 'array'::text))) EXECUTE FUNCTION capstan.keep_input_blobs()
CREATE TRIGGER inbox_redact BEFORE INSERT ON capstan.inbox FOR EACH ROW WHEN ((new.kind <> 'compaction'::text)) EXECUTE FUNCTION capstan.redact_payload()
CREATE TRIGGER runs_redact BEFORE INSERT OR UPDATE OF metadata ON capstan.runs FOR EACH ROW WHEN ((new.metadata IS NOT NULL)) EXECUTE FUNCTION capstan.redact_metadata()
CREATE TRIGGER schedules_redact BEFORE INSERT OR UPDATE OF input, options ON capstan.schedules FOR EACH ROW EXECUTE FUNCTION capstan.redact_schedule()
CREATE TRIGGER signals_redact BEFORE INSERT ON capstan.signals FOR EACH ROW EXECUTE FUNCTION capstan.redact_payload()
CREATE TRIGGER waits_audit AFTER UPDATE OF answered_at ON capstan.waits FOR EACH ROW WHEN (((old.answered_at IS NULL) AND (new.answered_at IS NOT NULL) AND (new.kind = ANY (ARRAY['approval'::text, 'question'::text])))) EXECUTE FUNCTION capstan.audit_answer()
CREATE TRIGGER waits_redact BEFORE UPDATE OF answer ON capstan.waits FOR EACH ROW WHEN ((new.answer IS NOT NULL)) EXECUTE FUNCTION capstan.redact_answer()

-- functions
CREATE OR REPLACE FUNCTION capstan.admit_keyed(most integer DEFAULT 100)
 RETURNS integer
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.answer(wait_id uuid, answer jsonb, declined boolean DEFAULT false, actor text DEFAULT NULL::text)
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.audit_answer()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  insert into capstan.audit_log (tenant, actor, action, target, detail)
    values (new.tenant, coalesce(new.answered_by, session_user),
      case when new.kind = 'approval' then 'approval.' || coalesce(new.answer ->> 'decision', 'deny') when new.answer -> 'declined' = 'true' then 'question.decline' else 'question.answer' end,
      new.run_id::text, jsonb_build_object('wait_id', new.id, 'name', new.name));
  return null;
end $function$

CREATE OR REPLACE FUNCTION capstan.audit_promotion()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  insert into capstan.audit_log (tenant, actor, action, target, detail) values ('*', coalesce(new.actor, session_user), 'agent.promote', new.name, jsonb_build_object('sha', new.sha));
  return null;
end $function$

CREATE OR REPLACE FUNCTION capstan.audit_token()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  new.token_id := nullif(current_setting('capstan_audit.token', true), '')::uuid;
  return new;
end $function$

CREATE OR REPLACE FUNCTION capstan.bases_needed(ids uuid[])
 RETURNS uuid[]
 LANGUAGE sql
 STABLE
AS $function$
  select array_agg(n.id) from (
    select f.forked_from_run as id from capstan.runs f where f.forked_from_run = any(ids) and f.id <> all(ids)
    union
    select c.continued_from_run from capstan.runs c where c.continued_from_run = any(ids) and c.id <> all(ids)
  ) n
$function$

CREATE OR REPLACE FUNCTION capstan.budget_fields()
 RETURNS TABLE(field text, kind text, min bigint, max bigint)
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
  values ('turns', 'number', 1::bigint, 1000000::bigint), ('tokens', 'number', 1, null), ('cost_usd_micros', 'number', 1, null), ('wall_ms', 'number', 1, null)
$function$

CREATE OR REPLACE FUNCTION capstan.budget_problem(given jsonb, base jsonb)
 RETURNS text
 LANGUAGE plpgsql
 IMMUTABLE PARALLEL SAFE
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.cancel_run(run_id uuid, reason text DEFAULT NULL::text, actor text DEFAULT NULL::text)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.check_queue(tenant text, agent text)
 RETURNS void
 LANGUAGE plpgsql
 STABLE
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.compact_run(run_id uuid, at_boundary boolean DEFAULT false, actor text DEFAULT NULL::text)
 RETURNS uuid
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.compaction_fields()
 RETURNS TABLE(field text, kind text, min bigint, max bigint)
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
  values ('enabled', 'boolean', null::bigint, null::bigint), ('autocompact_at_pct', 'number', 50, 95), ('at_tokens', 'number', 1, null), ('after_bytes', 'number', 1, null),
    ('keep_first', 'boolean', null, null), ('keep_last_n', 'number', 0, null), ('target_percentage', 'number', 10, 50), ('model', 'text', null, null),
    ('summarizer', 'text', null, null), ('instruction', 'text', null, null), ('max_tokens', 'number', 1, null), ('prefetch_at_pct', 'number', 1, 94)
$function$

CREATE OR REPLACE FUNCTION capstan.compaction_problem(given jsonb, base jsonb)
 RETURNS text
 LANGUAGE plpgsql
 IMMUTABLE PARALLEL SAFE
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.continue_conversation(conversation_id uuid, input jsonb, idempotency_key text DEFAULT NULL::text, definition_sha text DEFAULT NULL::text, compaction jsonb DEFAULT NULL::jsonb, interactive boolean DEFAULT NULL::boolean, options jsonb DEFAULT NULL::jsonb, actor text DEFAULT NULL::text, run_id uuid DEFAULT NULL::uuid, budget jsonb DEFAULT NULL::jsonb)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.create_conversation(agent text, tenant text DEFAULT 'default'::text, subject text DEFAULT NULL::text, title text DEFAULT NULL::text, budget jsonb DEFAULT NULL::jsonb, metadata jsonb DEFAULT NULL::jsonb)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.create_run(agent text, input jsonb, tenant text DEFAULT 'default'::text, idempotency_key text DEFAULT NULL::text, priority integer DEFAULT 0, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, deadline timestamp with time zone DEFAULT NULL::timestamp with time zone, interactive boolean DEFAULT NULL::boolean, metadata jsonb DEFAULT NULL::jsonb, labels text[] DEFAULT NULL::text[], subject text DEFAULT NULL::text, pool text DEFAULT 'turn'::text, definition_sha text DEFAULT NULL::text, concurrency_key text DEFAULT NULL::text, traceparent text DEFAULT NULL::text, tracestate text DEFAULT NULL::text, actor text DEFAULT NULL::text, run_id uuid DEFAULT NULL::uuid, created jsonb DEFAULT NULL::jsonb, concurrency_limit integer DEFAULT NULL::integer, concurrency_scope text DEFAULT NULL::text, on_conflict text DEFAULT NULL::text, compaction jsonb DEFAULT NULL::jsonb, budget jsonb DEFAULT NULL::jsonb)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.decide(wait_id uuid, decision text, input jsonb DEFAULT NULL::jsonb, reason text DEFAULT NULL::text, actor text DEFAULT NULL::text)
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.delete_blobs(tenant text, sha256s text[])
 RETURNS jsonb
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.delete_rows_of(ids uuid[], with_events boolean)
 RETURNS jsonb
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.delete_runs(ids uuid[], ended_before timestamp with time zone DEFAULT NULL::timestamp with time zone, with_conversations boolean DEFAULT false, erasing boolean DEFAULT false, last_seqs integer[] DEFAULT NULL::integer[], dry_run boolean DEFAULT false)
 RETURNS jsonb
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.delete_schedule(name text, tenant text DEFAULT 'default'::text)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
  perform capstan.lock_schedule(delete_schedule.tenant, delete_schedule.name);
  delete from capstan.schedules s where s.tenant = delete_schedule.tenant and s.name = delete_schedule.name;
end $function$

CREATE OR REPLACE FUNCTION capstan.derive_run(base capstan.runs, origin text, at integer, input jsonb, definition_sha text, compaction jsonb, interactive boolean, conversation_id uuid, idempotency_key text, digest bytea, options jsonb, actor text, run_id uuid, budget jsonb DEFAULT NULL::jsonb)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.drop_partition(name text, ended_before timestamp with time zone, with_conversations boolean DEFAULT false, ids uuid[] DEFAULT NULL::uuid[], last_seqs integer[] DEFAULT NULL::integer[])
 RETURNS jsonb
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.enqueue_run(agent text, input jsonb, tenant text DEFAULT 'default'::text, idempotency_key text DEFAULT NULL::text, priority integer DEFAULT 0, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, deadline timestamp with time zone DEFAULT NULL::timestamp with time zone, interactive boolean DEFAULT NULL::boolean, metadata jsonb DEFAULT NULL::jsonb, labels text[] DEFAULT NULL::text[], subject text DEFAULT NULL::text, pool text DEFAULT 'turn'::text, definition_sha text DEFAULT NULL::text, concurrency_key text DEFAULT NULL::text, traceparent text DEFAULT NULL::text, tracestate text DEFAULT NULL::text, actor text DEFAULT NULL::text, run_id uuid DEFAULT NULL::uuid, concurrency_limit integer DEFAULT NULL::integer, concurrency_scope text DEFAULT NULL::text, on_conflict text DEFAULT NULL::text, compaction jsonb DEFAULT NULL::jsonb, budget jsonb DEFAULT NULL::jsonb)
 RETURNS uuid
 LANGUAGE sql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  select capstan.create_run(enqueue_run.agent, enqueue_run.input, enqueue_run.tenant, enqueue_run.idempotency_key, enqueue_run.priority, enqueue_run.run_at,
    enqueue_run.deadline, enqueue_run.interactive, enqueue_run.metadata, enqueue_run.labels, enqueue_run.subject, enqueue_run.pool,
    enqueue_run.definition_sha, enqueue_run.concurrency_key, enqueue_run.traceparent, enqueue_run.tracestate, enqueue_run.actor, enqueue_run.run_id,
    concurrency_limit => enqueue_run.concurrency_limit, concurrency_scope => enqueue_run.concurrency_scope, on_conflict => enqueue_run.on_conflict,
    compaction => enqueue_run.compaction, budget => enqueue_run.budget)
$function$

CREATE OR REPLACE FUNCTION capstan.enqueue_runs(runs jsonb)
 RETURNS uuid[]
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.enter_key(run capstan.runs, on_conflict text, at timestamp with time zone)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.first_in_line(tenant text, concurrency_key text)
 RETURNS uuid
 LANGUAGE sql
AS $function$
  select r.id from capstan.runs r
  where r.tenant = first_in_line.tenant and r.concurrency_key = first_in_line.concurrency_key and r.finished_at is null and r.state = 'queued'
    and exists (select from capstan.wishes w where w.run_id = r.id and not w.ready and w.at = capstan.in_line())
  order by r.id limit 1
$function$

CREATE OR REPLACE FUNCTION capstan.first_phase(run_id uuid)
 RETURNS text
 LANGUAGE plpgsql
 STABLE
AS $function$
declare v_run capstan.runs;
begin
  select * into v_run from capstan.runs r where r.id = first_phase.run_id;
  if v_run.forked_from_run is null then return 'boundary'; end if;
  return coalesce((select p.phase from capstan.run_phases(v_run.forked_from_run) p where v_run.forked_from_seq between p.from_seq and p.to_seq), 'boundary');
end $function$

CREATE OR REPLACE FUNCTION capstan.follow_compaction()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.follow_end(ended uuid, at timestamp with time zone)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.follow_life()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.fork_point(run capstan.runs, at integer, behind_answer boolean)
 RETURNS integer
 LANGUAGE plpgsql
 STABLE
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.fork_run(run_id uuid, at integer DEFAULT NULL::integer, input jsonb DEFAULT NULL::jsonb, definition_sha text DEFAULT NULL::text, compaction jsonb DEFAULT NULL::jsonb, interactive boolean DEFAULT NULL::boolean, idempotency_key text DEFAULT NULL::text, options jsonb DEFAULT NULL::jsonb, actor text DEFAULT NULL::text, budget jsonb DEFAULT NULL::jsonb)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.give_blobs(from_run uuid, to_run uuid)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
begin
  if from_run is distinct from to_run then
    insert into capstan.blob_refs (tenant, sha256, run_id) select b.tenant, b.sha256, to_run from capstan.blob_refs b where b.run_id = from_run on conflict do nothing;
    delete from capstan.blob_refs b where b.run_id = from_run;
  end if;
  return to_run;
end $function$

CREATE OR REPLACE FUNCTION capstan.hand_over(run capstan.runs, wait_id uuid, payload jsonb, actor text)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
declare v_now timestamptz := capstan.now();
begin
  insert into capstan.inbox (id, run_id, at, kind, payload, dedupe_key, actor)
    values (capstan.uuid_v7(), run.id, v_now, 'wait', payload || jsonb_build_object('wait_id', wait_id), 'wait:' || wait_id, actor);
  update capstan.runs r set inbox_pending = r.inbox_pending + 1, updated_at = v_now where r.id = run.id returning * into run;
  if run.state = 'waiting' and run.wait_reason in ('approval', 'children', 'signal', 'timer') then perform capstan.wish_for(run, v_now); end if;
end $function$

CREATE OR REPLACE FUNCTION capstan.hold_run(run_id uuid, reason text DEFAULT NULL::text, actor text DEFAULT NULL::text)
 RETURNS boolean
 LANGUAGE sql
AS $function$
  select capstan.set_hold(hold_run.run_id, true, hold_run.reason, hold_run.actor)
$function$

CREATE OR REPLACE FUNCTION capstan.in_line()
 RETURNS timestamp with time zone
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$ select timestamptz '9998-12-31 00:00:00+00' $function$

CREATE OR REPLACE FUNCTION capstan.is_account(iban text)
 RETURNS boolean
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
  select string_agg(case when c ~ '\d' then c else (ascii(c) - 55)::text end, '' order by n)::numeric % 97 = 1
  from string_to_table(substr(iban, 5) || left(iban, 4), null) with ordinality t(c, n)
$function$

CREATE OR REPLACE FUNCTION capstan.is_card(digits text)
 RETURNS boolean
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
  select digits ~ '^(4|5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720|3[04-9]|6[0245])' and (
    select sum(case when (length(digits) - i) % 2 = 0 then d else d * 2 - case when d > 4 then 9 else 0 end end) % 10 = 0
    from generate_series(1, length(digits)) i cross join lateral (select substr(digits, i, 1)::int as d) c)
$function$

CREATE OR REPLACE FUNCTION capstan.keep_blobs(run_id uuid, tenant text, input jsonb)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
declare v_named text[];
begin
  select array_agg(distinct p.part ->> 'sha256') into v_named from jsonb_array_elements(keep_blobs.input) p(part) where p.part ->> 'type' = 'file' and p.part ? 'sha256';
  if v_named is null then return; end if;
  perform pg_advisory_xact_lock_shared(1667330146, hashtext(keep_blobs.tenant));
  insert into capstan.blob_refs (tenant, sha256, run_id) select b.tenant, b.sha256, keep_blobs.run_id from capstan.blobs b where b.tenant = keep_blobs.tenant and b.sha256 = any(v_named) on conflict do nothing;
end $function$

CREATE OR REPLACE FUNCTION capstan.keep_input_blobs()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  if tg_table_name = 'inbox' then
    perform capstan.keep_blobs(new.run_id, r.tenant, new.payload) from capstan.runs r where r.id = new.run_id;
  else
    perform capstan.keep_blobs(new.run_id, r.tenant, (new.payload -> 'input')::jsonb) from capstan.runs r where r.id = new.run_id;
  end if;
  return null;
end $function$

CREATE OR REPLACE FUNCTION capstan.kept_because(run capstan.runs, ended_before timestamp with time zone, with_conversations boolean)
 RETURNS text
 LANGUAGE sql
 STABLE
AS $function$
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
$function$

CREATE OR REPLACE FUNCTION capstan.key_holders(tenant text, concurrency_key text, most integer)
 RETURNS SETOF uuid
 LANGUAGE sql
AS $function$
  select r.id from capstan.runs r
  where r.tenant = key_holders.tenant and r.concurrency_key = key_holders.concurrency_key and r.finished_at is null
    and not (r.state = 'queued' and exists (select from capstan.wishes w where w.run_id = r.id and not w.ready))
  order by r.id limit most
$function$

CREATE OR REPLACE FUNCTION capstan.key_lock(tenant text, concurrency_key text)
 RETURNS bigint
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
  select hashtextextended('capstan key ' || length(tenant) || ' ' || tenant || concurrency_key, 0)
$function$

CREATE OR REPLACE FUNCTION capstan.land_run(run_id uuid, paused boolean)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.leave_key(ended capstan.runs, at timestamp with time zone)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.let_go(run_id uuid, at timestamp with time zone)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
declare v_pool text;
begin
  update capstan.wishes w set at = let_go.at, ready = true where w.run_id = let_go.run_id and not w.ready returning w.pool into v_pool;
  if found then perform capstan.notify_wish(v_pool); end if;
end $function$

CREATE OR REPLACE FUNCTION capstan.lock_schedule(tenant text, name text)
 RETURNS capstan.schedules
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.look_along_lines(most integer DEFAULT 200)
 RETURNS integer
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.merged_budget(base jsonb, over jsonb)
 RETURNS jsonb
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
  select nullif(jsonb_strip_nulls(jsonb_build_object(
    'soft', nullif(coalesce(base -> 'soft', '{}') || coalesce(over -> 'soft', '{}'), '{}'),
    'hard', nullif(coalesce(base -> 'hard', '{}') || coalesce(over -> 'hard', '{}'), '{}'),
    'wrap_up', coalesce(over -> 'wrap_up', base -> 'wrap_up'))), '{}')
$function$

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

CREATE OR REPLACE FUNCTION capstan.partition_keeps(from_id uuid, below_id uuid, ended_before timestamp with time zone, with_conversations boolean DEFAULT false)
 RETURNS jsonb
 LANGUAGE sql
 STABLE
AS $function$
  select coalesce(jsonb_object_agg(k.reason, k.n), '{}') from (
    select x.reason, count(*) as n from (
      select coalesce(capstan.kept_because(r, ended_before, with_conversations), case
          when exists (select from capstan.runs f where f.forked_from_run = r.id and not (f.id >= from_id and f.id < below_id))
            or exists (select from capstan.runs c where c.continued_from_run = r.id and not (c.id >= from_id and c.id < below_id)) then 'referenced' end) as reason
      from capstan.runs r where r.id >= from_id and r.id < below_id
    ) x where x.reason is not null group by x.reason
  ) k
$function$

CREATE OR REPLACE FUNCTION capstan.pause_all(tenant text DEFAULT NULL::text, reason text DEFAULT NULL::text, actor text DEFAULT NULL::text)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
begin
  insert into capstan.pauses (scope, value, at, reason, actor)
    values (case when pause_all.tenant is null then 'all' else 'tenant' end, coalesce(pause_all.tenant, '*'), capstan.now(), pause_all.reason, pause_all.actor)
    on conflict do nothing;
  if not found then return false; end if;
  insert into capstan.audit_log (tenant, actor, action, target) values (coalesce(pause_all.tenant, '*'), coalesce(pause_all.actor, session_user), 'pause', coalesce(pause_all.tenant, '*'));
  return true;
end $function$

CREATE OR REPLACE FUNCTION capstan.pause_run(run_id uuid, actor text DEFAULT NULL::text)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.pause_schedule(name text, tenant text DEFAULT 'default'::text, actor text DEFAULT NULL::text)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
declare
  v_schedule capstan.schedules := capstan.lock_schedule(pause_schedule.tenant, pause_schedule.name);
begin
  if v_schedule.paused then return false; end if;
  update capstan.schedules s set paused = true, next_at = null, updated_at = capstan.now(), actor = coalesce(pause_schedule.actor, s.actor)
    where s.tenant = v_schedule.tenant and s.name = v_schedule.name;
  return true;
end $function$

CREATE OR REPLACE FUNCTION capstan.pin_role(role text, tenant text)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
  if not exists (select from pg_catalog.pg_roles r where r.rolname = pin_role.role) then
    raise exception 'there is no role %', coalesce(pin_role.role, 'null') using errcode = 'KC006', hint = 'Create it first: create role ... login in role ..._enqueuer.';
  end if;
  if pin_role.tenant is null or length(pin_role.tenant) not between 1 and 200 then raise exception 'tenant must have 1 to 200 characters' using errcode = 'KC006'; end if;
  insert into capstan.role_tenants (role, tenant) values (pin_role.role, pin_role.tenant) on conflict do nothing;
  if found then insert into capstan.audit_log (tenant, actor, action, target) values (pin_role.tenant, session_user, 'role.pin', pin_role.role); end if;
end $function$

CREATE OR REPLACE FUNCTION capstan.pinned_tenants()
 RETURNS text[]
 LANGUAGE sql
 STABLE SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  select case when exists (select from capstan.role_tenants) then (
    select array_agg(distinct t.tenant) from capstan.role_tenants t join pg_roles r on r.rolname = t.role
    where t.role = session_user
      or (not (select s.rolsuper from pg_roles s where s.rolname = session_user)
        -- With 16 a membership may be one by which its holder only hands the role on.
        and pg_has_role(session_user, r.oid, case when current_setting('server_version_num')::int >= 160000 then 'USAGE, SET' else 'MEMBER' end))) end
$function$

CREATE OR REPLACE FUNCTION capstan.quota_use()
 RETURNS TABLE(bucket text, used bigint, resets_at timestamp with time zone)
 LANGUAGE sql
 STABLE
AS $function$
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
$function$

CREATE OR REPLACE FUNCTION capstan.reaches(tenant text)
 RETURNS boolean
 LANGUAGE sql
 STABLE
AS $function$
  select coalesce(reaches.tenant = any(capstan.pinned_tenants()), true)
$function$

CREATE OR REPLACE FUNCTION capstan.redact_answer()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  new.answer := capstan.redacted(new.answer);
  return new;
end $function$

CREATE OR REPLACE FUNCTION capstan.redact_event()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
declare
  v_field text := case new.type when 'run.created' then 'input' else 'reason' end;
  v_given jsonb := new.payload -> v_field;
  v_redacted jsonb := capstan.redacted(v_given);
  v_size int := new.size;
begin
  if v_redacted is not distinct from v_given then return new; end if;
  new.payload := jsonb_set(new.payload::jsonb, array[v_field], v_redacted);
  new.size := octet_length(new.payload::text);
  update capstan.runs r set journal_bytes = r.journal_bytes + new.size - v_size where r.id = new.run_id;
  return new;
end $function$

CREATE OR REPLACE FUNCTION capstan.redact_metadata()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  new.metadata := capstan.redacted(new.metadata);
  return new;
end $function$

CREATE OR REPLACE FUNCTION capstan.redact_payload()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  new.payload := capstan.redacted(new.payload);
  return new;
end $function$

CREATE OR REPLACE FUNCTION capstan.redact_schedule()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  new.input := capstan.redacted(new.input);
  new.options := capstan.redacted(new.options);
  return new;
end $function$

CREATE OR REPLACE FUNCTION capstan.redacted(value jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
begin
  if value is null or (coalesce(current_setting('capstan_import.running', true), '') = 'on' and has_table_privilege(session_user, 'capstan.runs', 'insert')) or not exists (select from capstan.redaction_rules) then return value; end if;
  return capstan.redacted_json(value);
end $function$

CREATE OR REPLACE FUNCTION capstan.redacted_accounts(value text, replacement text)
 RETURNS text
 LANGUAGE plpgsql
 IMMUTABLE PARALLEL SAFE
AS $function$
declare
  v_run text;
  v_out text := value;
  v_candidate text;
begin
  for v_run in select m[1] from regexp_matches(value, '(?<![A-Za-z0-9])([A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30})', 'g') m loop
    for v_length in reverse length(v_run)..15 loop
      v_candidate := left(v_run, v_length);
      continue when v_candidate ~ ' $' or substr(v_run, v_length + 1, 1) ~ '[A-Za-z0-9]' or not capstan.is_account(replace(v_candidate, ' ', ''));
      v_out := replace(v_out, v_candidate, replacement);
      exit;
    end loop;
  end loop;
  return v_out;
end $function$

CREATE OR REPLACE FUNCTION capstan.redacted_cards(value text, replacement text)
 RETURNS text
 LANGUAGE plpgsql
 IMMUTABLE PARALLEL SAFE
AS $function$
declare
  v_run text;
  v_groups text[];
  v_at int;
  v_digits text;
  v_found int;
  v_first int;
  v_out text := value;
begin
  for v_run in select m[1] from regexp_matches(value, '(?<![A-Za-z0-9-])(\d{3,}(?:[ -]\d{3,})*)(?![A-Za-z0-9-])', 'g') m where length(m[1]) >= 13 loop
    v_groups := regexp_split_to_array(v_run, '[ -]');
    v_at := 1;
    v_first := 1;
    while v_first <= cardinality(v_groups) loop
      v_digits := '';
      v_found := null;
      for i in v_first..cardinality(v_groups) loop
        v_digits := v_digits || v_groups[i];
        exit when length(v_digits) > 19;
        if length(v_digits) >= 13 and capstan.is_card(v_digits) then v_found := i; end if;
      end loop;
      if v_found is not null then
        v_out := replace(v_out, substr(v_run, v_at, (select sum(length(g) + 1)::int - 1 from unnest(v_groups[v_first:v_found]) g)), replacement);
      end if;
      for i in v_first..coalesce(v_found, v_first) loop v_at := v_at + length(v_groups[i]) + 1; end loop;
      v_first := coalesce(v_found, v_first) + 1;
    end loop;
  end loop;
  return v_out;
end $function$

CREATE OR REPLACE FUNCTION capstan.redacted_json(value jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE PARALLEL SAFE
AS $function$
#variable_conflict use_column
begin
  case jsonb_typeof(redacted_json.value)
    when 'string' then return to_jsonb(capstan.redacted_text(redacted_json.value #>> '{}'));
    when 'number' then
      return case when redacted_json.value::text ~ '^-?\d{9,}$' and capstan.redacted_text(redacted_json.value::text) <> redacted_json.value::text
        then to_jsonb(capstan.redacted_text(redacted_json.value::text)) else redacted_json.value end;
    when 'array' then
      return (select coalesce(jsonb_agg(capstan.redacted_json(e.item) order by e.i), '[]') from jsonb_array_elements(redacted_json.value) with ordinality e(item, i));
    when 'object' then
      if redacted_json.value ->> 'type' = 'file' and redacted_json.value ->> 'sha256' ~ '^[0-9a-f]{64}$' then
        return redacted_json.value || case when redacted_json.value ? 'filename' then jsonb_build_object('filename', capstan.redacted_json(redacted_json.value -> 'filename')) else '{}' end;
      end if;
      return (select coalesce(jsonb_object_agg(capstan.redacted_text(e.key), capstan.redacted_json(e.value)), '{}') from jsonb_each(redacted_json.value) e);
    else return redacted_json.value;
  end case;
end $function$

CREATE OR REPLACE FUNCTION capstan.redacted_text(value text)
 RETURNS text
 LANGUAGE plpgsql
 STABLE PARALLEL SAFE
AS $function$
#variable_conflict use_column
declare
  v_rule capstan.redaction_rules;
  v_out text := redacted_text.value;
begin
  if length(v_out) < 6 then return v_out; end if;
  for v_rule in select * from capstan.redaction_rules order by n, name loop
    v_out := case v_rule.kind
      when 'pattern' then regexp_replace(v_out, v_rule.pattern, v_rule.replacement, 'g')
      when 'card' then capstan.redacted_cards(v_out, v_rule.replacement)
      else capstan.redacted_accounts(v_out, v_rule.replacement) end;
  end loop;
  return v_out;
end $function$

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

CREATE OR REPLACE FUNCTION capstan.release_run(run_id uuid, actor text DEFAULT NULL::text)
 RETURNS boolean
 LANGUAGE sql
AS $function$
  select capstan.set_hold(release_run.run_id, false, null, release_run.actor)
$function$

CREATE OR REPLACE FUNCTION capstan.remove_quota(scope text, value text, kind text, unit text, "window" text, actor text DEFAULT NULL::text)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.resolved_budget(base jsonb, own jsonb)
 RETURNS jsonb
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
  select nullif(jsonb_strip_nulls(jsonb_build_object(
    'soft', nullif(coalesce(base -> 'soft', '{}') || coalesce(own -> 'soft', '{}'), '{}'),
    'hard', (select jsonb_object_agg(f.field, least((base #>> array['hard', f.field])::bigint, (own #>> array['hard', f.field])::bigint)) from capstan.budget_fields() f
      where coalesce(base #> array['hard', f.field], own #> array['hard', f.field]) is not null),
    'wrap_up', coalesce(own -> 'wrap_up', base -> 'wrap_up'))), '{}')
$function$

CREATE OR REPLACE FUNCTION capstan.resolved_compaction(base jsonb, own jsonb)
 RETURNS jsonb
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
  select '{"enabled": false, "autocompact_at_pct": 80, "keep_first": true, "keep_last_n": 4, "target_percentage": 10}'::jsonb
    || case when m.merged -> 'enabled' = 'false' then m.merged - 'after_bytes' else m.merged end
  from (select coalesce(base, '{}') || coalesce(own, '{}') as merged) m
$function$

CREATE OR REPLACE FUNCTION capstan.resume_all(tenant text DEFAULT NULL::text, actor text DEFAULT NULL::text)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.resume_run(run_id uuid, actor text DEFAULT NULL::text)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.retry_run(run_id uuid, definition_sha text DEFAULT NULL::text, once boolean DEFAULT false, options jsonb DEFAULT NULL::jsonb, actor text DEFAULT NULL::text, compaction jsonb DEFAULT NULL::jsonb, budget jsonb DEFAULT NULL::jsonb)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.roll_up_usage(ids uuid[])
 RETURNS void
 LANGUAGE sql
AS $function$
  insert into capstan.usage_rollup as u (tenant, day, agent, model, kind, calls, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd_micros)
    select g.tenant, (g.at at time zone 'UTC')::date, g.agent, coalesce(g.model, ''), g.kind, count(*), sum(g.input_tokens), sum(g.output_tokens),
      sum(g.cache_read_tokens), sum(g.cache_write_tokens), sum(g.cost_usd_micros)
    from capstan.usage g where g.run_id = any(ids) group by 1, 2, 3, 4, 5 order by 1, 2, 3, 4, 5
    on conflict (tenant, day, agent, model, kind) do update set calls = u.calls + excluded.calls, input_tokens = u.input_tokens + excluded.input_tokens,
      output_tokens = u.output_tokens + excluded.output_tokens, cache_read_tokens = u.cache_read_tokens + excluded.cache_read_tokens,
      cache_write_tokens = u.cache_write_tokens + excluded.cache_write_tokens, cost_usd_micros = u.cost_usd_micros + excluded.cost_usd_micros
$function$

CREATE OR REPLACE FUNCTION capstan.run_ends(ids uuid[])
 RETURNS TABLE(id uuid, state text, payload json)
 LANGUAGE sql
 STABLE SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  select x.id, r.state, e.payload from unnest(run_ends.ids) as x(id) left join capstan.runs r on r.id = x.id and capstan.reaches(r.tenant)
  left join lateral (
    select e.payload from capstan.events e where e.run_id = r.id and e.type in ('run.completed', 'run.failed', 'run.cancelled') order by e.seq desc limit 1) e on true
  where r.id is null or r.finished_at is not null
$function$

CREATE OR REPLACE FUNCTION capstan.run_of_key(tenant text, idempotency_key text, digest bytea)
 RETURNS capstan.runs
 LANGUAGE plpgsql
 STABLE
AS $function$
#variable_conflict use_column
declare v_run capstan.runs;
begin
  select * into v_run from capstan.runs r where r.tenant = run_of_key.tenant and r.idempotency_key = run_of_key.idempotency_key;
  if found and v_run.input_digest is distinct from run_of_key.digest then
    raise exception 'idempotency key % of tenant % belongs to run %, which was asked for otherwise', run_of_key.idempotency_key, run_of_key.tenant, v_run.id
      using errcode = 'KC001', detail = v_run.id::text, hint = 'Use a new key, or ask for the same again to get the same run.';
  end if;
  return v_run;
end $function$

CREATE OR REPLACE FUNCTION capstan.run_of_schedule(schedule capstan.schedules, tick timestamp with time zone, idempotency_key text, actor text)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.run_phases(run_id uuid)
 RETURNS TABLE(from_seq integer, to_seq integer, phase text)
 LANGUAGE plpgsql
 STABLE
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.run_schedule(name text, tenant text DEFAULT 'default'::text, idempotency_key text DEFAULT NULL::text, actor text DEFAULT NULL::text)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
declare
  v_schedule capstan.schedules := capstan.lock_schedule(run_schedule.tenant, run_schedule.name);
  v_run uuid;
begin
  v_run := capstan.run_of_schedule(v_schedule, null, run_schedule.idempotency_key, run_schedule.actor);
  update capstan.schedules s set last_run_id = v_run where s.tenant = v_schedule.tenant and s.name = v_schedule.name;
  return v_run;
end $function$

CREATE OR REPLACE FUNCTION capstan.run_status(run_id uuid)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.send(run_id uuid, payload jsonb, kind text DEFAULT 'input'::text, dedupe_key text DEFAULT NULL::text, actor text DEFAULT NULL::text, traceparent text DEFAULT NULL::text)
 RETURNS uuid
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.set_hold(run_id uuid, hold boolean, reason text, actor text)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.set_quota(scope text, value text, kind text, unit text, "window" text, amount bigint, actor text DEFAULT NULL::text)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.setting_problem(value jsonb, kind text, min bigint, max bigint)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
  select case when case kind
      when 'boolean' then jsonb_typeof(value) = 'boolean'
      when 'text' then jsonb_typeof(value) = 'string' and value <> '""'
      else case when jsonb_typeof(value) = 'number' then value::numeric % 1 = 0 and value::numeric between min and coalesce(max, 9007199254740991) else false end end
    then null else 'must be ' || case kind when 'boolean' then 'true or false' when 'text' then 'a text that is not empty'
      else 'a whole number ' || case when max is null then 'of at least ' || min else 'from ' || min || ' to ' || max end end
    || ', not ' || case jsonb_typeof(value) when 'string' then to_json(left(value #>> '{}', 40))::text when 'array' then 'a list' when 'object' then 'a object' else value::text end end
$function$

CREATE OR REPLACE FUNCTION capstan.signal(run_id uuid, name text, payload jsonb DEFAULT 'null'::jsonb, dedupe_key text DEFAULT NULL::text, actor text DEFAULT NULL::text)
 RETURNS uuid
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.spawn_children(parent capstan.runs, call text, wait jsonb, at timestamp with time zone)
 RETURNS integer
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.stop_run(run_id uuid, reason text DEFAULT NULL::text, actor text DEFAULT NULL::text)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.strip_audit(tenant text, only_gone boolean)
 RETURNS bigint
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.take_wait(wait_id uuid, kinds text[])
 RETURNS capstan.waits
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.tell_webhooks()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
declare
  v_run capstan.runs;
  v_event text := case new.type when 'run.parked' then 'run.waiting' else new.type end;
begin
  if not exists (select from capstan.webhooks w where w.disabled_at is null) or (coalesce(current_setting('capstan_import.running', true), '') = 'on' and has_table_privilege(session_user, 'capstan.runs', 'insert')) then return null; end if;
  select * into v_run from capstan.runs r where r.id = new.run_id;
  insert into capstan.webhook_deliveries (id, webhook_id, tenant, run_id, event, body, at, next_at)
    select capstan.uuid_v7(), w.id, w.tenant, v_run.id, v_event,
      capstan.webhook_body(v_run, v_event, new.at, case
        when not w.content or new.payload is null then null
        when octet_length(new.payload::text) > 262144 then '{"content_omitted": "too large"}'
        else jsonb_strip_nulls(jsonb_build_object('output', new.payload::jsonb -> 'output', 'error', new.payload::jsonb -> 'error', 'reason', case when new.type = 'run.cancelled' then new.payload::jsonb -> 'reason' end)) end),
      new.at, new.at
    from capstan.webhooks w
    where w.tenant = v_run.tenant and w.disabled_at is null and v_event = any(w.events) and (w.agent is null or w.agent = v_run.agent);
  return null;
end $function$

CREATE OR REPLACE FUNCTION capstan.tick_schedule(tenant text, name text, cron text, timezone text, expected_at timestamp with time zone, ticks timestamp with time zone[], next_at timestamp with time zone)
 RETURNS jsonb
 LANGUAGE plpgsql
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.unpin_role(role text, tenant text DEFAULT NULL::text)
 RETURNS integer
 LANGUAGE plpgsql
AS $function$
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

CREATE OR REPLACE FUNCTION capstan.waits_for(run capstan.runs)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
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
end $function$

CREATE OR REPLACE FUNCTION capstan.webhook_body(run capstan.runs, event text, at timestamp with time zone, said jsonb)
 RETURNS jsonb
 LANGUAGE sql
 STABLE
AS $function$
  select jsonb_build_object('type', event, 'timestamp', to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), 'data',
    jsonb_strip_nulls(jsonb_build_object('run_id', run.id, 'tenant', run.tenant, 'agent', run.agent, 'state', run.state, 'wait_reason', run.wait_reason,
      'error_code', run.error_code, 'turn', run.turn, 'conversation_id', run.conversation_id, 'parent_run_id', run.parent_run_id, 'subject', run.subject,
      'labels', to_jsonb(run.labels), 'created_at', run.created_at, 'finished_at', run.finished_at)) || coalesce(said, '{}'))
$function$

CREATE OR REPLACE FUNCTION capstan.wish_again(run capstan.runs)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
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
end $function$

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
audit_log: insert, select
audit_log_id_seq: usage
blob_chunks: delete, insert, select, update
blob_refs: delete, insert, select, update
blobs: delete, insert, select, update
compaction_tasks: delete, insert, select, update
conversations: delete, insert, select, update
event_partitions: delete, insert, select, update
events: insert, select
events_default: insert, select
inbox: delete, insert, select, update
migrations: delete, insert, select, update
migrations_id_seq: usage
pauses: delete, insert, select, update
quota_buckets: delete, insert, select, update
quota_limits: delete, insert, select, update
quota_reservations: delete, insert, select, update
quota_slices: delete, insert, select, update
quota_slots: delete, insert, select, update
redaction_rules: delete, insert, select, update
role_tenants: select
runs: delete, insert, select, update
schedules: delete, insert, select, update
signals: delete, insert, select, update
tenant_keys: delete, insert, select, update
usage: delete, insert, select, update
usage_by_day: delete, insert, select, update
usage_ledger: delete, insert, select, update
usage_rollup: delete, insert, select, update
waits: delete, insert, select, update
webhook_deliveries: delete, insert, select, update
webhooks: delete, insert, select, update
wishes: delete, insert, select, update
workers: delete, insert, select, update
