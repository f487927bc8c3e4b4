/** Runs as they go in and out. */
import { z } from "zod";
import { runStatuses } from "../domain/run.ts";
import { wholeNumber } from "../domain/ranges.ts";
import * as s from "./shapes.ts";

export const runState = z.enum(runStatuses);

export const concurrency = z
  .strictObject({
    key: s.word(),
    limit: wholeNumber(1, 10_000).optional(),
    scope: z.enum(["agent", "all"]).optional(),
    on_conflict: z.enum(["queue", "replace", "refuse"]).optional(),
  })
  .meta({ id: "Concurrency", description: "Runs of the tenant with the same key: so many go at a time" });

/** What a run may have beside agent and input. */
const options = {
  priority: s.priority.optional(),
  run_at: s.time.optional(),
  deadline: s.time.optional(),
  interactive: z.boolean().optional(),
  metadata: s.metadata.optional(),
  labels: s.labels.optional(),
  subject: s.word().optional(),
  concurrency: concurrency.optional(),
  compaction: s.compaction.optional(),
  budget: s.budget.optional(),
  definition_sha: z
    .string()
    .regex(/^sha256:[0-9a-f]{64}$/, "must be sha256: and 64 hex digits")
    .optional(),
  pool: s.word().optional(),
};

export const newRun = z.strictObject({ agent: s.agentName, input: s.json, ...options }).meta({ id: "NewRun" });
export const newRuns = z
  .strictObject({
    runs: z
      .array(z.strictObject({ agent: s.agentName, input: s.json, ...options, idempotency_key: s.word(400).optional() }))
      .min(1)
      .max(1_000),
  })
  .meta({ id: "NewRuns", description: "All of them are started, or none" });
export type NewRun = z.output<typeof newRun>;

/** What a run that begins with another's view may have of its own. */
export const derived = {
  priority: s.priority.optional(),
  pool: s.word().optional(),
  labels: s.labels.optional(),
  metadata: s.metadata.optional(),
  run_at: s.time.optional(),
  deadline: s.time.optional(),
};

const usage = z
  .looseObject({
    input_tokens: z.number(),
    output_tokens: z.number(),
    cache_read_tokens: z.number(),
    cache_write_tokens: z.number(),
    cost_usd_micros: z.number(),
  })
  .meta({ id: "RunUsage" });

export const run = z
  .looseObject({
    run_id: s.uuid,
    agent: z.string(),
    tenant: z.string(),
    state: runState,
    wait_reason: z.string().optional(),
    wake_at: z.string().optional(),
    waits_for: z.looseObject({ kind: z.string() }).optional().describe("A quota or a concurrency key that it stands before"),
    paused: z.boolean(),
    turn: z.int(),
    last_seq: z.int(),
    created_at: z.string(),
    updated_at: z.string(),
    finished_at: z.string().optional(),
    output: z.unknown().optional(),
    error: z.looseObject({ code: z.string(), message: z.string() }).optional(),
    compaction: z.looseObject({}).describe("In force, with defaults"),
    budget: z.looseObject({}).optional().describe("In force"),
    budget_level: z.int().optional(),
    usage,
  })
  .meta({ id: "Run" });

export const runSummary = z
  .looseObject({
    run_id: s.uuid,
    agent: z.string(),
    tenant: z.string(),
    state: runState,
    wait_reason: z.string().optional(),
    paused: z.boolean(),
    interactive: z.boolean(),
    turn: z.int(),
    last_seq: z.int(),
    created_at: z.string(),
    updated_at: z.string(),
    finished_at: z.string().optional(),
    error_code: z.string().optional(),
  })
  .meta({ id: "RunSummary" });

export const event = z
  .looseObject({ seq: z.int(), type: z.string(), version: z.int(), turn: z.int(), attempt: z.int(), at: z.string(), payload: z.unknown() })
  .meta({ id: "Event" });

export const wait = z
  .looseObject({
    id: s.uuid,
    run_id: s.uuid,
    agent: z.string(),
    call_id: z.string(),
    kind: z.enum(["approval", "question", "signal", "timer", "children", "completion"]),
    name: z.string(),
    detail: z.looseObject({}),
    requested_at: z.string(),
    expires_at: z.string().optional(),
  })
  .meta({ id: "Wait" });

export const started = z.looseObject({ run_id: s.uuid }).meta({ id: "StartedRun" });
export const message = z.looseObject({ role: z.string(), content: z.unknown() }).meta({ id: "Message" });
