CREATE TABLE "capstan"."tenant_keys" (
	"tenant" text NOT NULL,
	"version" integer NOT NULL,
	"wrapped" "bytea",
	"master_key" text NOT NULL,
	"created_at" timestamp with time zone DEFAULT capstan.now() NOT NULL,
	"destroyed_at" timestamp with time zone,
	CONSTRAINT "tenant_keys_tenant_version_pk" PRIMARY KEY("tenant","version")
);
--> statement-breakpoint
CREATE TABLE "capstan"."webhook_deliveries" (
	"id" uuid PRIMARY KEY NOT NULL,
	"webhook_id" uuid NOT NULL,
	"tenant" text NOT NULL,
	"run_id" uuid NOT NULL,
	"event" text NOT NULL,
	"body" jsonb NOT NULL,
	"at" timestamp with time zone NOT NULL,
	"attempts" smallint DEFAULT 0 NOT NULL,
	"next_at" timestamp with time zone,
	"delivered_at" timestamp with time zone,
	"gave_up_at" timestamp with time zone,
	"status_code" smallint,
	"error" text
);
--> statement-breakpoint
CREATE TABLE "capstan"."webhooks" (
	"id" uuid PRIMARY KEY NOT NULL,
	"tenant" text NOT NULL,
	"name" text NOT NULL,
	"url" text NOT NULL,
	"secret" text NOT NULL,
	"events" text[] NOT NULL,
	"agent" text,
	"actor" text,
	"created_at" timestamp with time zone DEFAULT capstan.now() NOT NULL,
	"disabled_at" timestamp with time zone
);
--> statement-breakpoint
ALTER TABLE "capstan"."quota_limits" DROP CONSTRAINT "quota_limits_kind";--> statement-breakpoint
ALTER TABLE "capstan"."quota_limits" DROP CONSTRAINT "quota_limits_unit";--> statement-breakpoint
ALTER TABLE "capstan"."quota_limits" DROP CONSTRAINT "quota_limits_window";--> statement-breakpoint
ALTER TABLE "capstan"."runs" ADD COLUMN "concurrency_limit" smallint;--> statement-breakpoint
ALTER TABLE "capstan"."runs" ADD COLUMN "budget_level" smallint DEFAULT 0 NOT NULL;--> statement-breakpoint
CREATE INDEX "webhook_deliveries_due" ON "capstan"."webhook_deliveries" USING btree ("next_at") WHERE next_at is not null;--> statement-breakpoint
CREATE INDEX "webhook_deliveries_webhook" ON "capstan"."webhook_deliveries" USING btree ("webhook_id","id");--> statement-breakpoint
CREATE INDEX "webhook_deliveries_run" ON "capstan"."webhook_deliveries" USING btree ("run_id");--> statement-breakpoint
CREATE UNIQUE INDEX "webhooks_name" ON "capstan"."webhooks" USING btree ("tenant","name");--> statement-breakpoint
CREATE INDEX "runs_concurrency" ON "capstan"."runs" USING btree ("tenant","concurrency_key","id") WHERE concurrency_key is not null and finished_at is null;--> statement-breakpoint
CREATE INDEX "runs_tenant" ON "capstan"."runs" USING btree ("tenant","id");--> statement-breakpoint
CREATE INDEX "runs_subject" ON "capstan"."runs" USING btree ("tenant","subject") WHERE subject is not null;--> statement-breakpoint
CREATE INDEX "runs_finished" ON "capstan"."runs" USING btree ("finished_at") WHERE finished_at is not null;--> statement-breakpoint
ALTER TABLE "capstan"."quota_limits" ADD CONSTRAINT "quota_limits_kind" CHECK (kind in ('turn', 'summary', 'tool', 'run') and (kind = 'run') = (unit = 'queued'));--> statement-breakpoint
ALTER TABLE "capstan"."quota_limits" ADD CONSTRAINT "quota_limits_unit" CHECK (unit in ('calls', 'tokens', 'cost_usd_micros', 'concurrent', 'queued'));--> statement-breakpoint
ALTER TABLE "capstan"."quota_limits" ADD CONSTRAINT "quota_limits_window" CHECK ("window" in ('minute', 'day', 'month', 'none') and ("window" = 'none') = (unit in ('concurrent', 'queued')));--> statement-breakpoint
CREATE TABLE "capstan"."usage_rollup" (
	"tenant" text NOT NULL,
	"day" date NOT NULL,
	"agent" text NOT NULL,
	"model" text DEFAULT '' NOT NULL,
	"kind" text NOT NULL,
	"calls" bigint DEFAULT 0 NOT NULL,
	"input_tokens" bigint DEFAULT 0 NOT NULL,
	"output_tokens" bigint DEFAULT 0 NOT NULL,
	"cache_read_tokens" bigint DEFAULT 0 NOT NULL,
	"cache_write_tokens" bigint DEFAULT 0 NOT NULL,
	"cost_usd_micros" bigint DEFAULT 0 NOT NULL,
	CONSTRAINT "usage_rollup_tenant_day_agent_model_kind_pk" PRIMARY KEY("tenant","day","agent","model","kind")
);
--> statement-breakpoint
CREATE INDEX "inbox_run" ON "capstan"."inbox" USING btree ("run_id");--> statement-breakpoint
CREATE INDEX "waits_run" ON "capstan"."waits" USING btree ("run_id");--> statement-breakpoint
CREATE INDEX "signals_run" ON "capstan"."signals" USING btree ("run_id");--> statement-breakpoint
CREATE INDEX "compaction_tasks_run" ON "capstan"."compaction_tasks" USING btree ("run_id");--> statement-breakpoint
-- The relay serves tenants in turn (docs/quotas.md): it has to find the next tenant, and a tenant's next wishes, by the index.
DROP INDEX "capstan"."wishes_ready";--> statement-breakpoint
CREATE INDEX "wishes_ready" ON "capstan"."wishes" USING btree ("pool","tenant","priority","at") WHERE ready;--> statement-breakpoint
-- Limits of how many runs may be queued are counted at each enqueue that one applies to. Written at an enqueue and left at the first claim.
CREATE INDEX "runs_queued_tenant" ON "capstan"."runs" USING btree ("tenant") WHERE state = 'queued';--> statement-breakpoint
CREATE INDEX "runs_queued_agent" ON "capstan"."runs" USING btree ("agent") WHERE state = 'queued';--> statement-breakpoint
CREATE TABLE "capstan"."role_tenants" (
	"role" text NOT NULL,
	"tenant" text NOT NULL,
	"created_at" timestamp with time zone DEFAULT capstan.now() NOT NULL,
	CONSTRAINT "role_tenants_role_tenant_pk" PRIMARY KEY("role","tenant")
);--> statement-breakpoint
ALTER TABLE "capstan"."webhooks" ADD COLUMN "disabled_reason" text;--> statement-breakpoint
ALTER TABLE "capstan"."webhooks" ADD COLUMN "previous_secret" text;--> statement-breakpoint
ALTER TABLE "capstan"."webhooks" ADD COLUMN "previous_until" timestamp with time zone;--> statement-breakpoint
ALTER TABLE "capstan"."webhooks" ADD COLUMN "content" boolean DEFAULT false NOT NULL;--> statement-breakpoint
ALTER TABLE "capstan"."webhooks" ADD COLUMN "failures" smallint DEFAULT 0 NOT NULL;--> statement-breakpoint
CREATE TABLE "capstan"."redaction_rules" (
	"name" text PRIMARY KEY NOT NULL,
	"n" smallint NOT NULL,
	"kind" text NOT NULL,
	"pattern" text,
	"replacement" text NOT NULL,
	CONSTRAINT "redaction_rules_kind" CHECK (kind in ('pattern', 'card', 'account') and (kind = 'pattern') = (pattern is not null))
);
--> statement-breakpoint
CREATE INDEX "webhook_deliveries_waiting" ON "capstan"."webhook_deliveries" USING btree ("webhook_id","next_at") WHERE next_at is not null;
