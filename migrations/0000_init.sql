-- Generated from src/store/schema.ts, then by hand: the two functions that column defaults and writers need, the range
-- partitioning of events, and storage settings (measured: docs/performance.md). Locks: none that matter, all objects are new.
CREATE SCHEMA IF NOT EXISTS "capstan";
--> statement-breakpoint
-- The one clock: leases, timers and every `at` read it. clock_timestamp() and not now(), which stands still inside a
-- transaction. Tests move it by the setting; a setting that is no interval is an error, not a silent zero.
CREATE FUNCTION capstan.now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
  select clock_timestamp() + coalesce(nullif(current_setting('capstan_clock.offset', true), '')::interval, interval '0')
$$;
--> statement-breakpoint
-- UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, 12 bits of their fraction, then random: ids that one session makes
-- one after the other sort in that order (the inbox relies on it). Postgres 18 has its own; 15 to 17 do not.
CREATE FUNCTION capstan.uuid_v7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
  select encode(
    overlay(overlay(uuid_send(gen_random_uuid()) placing substring(int8send(t.us / 1000) from 3) from 1 for 6)
      placing int2send((28672 + t.us % 1000 * 4096 / 1000)::int2) from 7 for 2), 'hex')::uuid
  from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) t
$$;
--> statement-breakpoint
CREATE TABLE "capstan"."agent_definitions" (
	"sha" text PRIMARY KEY NOT NULL,
	"name" text NOT NULL,
	"definition" jsonb NOT NULL,
	"created_at" timestamp with time zone DEFAULT capstan.now() NOT NULL
);
--> statement-breakpoint
CREATE TABLE "capstan"."agent_promotions" (
	"id" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "capstan"."agent_promotions_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"name" text NOT NULL,
	"sha" text NOT NULL,
	"actor" text,
	"at" timestamp with time zone DEFAULT capstan.now() NOT NULL
);
--> statement-breakpoint
CREATE TABLE "capstan"."agents" (
	"name" text PRIMARY KEY NOT NULL,
	"promoted_sha" text NOT NULL,
	"retired_at" timestamp with time zone,
	"updated_at" timestamp with time zone DEFAULT capstan.now() NOT NULL
);
--> statement-breakpoint
CREATE TABLE "capstan"."api_tokens" (
	"id" uuid PRIMARY KEY NOT NULL,
	"name" text NOT NULL,
	"hash" bytea NOT NULL,
	"tenant" text NOT NULL,
	"subject" text,
	"scopes" text[] NOT NULL,
	"created_at" timestamp with time zone DEFAULT capstan.now() NOT NULL,
	"expires_at" timestamp with time zone,
	"revoked_at" timestamp with time zone,
	"last_used_at" timestamp with time zone,
	CONSTRAINT "api_tokens_hash" UNIQUE("hash")
);
--> statement-breakpoint
CREATE TABLE "capstan"."audit_log" (
	"id" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "capstan"."audit_log_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"at" timestamp with time zone DEFAULT capstan.now() NOT NULL,
	"tenant" text NOT NULL,
	"actor" text NOT NULL,
	"token_id" uuid,
	"action" text NOT NULL,
	"target" text NOT NULL,
	"detail" jsonb
);
--> statement-breakpoint
CREATE TABLE "capstan"."blob_chunks" (
	"tenant" text NOT NULL,
	"sha256" text NOT NULL,
	"n" integer NOT NULL,
	"bytes" bytea NOT NULL,
	CONSTRAINT "blob_chunks_tenant_sha256_n_pk" PRIMARY KEY("tenant","sha256","n")
);
--> statement-breakpoint
CREATE TABLE "capstan"."blob_refs" (
	"tenant" text NOT NULL,
	"sha256" text NOT NULL,
	"run_id" uuid NOT NULL,
	CONSTRAINT "blob_refs_tenant_sha256_run_id_pk" PRIMARY KEY("tenant","sha256","run_id")
);
--> statement-breakpoint
CREATE TABLE "capstan"."blobs" (
	"tenant" text NOT NULL,
	"sha256" text NOT NULL,
	"size_bytes" bigint NOT NULL,
	"media_type" text NOT NULL,
	"codec" text,
	"key_id" text,
	"created_at" timestamp with time zone DEFAULT capstan.now() NOT NULL,
	CONSTRAINT "blobs_tenant_sha256_pk" PRIMARY KEY("tenant","sha256")
);
--> statement-breakpoint
CREATE TABLE "capstan"."compaction_tasks" (
	"id" uuid PRIMARY KEY NOT NULL,
	"run_id" uuid NOT NULL,
	"tenant" text NOT NULL,
	"agent" text NOT NULL,
	"state" text NOT NULL,
	"trigger" text NOT NULL,
	"requested_at" timestamp with time zone NOT NULL,
	"updated_at" timestamp with time zone NOT NULL,
	"due_at" timestamp with time zone NOT NULL,
	"dispatched_at" timestamp with time zone,
	"view_epoch" integer NOT NULL,
	"from_seq" integer NOT NULL,
	"to_seq" integer NOT NULL,
	"first_kept_seq" integer NOT NULL,
	"worker_id" uuid,
	"fencing_token" integer DEFAULT 0 NOT NULL,
	"attempts" smallint DEFAULT 0 NOT NULL,
	"deaths" smallint DEFAULT 0 NOT NULL,
	"wait_reason" text,
	"request" jsonb NOT NULL,
	"result" jsonb,
	"error" jsonb,
	CONSTRAINT "compaction_tasks_state" CHECK (state in ('requested', 'summarizing', 'ready', 'applied', 'skipped', 'failed', 'superseded'))
);
--> statement-breakpoint
CREATE TABLE "capstan"."events" (
	"run_id" uuid NOT NULL,
	"at" timestamp with time zone NOT NULL,
	"append_id" integer NOT NULL,
	"seq" integer NOT NULL,
	"turn" integer NOT NULL,
	"fencing_token" integer NOT NULL,
	"view_epoch" integer NOT NULL,
	"size" integer NOT NULL,
	"version" smallint NOT NULL,
	"attempt" smallint NOT NULL,
	"type" text NOT NULL,
	"step_key" text,
	"origin" text,
	"actor" text,
	"inbox_id" uuid,
	"blob_refs" text[],
	"codec" text,
	"key_id" text,
	"payload" json,
	"payload_sealed" bytea,
	CONSTRAINT "events_run_id_seq_pk" PRIMARY KEY("run_id","seq"),
	CONSTRAINT "events_seq" CHECK (seq >= 1),
	CONSTRAINT "events_one_payload" CHECK ((codec is null) = (payload is not null) and (codec is null) = (payload_sealed is null))
) PARTITION BY RANGE ("run_id");
--> statement-breakpoint
CREATE TABLE "capstan"."events_default" PARTITION OF "capstan"."events" DEFAULT;
--> statement-breakpoint
CREATE TABLE "capstan"."inbox" (
	"id" uuid PRIMARY KEY NOT NULL,
	"run_id" uuid NOT NULL,
	"at" timestamp with time zone NOT NULL,
	"kind" text NOT NULL,
	"payload" jsonb NOT NULL,
	"dedupe_key" text,
	"actor" text,
	"traceparent" text,
	"applied_seq" integer
);
--> statement-breakpoint
CREATE TABLE "capstan"."quota_buckets" (
	"bucket" text NOT NULL,
	"window_start" timestamp with time zone NOT NULL,
	"window_end" timestamp with time zone NOT NULL,
	"leased" bigint NOT NULL,
	"last_lease" bigint NOT NULL,
	CONSTRAINT "quota_buckets_bucket_window_start_pk" PRIMARY KEY("bucket","window_start")
);
--> statement-breakpoint
CREATE TABLE "capstan"."quota_limits" (
	"scope" text NOT NULL,
	"value" text DEFAULT '*' NOT NULL,
	"kind" text NOT NULL,
	"unit" text NOT NULL,
	"window" text NOT NULL,
	"amount" bigint NOT NULL,
	"updated_at" timestamp with time zone DEFAULT capstan.now() NOT NULL,
	CONSTRAINT "quota_limits_scope_value_kind_unit_window_pk" PRIMARY KEY("scope","value","kind","unit","window"),
	CONSTRAINT "quota_limits_scope" CHECK (scope in ('overall', 'tenant', 'agent', 'model') and (scope <> 'overall' or value = '*')),
	CONSTRAINT "quota_limits_kind" CHECK (kind in ('turn', 'summary', 'tool')),
	CONSTRAINT "quota_limits_unit" CHECK (unit in ('calls', 'tokens', 'cost_usd_micros', 'concurrent')),
	CONSTRAINT "quota_limits_window" CHECK ("window" in ('minute', 'day', 'month', 'none') and ("window" = 'none') = (unit = 'concurrent')),
	CONSTRAINT "quota_limits_amount" CHECK (amount >= 0)
);
--> statement-breakpoint
CREATE TABLE "capstan"."quota_reservations" (
	"id" uuid NOT NULL,
	"bucket" text NOT NULL,
	"window_start" timestamp with time zone NOT NULL,
	"window_end" timestamp with time zone NOT NULL,
	"run_id" uuid NOT NULL,
	"turn" integer NOT NULL,
	"attempt" smallint NOT NULL,
	"worker_id" uuid NOT NULL,
	"amount" bigint NOT NULL,
	"reserved_at" timestamp with time zone NOT NULL,
	"settled_at" timestamp with time zone,
	"settled_amount" bigint,
	CONSTRAINT "quota_reservations_id_bucket_pk" PRIMARY KEY("id","bucket"),
	CONSTRAINT "quota_reservations_settled" CHECK ((settled_at is null) = (settled_amount is null))
);
--> statement-breakpoint
CREATE TABLE "capstan"."quota_slices" (
	"worker_id" uuid NOT NULL,
	"bucket" text NOT NULL,
	"window_start" timestamp with time zone NOT NULL,
	"window_end" timestamp with time zone NOT NULL,
	"leased" bigint NOT NULL,
	"used" bigint DEFAULT 0 NOT NULL,
	CONSTRAINT "quota_slices_worker_id_bucket_window_start_pk" PRIMARY KEY("worker_id","bucket","window_start")
);
--> statement-breakpoint
CREATE TABLE "capstan"."quota_slots" (
	"bucket" text NOT NULL,
	"slot" integer NOT NULL,
	"reservation_id" uuid NOT NULL,
	"worker_id" uuid NOT NULL,
	"taken_at" timestamp with time zone NOT NULL,
	CONSTRAINT "quota_slots_bucket_slot_pk" PRIMARY KEY("bucket","slot"),
	CONSTRAINT "quota_slots_slot" CHECK (slot >= 1)
);
--> statement-breakpoint
CREATE TABLE "capstan"."runs" (
	"id" uuid PRIMARY KEY NOT NULL,
	"created_at" timestamp with time zone NOT NULL,
	"tenant" text DEFAULT 'default' NOT NULL,
	"subject" text,
	"kind" text DEFAULT 'agent' NOT NULL,
	"agent" text NOT NULL,
	"overrides" jsonb,
	"policy" jsonb,
	"grants" jsonb,
	"origin" text DEFAULT 'api' NOT NULL,
	"parent_run_id" uuid,
	"parent_call" text,
	"child_index" integer,
	"root_run_id" uuid,
	"depth" smallint DEFAULT 0 NOT NULL,
	"conversation_id" uuid,
	"continued_from_run" uuid,
	"continued_from_seq" integer,
	"forked_from_run" uuid,
	"forked_from_seq" integer,
	"interactive" boolean DEFAULT false NOT NULL,
	"pool" text DEFAULT 'turn' NOT NULL,
	"priority" smallint DEFAULT 0 NOT NULL,
	"concurrency_key" text,
	"labels" text[],
	"metadata" jsonb,
	"deadline" timestamp with time zone,
	"run_at" timestamp with time zone,
	"traceparent" text,
	"tracestate" text,
	"idempotency_key" text,
	"input_digest" bytea,
	"hold" boolean DEFAULT false NOT NULL,
	"definition_sha" text,
	"paused" boolean DEFAULT false NOT NULL,
	"cancel_requested_at" timestamp with time zone,
	"finished_at" timestamp with time zone,
	"error_code" text,
	"view_marker_seq" integer,
	"context_window" integer,
	"state" text DEFAULT 'queued' NOT NULL,
	"wait_reason" text,
	"wake_at" timestamp with time zone,
	"crash_count" smallint DEFAULT 0 NOT NULL,
	"retry_count" smallint DEFAULT 0 NOT NULL,
	"taken_over" boolean DEFAULT false NOT NULL,
	"growth_level" smallint DEFAULT 0 NOT NULL,
	"view_epoch" integer DEFAULT 0 NOT NULL,
	"inbox_pending" integer DEFAULT 0 NOT NULL,
	"context_scale" text,
	"cost_usd_micros" bigint DEFAULT 0 NOT NULL,
	"cache_read_tokens" bigint DEFAULT 0 NOT NULL,
	"cache_write_tokens" bigint DEFAULT 0 NOT NULL,
	"input_tokens" bigint DEFAULT 0 NOT NULL,
	"output_tokens" bigint DEFAULT 0 NOT NULL,
	"context_tokens" integer,
	"transcript_bytes" bigint DEFAULT 0 NOT NULL,
	"journal_bytes" bigint DEFAULT 0 NOT NULL,
	"updated_at" timestamp with time zone NOT NULL,
	"next_seq" integer DEFAULT 1 NOT NULL,
	"turn" integer DEFAULT 0 NOT NULL,
	"fencing_token" integer DEFAULT 0 NOT NULL,
	"last_span" text,
	"worker_id" uuid,
	CONSTRAINT "runs_state" CHECK (state in ('queued', 'running', 'waiting', 'completed', 'failed', 'cancelled')),
	CONSTRAINT "runs_waiting_has_reason" CHECK ((state = 'waiting') = (wait_reason is not null)),
	CONSTRAINT "runs_finished_at" CHECK ((state in ('completed', 'failed', 'cancelled')) = (finished_at is not null)),
	CONSTRAINT "runs_finished_unheld" CHECK (finished_at is null or worker_id is null),
	CONSTRAINT "runs_positive" CHECK (fencing_token >= 0 and next_seq >= 1 and inbox_pending >= 0)
);
--> statement-breakpoint
CREATE TABLE "capstan"."usage_ledger" (
	"id" uuid PRIMARY KEY NOT NULL,
	"at" timestamp with time zone NOT NULL,
	"run_id" uuid NOT NULL,
	"tenant" text NOT NULL,
	"agent" text NOT NULL,
	"model" text,
	"kind" text NOT NULL,
	"turn" integer NOT NULL,
	"attempt" smallint NOT NULL,
	"outcome" text NOT NULL,
	"input_tokens" bigint DEFAULT 0 NOT NULL,
	"output_tokens" bigint DEFAULT 0 NOT NULL,
	"cache_read_tokens" bigint DEFAULT 0 NOT NULL,
	"cache_write_tokens" bigint DEFAULT 0 NOT NULL,
	"cost_usd_micros" bigint DEFAULT 0 NOT NULL,
	"estimated" boolean DEFAULT false NOT NULL
);
--> statement-breakpoint
CREATE TABLE "capstan"."wishes" (
	"run_id" uuid PRIMARY KEY NOT NULL,
	"at" timestamp with time zone NOT NULL,
	"priority" smallint NOT NULL,
	"ready" boolean NOT NULL,
	"pool" text NOT NULL,
	"agent" text NOT NULL,
	"tenant" text NOT NULL
);
--> statement-breakpoint
CREATE TABLE "capstan"."workers" (
	"id" uuid PRIMARY KEY NOT NULL,
	"pool" text NOT NULL,
	"host" text NOT NULL,
	"pid" integer NOT NULL,
	"version" text NOT NULL,
	"started_at" timestamp with time zone NOT NULL,
	"heartbeat_at" timestamp with time zone NOT NULL,
	"lease_ms" integer NOT NULL,
	"ended_at" timestamp with time zone,
	"end_reason" text,
	"slots" integer NOT NULL,
	"busy" integer DEFAULT 0 NOT NULL,
	"queue_pools" text[] DEFAULT '{}' NOT NULL,
	"agents" text[] DEFAULT '{}' NOT NULL,
	"tools" jsonb,
	"event_versions" jsonb,
	"labels" jsonb
);
--> statement-breakpoint
ALTER TABLE "capstan"."agents" ADD CONSTRAINT "agents_promoted_sha_agent_definitions_sha_fk" FOREIGN KEY ("promoted_sha") REFERENCES "capstan"."agent_definitions"("sha") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
CREATE INDEX "agent_promotions_name" ON "capstan"."agent_promotions" USING btree ("name","id");--> statement-breakpoint
CREATE INDEX "audit_log_tenant" ON "capstan"."audit_log" USING btree ("tenant","id");--> statement-breakpoint
CREATE INDEX "blob_refs_run" ON "capstan"."blob_refs" USING btree ("run_id");--> statement-breakpoint
CREATE UNIQUE INDEX "compaction_tasks_one_in_flight" ON "capstan"."compaction_tasks" USING btree ("run_id") WHERE state in ('requested', 'summarizing', 'ready');--> statement-breakpoint
CREATE INDEX "compaction_tasks_waiting" ON "capstan"."compaction_tasks" USING btree ("tenant","due_at") WHERE state = 'requested' and dispatched_at is null;--> statement-breakpoint
CREATE INDEX "compaction_tasks_busy" ON "capstan"."compaction_tasks" USING btree ("tenant") WHERE state in ('requested', 'summarizing') and dispatched_at is not null;--> statement-breakpoint
CREATE UNIQUE INDEX "events_step" ON "capstan"."events" USING btree ("run_id","step_key") WHERE step_key is not null;--> statement-breakpoint
CREATE INDEX "inbox_pending" ON "capstan"."inbox" USING btree ("run_id","id") WHERE applied_seq is null;--> statement-breakpoint
CREATE UNIQUE INDEX "inbox_dedupe" ON "capstan"."inbox" USING btree ("run_id","dedupe_key") WHERE dedupe_key is not null;--> statement-breakpoint
CREATE INDEX "quota_reservations_worker" ON "capstan"."quota_reservations" USING btree ("worker_id");--> statement-breakpoint
CREATE UNIQUE INDEX "quota_slots_reservation" ON "capstan"."quota_slots" USING btree ("reservation_id","bucket");--> statement-breakpoint
CREATE UNIQUE INDEX "runs_idempotency" ON "capstan"."runs" USING btree ("tenant","idempotency_key") WHERE idempotency_key is not null;--> statement-breakpoint
CREATE UNIQUE INDEX "runs_child" ON "capstan"."runs" USING btree ("parent_run_id","parent_call","child_index") WHERE parent_run_id is not null;--> statement-breakpoint
CREATE INDEX "runs_active" ON "capstan"."runs" USING btree ("state","pool") WHERE state in ('queued', 'running');--> statement-breakpoint
CREATE INDEX "runs_input_waits" ON "capstan"."runs" USING btree ("id") WHERE state = 'waiting' and inbox_pending > 0;--> statement-breakpoint
CREATE INDEX "runs_deadline" ON "capstan"."runs" USING btree ("deadline") WHERE state = 'waiting' and deadline is not null;--> statement-breakpoint
CREATE INDEX "runs_waiting" ON "capstan"."runs" USING btree ("wait_reason","agent") WHERE state = 'waiting';--> statement-breakpoint
CREATE INDEX "usage_ledger_run" ON "capstan"."usage_ledger" USING btree ("run_id");--> statement-breakpoint
CREATE INDEX "usage_ledger_tenant" ON "capstan"."usage_ledger" USING btree ("tenant","at");--> statement-breakpoint
CREATE INDEX "wishes_ready" ON "capstan"."wishes" USING btree ("pool","priority","at") WHERE ready;--> statement-breakpoint
CREATE INDEX "wishes_later" ON "capstan"."wishes" USING btree ("at") WHERE not ready;--> statement-breakpoint
CREATE INDEX "workers_alive" ON "capstan"."workers" USING btree ("pool") WHERE ended_at is null;
--> statement-breakpoint
-- runs: room on each page for heap-only updates, and vacuum by count, not by a fifth of a million ended runs.
ALTER TABLE "capstan"."runs" SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500, autovacuum_analyze_scale_factor = 0.05);
--> statement-breakpoint
-- wishes is a queue: all dead versions within seconds.
ALTER TABLE "capstan"."wishes" SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
--> statement-breakpoint
ALTER TABLE "capstan"."workers" SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
--> statement-breakpoint
-- quota_slots and quota_reservations turn over with each call that a quota applies to; the other two are small and updated in place.
ALTER TABLE "capstan"."quota_slots" SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
--> statement-breakpoint
ALTER TABLE "capstan"."quota_reservations" SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
--> statement-breakpoint
ALTER TABLE "capstan"."quota_buckets" SET (fillfactor = 50);
