/**
 * The closed union of journal events. Names are dotted and in the past tense; each has one zod schema per version and
 * only the newest is written. A row's envelope (seq, turn, attempt, step key, token, epoch, origin, actor) stands in
 * columns; the payload holds only what is new (P6): never a transcript, never a whole request.
 */
import { z } from "zod";
import { budgetKinds, budgetSchema } from "./budget.ts";
import { carrySchema, compactionReasons, compactionTriggers, cutSchema, excerptSchema, factsCheckSchema, headSchema, rungSchema, viewSizeSchema } from "./compaction/types.ts";
import type { JsonObject, JsonValue } from "./json.ts";
import { assistantPart, userPart } from "./transcript/message.ts";
import { usageSchema } from "./usage.ts";

const jsonValue = z.custom<JsonValue>((v) => v !== undefined);
const jsonObject = z.custom<JsonObject>((v) => typeof v === "object" && v !== null && !Array.isArray(v));

const recordedError = z.object({
  code: z.string(),
  message: z.string(),
  details: jsonObject.optional(),
  cause: z.array(z.string()).optional(),
});

/** What an open call waits for. Times are ISO 8601. */
export const callWaitSchema = z.discriminatedUnion("kind", [
  /** A person's leave, before anything is executed. */
  z.object({ kind: z.literal("approval"), input: jsonValue, expires_at: z.string().optional(), on_expiry: z.enum(["approve", "deny"]).optional() }),
  /** A person's answer. */
  z.object({
    kind: z.literal("question"),
    question: z.string(),
    options: z.array(z.string()).optional(),
    schema: jsonObject.optional(),
    expires_at: z.string().optional(),
    default: jsonValue.optional(),
  }),
  z.object({ kind: z.literal("signal"), signal: z.string(), schema: jsonObject.optional(), expires_at: z.string().optional() }),
  z.object({ kind: z.literal("timer"), wake_at: z.string() }),
  /** Runs that this call started. */
  z.object({
    kind: z.literal("children"),
    /** How many of them run at the same time. */
    concurrency: z.int().positive(),
    children: z.array(
      z.object({
        run_id: z.string(),
        agent: z.string(),
        definition_sha: z.string(),
        input: jsonValue,
        /** What was set for it, merged: per-spawn override over this run's over its definition; defaults are not in it. */
        compaction: jsonObject.optional(),
        /** What it may use at most. */
        grants: z.array(z.string()).optional(),
        /** Its share of what is left of this run's hard limits. */
        budget: budgetSchema.optional(),
        deadline: z.string().optional(),
      }),
    ),
  }),
  /** The tool has handed back "later": whoever has the wait's id completes it. */
  z.object({ kind: z.literal("completion"), schema: jsonObject.optional(), expires_at: z.string().optional() }),
]);
export type CallWait = z.infer<typeof callWaitSchema>;

/** Why a run waits. A waiting run is called by its reason in texts and URLs (`awaiting_input`). */
export const waitReasons = ["input", "approval", "children", "signal", "timer", "compaction", "quota", "retry", "crash_loop", "agent_missing", "context_exhausted"] as const;
export type WaitReason = (typeof waitReasons)[number];

