/** What the tools take: one schema for what an assistant is shown and for what is checked. */
import { z } from "zod";
import { agentNamePattern } from "../../domain/definition.ts";
import type { JsonObject, JsonValue } from "../../domain/json.ts";
import { wholeNumber } from "../../domain/ranges.ts";
import { runStatuses } from "../../domain/run.ts";

/** An assistant's own calls end after about a minute (the SDK's default): what waits, answers before. */
export const MAX_WAIT_MS = 50_000;

// `describe` goes into the schema that a model reads.
const runId = z.uuid().describe("The run's id");
const callId = z.string().min(1).max(200).describe("The call's id, as list_approvals gives it");
const json = z.json().transform((value) => value as JsonValue);
const object = z.record(z.string(), z.json()).transform((value) => value as JsonObject);
const instant = z.iso.datetime({ offset: true }).describe("ISO 8601 with a zone");
const reason = z.string().max(2_000).optional();

export const enqueueInput = z.strictObject({
  agent: z.string().regex(agentNamePattern).describe("The agent's name, as list_agents gives it"),
  input: json.describe("A text, or the JSON that the agent takes"),
  idempotency_key: z
    .string()
    .min(1)
    .max(200)
    .optional()
    .describe("Met again with the same input it gives the run that exists: give one, so that a repeated call starts no second run"),
  priority: wholeNumber(-1_000, 1_000).optional().describe("Lower runs sooner; default 0"),
  run_at: instant.optional(),
  deadline: instant.optional(),
  interactive: z.boolean().optional().describe("The run waits for input after an answer instead of ending"),
  labels: z.array(z.string().min(1).max(100)).max(20).optional(),
  metadata: object.optional(),
});

export const listRunsInput = z.strictObject({
  state: z.enum(runStatuses).optional(),
  agent: z.string().optional(),
  limit: wholeNumber(1, 100).default(20),
  cursor: runId.optional().describe("next_cursor of the page before"),
});

export const runInput = z.strictObject({ run_id: runId });

export const followInput = z.strictObject({
  run_id: runId,
  after: wholeNumber(0).default(0).describe("Only events behind this seq: next_after of the answer before"),
  limit: wholeNumber(1, 200).default(50),
  wait_ms: wholeNumber(0, MAX_WAIT_MS).default(0).describe("How long to wait for the run to end, or to wait for somebody; 0 gives what is there now"),
});

export const sendInput = z.strictObject({
  run_id: runId,
  content: json.describe("Input for a run that waits for it, or steering for one at work"),
  dedupe_key: z.string().min(1).max(200).optional().describe("The same key is the same input, however often it is sent"),
});

export const stopInput = z.strictObject({ run_id: runId, reason });

export const compactInput = z.strictObject({
  run_id: runId,
  when: z.enum(["now", "boundary"]).default("now").describe("now: refused with RUN_BUSY in the middle of a turn; boundary: when the turn ends"),
  wait_ms: wholeNumber(0, MAX_WAIT_MS).default(20_000),
});

export const listApprovalsInput = z.strictObject({ run_id: runId.optional(), limit: wholeNumber(1, 100).default(20), cursor: z.uuid().optional() });

export const decideInput = z.strictObject({
  run_id: runId,
  call_id: callId,
  decision: z.enum(["approve", "deny"]),
  input: object.optional().describe("With approve: arguments to use instead of the model's own"),
  reason,
});

export const answerInput = z.strictObject({ run_id: runId, call_id: callId, answer: json });

export const noInput = z.strictObject({});
