/** Starts runs by the SQL interface, so that every way in (TypeScript, SQL, HTTP) means the same. */
import type { Budget } from "../domain/budget.ts";
import type { CompactionPolicy } from "../domain/compaction/policy.ts";
import type { AgentDefinition } from "../domain/definition.ts";
import type { JsonObject, JsonValue } from "../domain/json.ts";
import type { RedactContext } from "../domain/redact/options.ts";
import type { Redactor } from "../domain/redact/redactor.ts";
import { toJsonValue } from "../domain/json.ts";
import { fromPostgres, InputInvalidError } from "./errors.ts";
import { uuidV7 } from "../store/uuid.ts";
import { DEFAULT_INLINE_PAYLOAD_BYTES } from "../domain/limits.ts";
import type { EnqueueArguments, EnqueueGroups } from "./enqueue-group.ts";
import { settingJson } from "./run-settings.ts";
import { needsOffload, offload } from "./offload.ts";
import { checkNamedBlobs } from "./put-blob.ts";
import { redactInput } from "./redact-input.ts";
import { queryTx, type Tx } from "./transaction.ts";

/** Runs of a tenant with the same key: so many go at a time, from their start to their end, also while they wait for something. */
export interface ConcurrencyOptions {
  /** 1 to 200 characters. */
  readonly key: string;
  /** 1 to 10,000; default 1. */
  readonly limit?: number;
  /** Whether other agents' runs with this key count; default `agent`. */
  readonly scope?: "agent" | "all";
  /** When there is no place: wait in line (the default), cancel whoever has held one longest, or ConcurrencyConflictError. */
  readonly onConflict?: "queue" | "replace" | "refuse";
}

export interface EnqueueOptions {
  /** The caller's own transaction: the run exists if and only if it commits. */
  readonly tx?: Tx;
  readonly tenant?: string;
  readonly subject?: string;
  /** Met again with the same input it gives the run that exists; with another input IdempotencyConflictError. */
  readonly idempotencyKey?: string;
  /** -1000 to 1000; lower runs sooner, as in graphile-worker. */
  readonly priority?: number;
  readonly runAt?: Date;
  readonly deadline?: Date;
  readonly interactive?: boolean;
  readonly metadata?: JsonObject;
  readonly labels?: readonly string[];
  readonly pool?: string;
  readonly concurrency?: ConcurrencyOptions;
  /** Of this run alone, over its definition's, field by field. No part of what an idempotency key is compared by. */
  readonly compaction?: CompactionPolicy;
  /** Of this run alone; its hard limits may not exceed the definition's. No part of what an idempotency key is compared by. */
  readonly budget?: Budget;
  /** Of a definition that the database has, when the agent is given by its name; default: the promoted one. */
  readonly definitionSha?: string;
  readonly traceparent?: string;
  readonly tracestate?: string;
  readonly actor?: string;
}

/** What enqueue needs of an agent: structural, so that a producer needs no worker code. */
export interface EnqueueAgent {
  readonly name: string;
  readonly definition: AgentDefinition;
  /** False: the definition lacks what only a worker knows, and the run gets the promoted one. */
  readonly isComplete?: boolean;
  readonly parseInput: (input: unknown) => { readonly ok: true; readonly value: unknown } | { readonly ok: false; readonly issues: readonly { path: string; message: string }[] };
}

const ENQUEUE = `select capstan.enqueue_run(agent => $1, input => $2::jsonb, tenant => $3, idempotency_key => $4, priority => $5::int, run_at => $6::timestamptz,
  deadline => $7::timestamptz, interactive => $8::boolean, metadata => $9::jsonb, labels => $10::text[], subject => $11, pool => $12, definition_sha => $13,
  concurrency_key => $14, traceparent => $15, tracestate => $16, actor => $17, run_id => $18::uuid,
  concurrency_limit => $19::int, concurrency_scope => $20, on_conflict => $21, compaction => $22::jsonb, budget => $23::jsonb) as id`;

const STORE_DEFINITION = `insert into capstan.agent_definitions (sha, name, definition) values ($1, $2, $3::jsonb) on conflict (sha) do nothing`;

/** What this process knows of definitions: their digests, and which of them the database has (they are never removed). */
export class DefinitionPins {
  readonly #shaOf: (definition: AgentDefinition) => string;
  readonly #shas = new WeakMap<AgentDefinition, string>();
  readonly #stored = new Set<string>();

  constructor(shaOf: (definition: AgentDefinition) => string) {
    this.#shaOf = shaOf;
  }

  shaOf(definition: AgentDefinition): string {
    let sha = this.#shas.get(definition);
    if (sha === undefined) this.#shas.set(definition, (sha = this.#shaOf(definition)));
    return sha;
  }

  isStored(sha: string): boolean {
    return this.#stored.has(sha);
  }

  noteStored(sha: string): void {
    this.#stored.add(sha);
  }
}