export const eventSchemas = {
  /** Written by enqueue, in the caller's transaction. `definition_sha` is null when no definition of that name was known. */
  "run.created": z.object({
    origin: z.enum(["api", "spawn", "fork", "continue", "retry", "import", "schedule", "workflow"]),
    agent: z.string(),
    definition_sha: z.string().nullable(),
    input: jsonValue,
    interactive: z.boolean().optional(),
    /**
     * The run whose events up to `seq` this run's view begins with: a fork, a retry, the next run of a conversation.
     * They are read through this reference. `position` is that event's place in the whole line (domain/position.ts).
     */
    base: z.object({ run_id: z.string(), seq: z.int().positive(), position: z.int().positive() }).optional(),
    conversation_id: z.string().optional(),
    /** The call that spawned it. */
    parent: z.object({ run_id: z.string(), call_id: z.string(), index: z.int().nonnegative() }).optional(),
    /** The schedule that started it, and for which tick. */
    schedule: z.object({ name: z.string(), tick: z.string() }).optional(),
    /** Compaction as somebody set it for this run: per-run override over parent over definition; defaults are not in it. */
    compaction: jsonObject.optional(),
    /** What the parent handed down: nothing outside it may be used, whatever the definition says. */
    grants: z.array(z.string()).optional(),
    /** A budget of this run alone, over its definition's; of two hard limits the smaller one holds. */
    budget: budgetSchema.optional(),
  }),
  /** The run was enqueued by name before any definition was known; the first worker pinned the promoted one. */
  "run.pinned": z.object({ definition_sha: z.string() }),
  /**
   * The start of a turn and its request, committed before the call. The request itself is not stored: rendering
   * `to_seq` events of the row's view epoch with `render` gives it again, and `hash` and `size_bytes` prove it.
   */
  "model.requested": z.object({
    model: z.string(),
    to_seq: z.int().nonnegative(),
    /** seq of the compaction marker that the view begins with; absent for a view from the first event. */
    marker: z.int().positive().optional(),
    render: z.int().positive(),
    /** The output schema was asked of the provider itself, not by the `submit_output` tool. */
    native_output: z.boolean().optional(),
    /** The turn in which the model answers with what it has: the definition's tools were left out. */
    no_tools: z.literal(true).optional(),
    /** Message indexes after which the vendor was asked to cache. */
    breakpoints: z.array(z.int().nonnegative()),
    size_bytes: z.int().nonnegative(),
    /** Chained sha256 of the canonical call, base64url. */
    hash: z.string(),
    /** Why this is not the turn's first request. `lost`: the earlier call died with its worker and may have been billed. */
    again: z.enum(["lost", "failed", "interrupted"]).optional(),
  }),
  /** The response, and in the same row the announcement of its calls. */
  "model.responded": z.object({
    content: z.array(assistantPart),
    finish: z.object({ reason: z.enum(["stop", "length", "tool_calls", "content_filter", "error", "other"]), raw: z.string().optional() }),
    usage: usageSchema,
    cost_usd_micros: z.int().nonnegative().optional(),
    model: z.string().optional(),
    response_id: z.string().optional(),
    wire: z.object({ sha256: z.string(), client: z.string() }).optional(),
    raw_usage: jsonObject.optional(),
    /** The server cut the prompt to this many tokens and said nothing: its window is no larger, whatever was believed. */
    truncated_to: z.int().positive().optional(),
    /** Positions of calls with side effects that are executed as soon as this row is committed: from here on their outcome may be unknown. */
    announced: z.array(z.int().nonnegative()).optional(),
    duration_ms: z.int().nonnegative(),
  }),
  "model.failed": z.object({
    error: recordedError,
    retryable: z.boolean(),
    counts: z.boolean(),
    retry_in_ms: z.int().nonnegative().optional(),
    usage: usageSchema.optional(),
    /** A failed or rejected answer is paid for like any other. */
    cost_usd_micros: z.int().nonnegative().optional(),
    duration_ms: z.int().nonnegative(),
  }),
  /** The engine answers the model itself: its response was empty, cut off, or not what the output schema asks for. */
  "model.corrected": z.object({ reason: z.enum(["empty", "truncated", "output_invalid"]), text: z.string() }),
  /** A call with side effects that had to wait (for a slot, an approval) is announced just before it is executed. */
  "tool.started": z.object({ call_id: z.string(), index: z.int().nonnegative(), name: z.string() }),
  "tool.completed": z.object({
    call_id: z.string(),
    index: z.int().nonnegative(),
    name: z.string(),
    output: jsonValue,
    /** The whole result stands in a blob; `output` is its excerpt. */
    blob: z.object({ sha256: z.string(), size_bytes: z.int().nonnegative(), media_type: z.string() }).optional(),
    /** Strings that were repaired on the way in (NUL, broken surrogates). */
    repaired: z.int().positive().optional(),
    /** What the `context` tool asks of the engine: takes effect at the next boundary. */
    context: z.discriminatedUnion("op", [z.object({ op: z.literal("compact") }), z.object({ op: z.literal("pin"), text: z.string() })]).optional(),
    /** What was executed, where a guard had rewritten the call's arguments. */
    executed_input: jsonValue.optional(),
    /** What the children of this call took, with all that they started; told where the run has a budget. */
    spent: z.object({ tokens: z.int().nonnegative(), cost_usd_micros: z.int().nonnegative() }).optional(),
    duration_ms: z.int().nonnegative(),
  }),
  "tool.failed": z.object({
    call_id: z.string(),
    index: z.int().nonnegative(),
    name: z.string(),
    error: recordedError,
    /** What was executed, where a guard had rewritten the call's arguments. */
    executed_input: jsonValue.optional(),
    duration_ms: z.int().nonnegative(),
  }),
  /** A call with side effects was announced and its end is not known: the model is told so (P4). */
  "tool.interrupted": z.object({
    call_id: z.string(),
    index: z.int().nonnegative(),
    name: z.string(),
    reason: z.enum(["worker_lost", "timed_out", "aborted"]),
  }),
  /** A call that is answered from outside: nothing of it is executed before, or the tool has handed it over. The trigger of the same commit makes its row in `waits`. */
  "call.waiting": z.object({
    call_id: z.string(),
    index: z.int().nonnegative(),
    name: z.string(),
    wait_id: z.string(),
    wait: callWaitSchema,
  }),
  /** A person's word on a call that waits for approval; `expired` is the default that was set for nobody's. */
  "approval.decided": z.object({
    call_id: z.string(),
    index: z.int().nonnegative(),
    wait_id: z.string(),
    decision: z.enum(["approve", "deny"]),
    expired: z.literal(true).optional(),
    /** The arguments as edited; absent: as the model wrote them. */
    input: jsonValue.optional(),
    reason: z.string().optional(),
  }),
  /** The turn at hand was stopped from outside and the run kept: an unanswered request is dropped, open calls were answered before it. */
  "turn.stopped": z.object({ reason: z.string().optional() }),
  /** Input from outside, taken from the inbox at a boundary; the row's inbox id says which. */
  "input.applied": z.object({ content: z.array(userPart), steering: z.boolean().optional() }),
  /**
   * A compaction was planned at a boundary of this run. The task row is made by a trigger in the same commit; turns go
   * on meanwhile. `cut` names positions, so that rows written while the summary is being made are simply the tail.
   */
  "compaction.requested": z.object({
    task_id: z.string(),
    trigger: z.enum(compactionTriggers),
    cut: cutSchema,
    /** The effective policy, defaults applied. */
    policy: jsonObject,
    before: viewSizeSchema,
    /** Fired by the byte counter: the summary's limit is smaller then. */
    by_bytes: z.boolean().optional(),
    /** Prepared early (`prefetch_at_pct`): put in when the percentage is reached. */
    prefetch: z.boolean().optional(),
    /** The next request did not fit any more: a skeleton is better than no view at all. */
    hard: z.boolean().optional(),
  }),
  /** The summary of an early task is there and waits in the task's row. */
  "compaction.prepared": z.object({ task_id: z.string() }),
  /** Wanted and not done; told once per reason and run. */
  "compaction.skipped": z.object({ trigger: z.enum(compactionTriggers), reason: z.enum(compactionReasons), task_id: z.string().optional(), detail: jsonObject }),
  /** The task ended without a summary that could be used; the view is as it was. */
  "compaction.failed": z.object({ task_id: z.string(), trigger: z.enum(compactionTriggers), reason: z.enum(compactionReasons), detail: jsonObject }),
  /** The marker: from here on the view is the head and the events from `cut.first_kept_seq` on. */
  "context.compacted": z.object({
    task_id: z.string(),
    trigger: z.enum(compactionTriggers),
    cut: cutSchema,
    head: headSchema,
    before: viewSizeSchema,
    after: viewSizeSchema,
    summarizer: z.string(),
    model: z.string().optional(),
    usage: usageSchema.optional(),
    cost_usd_micros: z.int().nonnegative().optional(),
    /** Model calls that it took, also refused and rejected ones. */
    calls: z.int().nonnegative(),
    rung: rungSchema,
    facts_check: factsCheckSchema,
    policy: jsonObject,
    /** sha256 of the canonical messages that were replaced and of the view that came of it, base64url. */
    source_digest: z.string(),
    view_digest: z.string(),
    /** Version of planning and head. */
    algorithm: z.int().positive(),
    carry: carrySchema,
    duration_ms: z.int().nonnegative(),
  }),
  /** Old results that can be fetched again were shortened in the view, without a summary. */
  "context.pruned": z.object({ excerpts: z.array(excerptSchema), before: viewSizeSchema, after: viewSizeSchema, reason: z.enum(compactionReasons) }),
  /**
   * A limit of the run's budget: a soft one is told once per limit; behind a hard one the run ends, or the model is told
   * (`text`) to answer in one more turn. `next`: what the next call may take, where that would have passed the limit.
   */
  "budget.reached": z.object({
    level: z.enum(["soft", "hard"]),
    limit: z.enum(budgetKinds),
    used: z.int().nonnegative(),
    of: z.int().positive(),
    next: z.int().nonnegative().optional(),
    text: z.string().optional(),
  }),
  "run.parked": z.object({ reason: z.enum(waitReasons), wake_at: z.string().optional(), detail: jsonObject.optional() }),
  /** A waiting run goes on in the middle of a turn (its calls are open): what it waited for is over. */
  "run.resumed": z.object({ from: z.enum(waitReasons) }),
  "run.completed": z.object({ output: jsonValue }),
  "run.failed": z.object({ error: recordedError }),
  "run.cancelled": z.object({ reason: z.string().optional() }),
} as const;

