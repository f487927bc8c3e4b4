/** What a schedule is made of, checked before anything is sent. */
import { z } from "zod";
import { budgetIssues, budgetSchema, type Budget } from "../domain/budget.ts";
import { compactionPolicy, type CompactionPolicy } from "../domain/compaction/policy.ts";
import { agentNamePattern } from "../domain/definition.ts";
import { toJsonValue, type JsonObject, type JsonValue } from "../domain/json.ts";
import { DEFAULT_INLINE_PAYLOAD_BYTES } from "../domain/limits.ts";
import { catchUpPolicies, type CatchUp } from "../domain/schedule.ts";
import type { ConcurrencyOptions, EnqueueAgent } from "./enqueue.ts";
import { InputInvalidError, ScheduleInvalidError, TooLargeError } from "./errors.ts";
import { needsOffload } from "./offload.ts";

/** Settings that each run of a schedule gets, as enqueue takes them. */
export interface ScheduleRunOptions {
  readonly subject?: string;
  readonly priority?: number;
  readonly interactive?: boolean;
  readonly metadata?: JsonObject;
  readonly labels?: readonly string[];
  readonly pool?: string;
  /** With `onConflict: "refuse"` a tick that finds a run of the key at work is passed over. */
  readonly concurrency?: ConcurrencyOptions;
  readonly compaction?: CompactionPolicy;
  readonly budget?: Budget;
}

export interface ScheduleSettings extends ScheduleRunOptions {
  /** Its name, or the agent itself: then the input is checked against its schema now. Runs get the definition that is promoted when they start. */
  readonly agent: EnqueueAgent | string;
  /** Of every run. Default null. */
  readonly input?: unknown;
  /** Five fields (minute hour day-of-month month day-of-week), or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`. */
  readonly cron: string;
  /** An IANA name; default `UTC`. */
  readonly timezone?: string;
  /** What becomes of ticks that were missed while no worker ran; default `last`. */
  readonly catchUp?: CatchUp;
  readonly tenant?: string;
  readonly actor?: string;
}

export interface CheckedSettings {
  readonly agent: string;
  readonly input: JsonValue;
  readonly tenant: string;
  readonly catchUp: CatchUp;
  readonly actor: string | null;
  /** As they are stored; null when there are none. */
  readonly options: JsonObject | null;
}

const name = z.string("must be a text").regex(agentNamePattern, "must have 1 to 64 of A-Z a-z 0-9 _ . - and begin with a letter or digit");
const word = z.string("must be a text").min(1, "must not be empty").max(200, "must have at most 200 characters");
/** Every setting but the times, which domain/schedule.ts reads, and the input. Unknown ones are refused: a misspelt option would be missed for months. */
const settingsSchema = z.strictObject({
  name,
  agent: name,
  tenant: word,
  catchUp: z.enum(catchUpPolicies, `must be one of ${catchUpPolicies.join(", ")}`),
  actor: word.optional(),
  subject: word.optional(),
  priority: z.int("must be a whole number").min(-1000, "must be from -1000 to 1000").max(1000, "must be from -1000 to 1000").optional(),
  interactive: z.boolean("must be true or false").optional(),
  metadata: z.custom<JsonObject>((value) => typeof value === "object" && value !== null && !Array.isArray(value) && toJsonValue(value).ok, "must be a JSON object").optional(),
  labels: z.array(word, "must be a list of texts").optional(),
  pool: word.refine((pool) => pool !== "summarize", "must not be summarize, which takes no runs").optional(),
  concurrency: z
    .strictObject({
      key: word,
      limit: z.int("must be a whole number").min(1, "must be from 1 to 10000").max(10_000, "must be from 1 to 10000").optional(),
      scope: z.enum(["agent", "all"], "must be agent or all").optional(),
      onConflict: z.enum(["queue", "replace", "refuse"], "must be queue, replace or refuse").optional(),
    })
    .optional(),
  compaction: compactionPolicy.optional(),
  budget: budgetSchema
    .superRefine((budget, context) => {
      for (const { path, message } of budgetIssues(budget)) context.addIssue({ code: "custom", path: path.split("."), message });
    })
    .optional(),
});

/** For the documents: all that a schedule is made of. */
export const scheduleSettingNames: readonly string[] = [...Object.keys(settingsSchema.shape).filter((setting) => setting !== "name"), "cron", "timezone", "input"];

/** What stands around the input in run.created. */
const EVENT_BYTES = 4_096;

/** Throws ScheduleInvalidError, InputInvalidError and TooLargeError. */
export function checkSettings(scheduleName: string, settings: ScheduleSettings): CheckedSettings {
  const { agent, input, cron: _cron, timezone: _timezone, tenant = "default", catchUp = "last", ...options } = settings;
  const agentName = typeof agent === "string" ? agent : agent.name;
  const parsed = settingsSchema.safeParse({ ...options, name: scheduleName, agent: agentName, tenant, catchUp });
  if (!parsed.success) {
    const issue = parsed.error.issues[0] as z.core.$ZodIssue;
    const unknown = issue.code === "unrecognized_keys" ? issue.keys[0] : undefined;
    throw new ScheduleInvalidError(
      scheduleName,
      unknown === undefined ? { field: issue.path.join("."), message: issue.message } : { field: unknown, message: "is not a setting of schedules" },
    );
  }
  const { actor, subject, priority, interactive, metadata, labels, pool, concurrency, compaction, budget } = parsed.data;
  const kept = {
    subject,
    priority,
    interactive,
    metadata,
    labels,
    pool,
    concurrency_key: concurrency?.key,
    concurrency_limit: concurrency?.limit,
    concurrency_scope: concurrency?.scope,
    on_conflict: concurrency?.onConflict,
    compaction,
    budget,
  };
  const stored = Object.fromEntries(Object.entries(kept).filter(([, value]) => value !== undefined)) as JsonObject;
  return { agent: agentName, input: inputOf(agent, input), tenant, catchUp, actor: actor ?? null, options: Object.keys(stored).length === 0 ? null : stored };
}

function inputOf(agent: EnqueueAgent | string, input: unknown): JsonValue {
  const agentName = typeof agent === "string" ? agent : agent.name;
  const limitBytes = (typeof agent === "string" ? undefined : agent.definition.limits?.inline_payload_bytes) ?? DEFAULT_INLINE_PAYLOAD_BYTES;
  // Media go to a blob of one run; a schedule has none to keep them for.
  if (Array.isArray(input) && needsOffload(input, limitBytes))
    throw new InputInvalidError(agentName, [{ path: "input", message: "holds a file as bytes, which a schedule cannot keep" }]);
  const parsed = typeof agent === "string" ? ({ ok: true, value: input } as const) : agent.parseInput(input ?? null);
  if (!parsed.ok) throw new InputInvalidError(agentName, parsed.issues);
  const json = toJsonValue(parsed.value);
  if (!json.ok) throw new InputInvalidError(agentName, [{ path: json.problem.path, message: json.problem.problem }]);
  const sizeBytes = Buffer.byteLength(JSON.stringify(json.value));
  if (sizeBytes > limitBytes - EVENT_BYTES)
    throw new TooLargeError(`input of ${sizeBytes} bytes is over the inline limit of ${limitBytes - EVENT_BYTES} bytes; keep it elsewhere and give its address`);
  return json.value;
}