export async function enqueueRun(
  db: Tx,
  named: (text: string) => string,
  agent: EnqueueAgent | string,
  input: unknown,
  options: EnqueueOptions,
  pins: DefinitionPins,
  /** For enqueues in no transaction of the caller's. */
  groups?: Pick<EnqueueGroups, "add">,
  redactor?: Redactor,
): Promise<string> {
  const tx = options.tx ?? db;
  const name = typeof agent === "string" ? agent : agent.name;
  const { tenant = "default" } = options;
  const limitBytes = (typeof agent === "string" ? undefined : agent.definition.limits?.inline_payload_bytes) ?? DEFAULT_INLINE_PAYLOAD_BYTES;
  // An event holds more than its input: leave room for the rest of run.created.
  const isLarge = needsOffload(input, limitBytes - 4_096);
  const runId = isLarge ? uuidV7(Date.now()) : null;
  const sha = typeof agent === "string" ? (options.definitionSha ?? null) : agent.isComplete === false ? null : pins.shaOf(agent.definition);
  try {
    // A definition in code is pinned as it is, also before any worker has registered it.
    if (typeof agent !== "string" && sha !== null && !pins.isStored(sha)) {
      await queryTx(tx, named(STORE_DEFINITION), [sha, name, JSON.stringify(agent.definition)]);
      // In the caller's transaction it may yet be rolled back.
      if (options.tx === undefined) pins.noteStored(sha);
    }
    // Files are handed over as bytes, which no schema describes; text is checked however long it is.
    const whole = isLarge && typeof input !== "string" ? input : checkInput(agent, input);
    const checked = redactor === undefined ? whole : await redactedInput(agent, whole, redactor, { place: "input", tenant, agent: name });
    const kept = runId === null || !needsOffload(checked, limitBytes - 4_096) ? checked : await offload(checked, { db: tx, named, tenant, runId, limitBytes });
    // What was put there just now need not be looked for.
    if (runId === null) await checkNamedBlobs(tx, named, { agent: name, tenant, input: kept });
    const json = inputJson(name, kept);
    const args: EnqueueArguments = {
      agent: name,
      input: JSON.stringify(json),
      tenant,
      idempotency_key: options.idempotencyKey ?? null,
      priority: options.priority ?? 0,
      run_at: options.runAt?.toISOString() ?? null,
      deadline: options.deadline?.toISOString() ?? null,
      interactive: options.interactive ?? null,
      metadata: options.metadata === undefined ? null : JSON.stringify(redactor === undefined ? options.metadata : redactor.json(options.metadata, { numbers: true })),
      labels: options.labels === undefined ? null : [...options.labels],
      subject: options.subject ?? null,
      pool: options.pool ?? "turn",
      definition_sha: sha,
      concurrency_key: options.concurrency?.key ?? null,
      traceparent: options.traceparent ?? null,
      tracestate: options.tracestate ?? null,
      actor: options.actor ?? null,
      run_id: runId,
      concurrency_limit: options.concurrency?.limit ?? null,
      concurrency_scope: options.concurrency?.scope ?? null,
      on_conflict: options.concurrency?.onConflict ?? null,
      compaction: settingJson("compaction", options.compaction),
      budget: settingJson("budget", options.budget),
    };
    const alone = async (): Promise<string> => ((await queryTx<{ id: string }>(tx, named(ENQUEUE), Object.values(args)))[0] as { id: string }).id;
    return groups === undefined || options.tx !== undefined ? await alone() : await groups.add(args, alone);
  } catch (error) {
    throw fromPostgres(error);
  }
}

/** The agent's own schema, defaults applied. Throws InputInvalidError before anything is sent. */
function checkInput(agent: EnqueueAgent | string, input: unknown): unknown {
  if (typeof agent === "string") return input;
  const parsed = agent.parseInput(input);
  if (!parsed.ok) throw new InputInvalidError(agent.name, parsed.issues);
  return parsed.value;
}

/** What is left of it must fit the schema too: the worker asks again. */
async function redactedInput(agent: EnqueueAgent | string, input: unknown, redactor: Redactor, context: RedactContext): Promise<unknown> {
  const redacted = await redactInput(input, redactor, context);
  return redacted === input || !isJson(redacted) ? redacted : checkInput(agent, redacted);
}

/** Files are handed over as bytes, and no JSON. */
function isJson(input: unknown): boolean {
  return !Array.isArray(input) || !input.some((part: unknown) => typeof part === "object" && part !== null && "data" in part && part.data instanceof Uint8Array);
}

/** What JSON can hold. Throws InputInvalidError. */
export function inputJson(name: string, input: unknown): JsonValue {
  const json = toJsonValue(input);
  if (!json.ok) throw new InputInvalidError(name, [{ path: json.problem.path, message: json.problem.problem }]);
  return json.value;
}