export type EventType = keyof typeof eventSchemas;
export type EventPayload<T extends EventType> = z.infer<(typeof eventSchemas)[T]>;
/** The version that is written today, per type. Older ones are lifted by upcast.ts. */
export const eventVersions: { readonly [T in EventType]: number } = {
  "run.created": 1,
  "run.pinned": 1,
  "model.requested": 1,
  "model.responded": 1,
  "model.failed": 1,
  "model.corrected": 1,
  "tool.started": 1,
  "tool.completed": 1,
  "tool.failed": 1,
  "tool.interrupted": 1,
  "call.waiting": 1,
  "approval.decided": 1,
  "turn.stopped": 1,
  "input.applied": 1,
  "compaction.requested": 1,
  "compaction.prepared": 1,
  "compaction.skipped": 1,
  "compaction.failed": 1,
  "context.compacted": 1,
  "context.pruned": 1,
  "budget.reached": 1,
  "run.parked": 1,
  "run.resumed": 1,
  "run.completed": 1,
  "run.failed": 1,
  "run.cancelled": 1,
};

/** What stands beside the payload in a row. */
export interface EventEnvelope {
  readonly seq: number;
  readonly turn: number;
  readonly attempt: number;
  /** What is recorded at most once per run: `m<turn>` for a response, `t<turn>.<index>` for a call's end. */
  readonly stepKey?: string;
  readonly epoch: number;
  /** Where the content came from when it is not the operator's own: `tool:<name>`, `agent:<name>`, `mcp:<server>`. */
  readonly origin?: string;
  readonly actor?: string;
  readonly inboxId?: string;
}

export type EventOf<T extends EventType> = EventEnvelope & { readonly type: T; readonly payload: EventPayload<T> };
export type CapstanEvent = { [T in EventType]: EventOf<T> }[EventType];
/** An event that has not been given its seq yet. */
export type NewEvent = { [T in EventType]: Omit<EventOf<T>, "seq"> }[EventType];

/** Builds a new event; exists so that call sites keep type and payload together. */
export function newEvent<T extends EventType>(type: T, payload: EventPayload<T>, envelope: Omit<EventEnvelope, "seq">): NewEvent {
  return { type, payload, ...envelope } as NewEvent;
}

export const responseStepKey = (turn: number): string => `m${turn}`;
export const callStepKey = (turn: number, index: number): string => `t${turn}.${index}`;
