/** Starts runs by the SQL interface, so that every way in (TypeScript, SQL, HTTP) means the same. */
import type { AgentDefinition } from "../domain/definition.ts";
import type { JsonObject, JsonValue } from "../domain/json.ts";
import { toJsonValue } from "../domain/json.ts";
import { fromPostgres, InputInvalidError } from "./errors.ts";
import { uuidV7 } from "../store/uuid.ts";
import { DEFAULT_INLINE_PAYLOAD_BYTES } from "../domain/limits.ts";
import type { EnqueueArguments, EnqueueGroups } from "./enqueue-group.ts";
import { needsOffload, offload } from "./offload.ts";
import { queryTx, type Tx } from "./transaction.ts";

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
  readonly concurrencyKey?: string;
  readonly traceparent?: string;
  readonly tracestate?: string;
  readonly actor?: string;
}

/** What enqueue needs of an agent: structural, so that a producer needs no worker code. */
export interface EnqueueAgent {
  readonly name: string;
  readonly definition: AgentDefinition;
  readonly parseInput: (input: unknown) => { readonly ok: true; readonly value: unknown } | { readonly ok: false; readonly issues: readonly { path: string; message: string }[] };
}

const ENQUEUE = `select capstan.enqueue_run(agent => $1, input => $2::jsonb, tenant => $3, idempotency_key => $4, priority => $5::int, run_at => $6::timestamptz,
  deadline => $7::timestamptz, interactive => $8::boolean, metadata => $9::jsonb, labels => $10::text[], subject => $11, pool => $12, definition_sha => $13,
  concurrency_key => $14, traceparent => $15, tracestate => $16, actor => $17, run_id => $18::uuid) as id`;

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
  groups?: EnqueueGroups,
): Promise<string> {
  const tx = options.tx ?? db;
  const name = typeof agent === "string" ? agent : agent.name;
  const limitBytes = (typeof agent === "string" ? undefined : agent.definition.limits?.inline_payload_bytes) ?? DEFAULT_INLINE_PAYLOAD_BYTES;
  // An event holds more than its input: leave room for the rest of run.created.
  const isLarge = needsOffload(input, limitBytes - 4_096);
  const runId = isLarge ? uuidV7(Date.now()) : null;
  const sha = typeof agent === "string" ? null : pins.shaOf(agent.definition);
  try {
    // A definition in code is pinned as it is, also before any worker has registered it.
    if (typeof agent !== "string" && sha !== null && !pins.isStored(sha)) {
      await queryTx(tx, named(STORE_DEFINITION), [sha, name, JSON.stringify(agent.definition)]);
      // In the caller's transaction it may yet be rolled back.
      if (options.tx === undefined) pins.noteStored(sha);
    }
    // Files are handed over as bytes, which no schema describes; text is checked however long it is.
    const checked = isLarge && typeof input !== "string" ? input : checkInput(agent, input);
    const kept =
      runId === null || !needsOffload(checked, limitBytes - 4_096) ? checked : await offload(checked, { db: tx, named, tenant: options.tenant ?? "default", runId, limitBytes });
    const json = inputJson(name, kept);
    const args: EnqueueArguments = {
      agent: name,
      input: JSON.stringify(json),
      tenant: options.tenant ?? "default",
      idempotency_key: options.idempotencyKey ?? null,
      priority: options.priority ?? 0,
      run_at: options.runAt?.toISOString() ?? null,
      deadline: options.deadline?.toISOString() ?? null,
      interactive: options.interactive ?? null,
      metadata: options.metadata === undefined ? null : JSON.stringify(options.metadata),
      labels: options.labels === undefined ? null : [...options.labels],
      subject: options.subject ?? null,
      pool: options.pool ?? "turn",
      definition_sha: sha,
      concurrency_key: options.concurrencyKey ?? null,
      traceparent: options.traceparent ?? null,
      tracestate: options.tracestate ?? null,
      actor: options.actor ?? null,
      run_id: runId,
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

/** What JSON can hold. Throws InputInvalidError. */
export function inputJson(name: string, input: unknown): JsonValue {
  const json = toJsonValue(input);
  if (!json.ok) throw new InputInvalidError(name, [{ path: json.problem.path, message: json.problem.problem }]);
  return json.value;
}
