CREATE TABLE "capstan"."conversations" (
	"id" uuid PRIMARY KEY NOT NULL,
	"tenant" text NOT NULL,
	"agent" text NOT NULL,
	"subject" text,
	"title" text,
	"budget" jsonb,
	"metadata" jsonb,
	"last_run_id" uuid,
	"summary" jsonb,
	"created_at" timestamp with time zone NOT NULL,
	"updated_at" timestamp with time zone NOT NULL
);
--> statement-breakpoint
CREATE TABLE "capstan"."pauses" (
	"scope" text NOT NULL,
	"value" text NOT NULL,
	"at" timestamp with time zone NOT NULL,
	"reason" text,
	"actor" text,
	CONSTRAINT "pauses_scope_value_pk" PRIMARY KEY("scope","value"),
	CONSTRAINT "pauses_scope" CHECK (scope in ('tenant', 'all') and (scope = 'all') = (value = '*'))
);
--> statement-breakpoint
CREATE TABLE "capstan"."schedules" (
	"tenant" text NOT NULL,
	"name" text NOT NULL,
	"agent" text NOT NULL,
	"input" jsonb NOT NULL,
	"cron" text NOT NULL,
	"timezone" text NOT NULL,
	"catch_up" text NOT NULL,
	"paused" boolean DEFAULT false NOT NULL,
	"options" jsonb,
	"next_at" timestamp with time zone,
	"last_tick_at" timestamp with time zone,
	"last_run_id" uuid,
	"last_error" jsonb,
	"created_at" timestamp with time zone NOT NULL,
	"updated_at" timestamp with time zone NOT NULL,
	"actor" text,
	CONSTRAINT "schedules_tenant_name_pk" PRIMARY KEY("tenant","name"),
	CONSTRAINT "schedules_catch_up" CHECK (catch_up in ('none', 'last', 'all'))
);
--> statement-breakpoint
CREATE TABLE "capstan"."signals" (
	"id" uuid PRIMARY KEY NOT NULL,
	"run_id" uuid NOT NULL,
	"name" text NOT NULL,
	"payload" jsonb NOT NULL,
	"at" timestamp with time zone NOT NULL,
	"dedupe_key" text,
	"actor" text,
	"wait_id" uuid
);
--> statement-breakpoint
CREATE TABLE "capstan"."waits" (
	"id" uuid PRIMARY KEY NOT NULL,
	"run_id" uuid NOT NULL,
	"tenant" text NOT NULL,
	"agent" text NOT NULL,
	"turn" integer NOT NULL,
	"call_id" text NOT NULL,
	"call_index" integer NOT NULL,
	"kind" text NOT NULL,
	"name" text NOT NULL,
	"detail" jsonb NOT NULL,
	"requested_at" timestamp with time zone NOT NULL,
	"expires_at" timestamp with time zone,
	"pending" integer DEFAULT 0 NOT NULL,
	"answered_at" timestamp with time zone,
	"answer" jsonb,
	"answered_by" text,
	"settled_at" timestamp with time zone,
	CONSTRAINT "waits_kind" CHECK (kind in ('approval', 'question', 'signal', 'timer', 'children', 'completion')),
	CONSTRAINT "waits_pending" CHECK (pending >= 0)
);
--> statement-breakpoint
ALTER TABLE "capstan"."runs" ADD COLUMN "seq_offset" integer DEFAULT 0 NOT NULL;--> statement-breakpoint
CREATE INDEX "conversations_tenant" ON "capstan"."conversations" USING btree ("tenant","id");--> statement-breakpoint
CREATE INDEX "schedules_due" ON "capstan"."schedules" USING btree ("next_at") WHERE not paused and next_at is not null;--> statement-breakpoint
CREATE INDEX "signals_kept" ON "capstan"."signals" USING btree ("run_id","name","id") WHERE wait_id is null;--> statement-breakpoint
CREATE UNIQUE INDEX "signals_dedupe" ON "capstan"."signals" USING btree ("run_id","dedupe_key") WHERE dedupe_key is not null;--> statement-breakpoint
CREATE INDEX "waits_open" ON "capstan"."waits" USING btree ("tenant","kind","id") WHERE settled_at is null;--> statement-breakpoint
CREATE INDEX "waits_of_run" ON "capstan"."waits" USING btree ("run_id") WHERE settled_at is null;--> statement-breakpoint
CREATE INDEX "runs_ended_inbox" ON "capstan"."runs" USING btree ("id") WHERE finished_at is not null and inbox_pending > 0;--> statement-breakpoint
CREATE INDEX "runs_wake" ON "capstan"."runs" USING btree ("wake_at") WHERE state = 'waiting' and wake_at is not null;--> statement-breakpoint
CREATE INDEX "runs_conversation" ON "capstan"."runs" USING btree ("conversation_id","id") WHERE conversation_id is not null;--> statement-breakpoint
CREATE INDEX "runs_forks" ON "capstan"."runs" USING btree ("forked_from_run") WHERE forked_from_run is not null;--> statement-breakpoint
CREATE INDEX "runs_continuations" ON "capstan"."runs" USING btree ("continued_from_run") WHERE continued_from_run is not null;