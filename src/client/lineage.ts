/** Runs that begin with another run's view, and a run as it was at one of its events. */
import type { Budget } from "../domain/budget.ts";
import { agentDefinition, normalizeDefinition, type AgentDefinition } from "../domain/definition.ts";
import { mergeCompaction, policyIssues, type CompactionPolicy } from "../domain/compaction/policy.ts";
import { evolve, initialState, type RunState } from "../domain/fold.ts";
import type { JsonObject, JsonValue } from "../domain/json.ts";
import { DEFAULT_INLINE_PAYLOAD_BYTES } from "../domain/limits.ts";
import { applyOverlay, type DefinitionOverlay } from "../domain/overlay.ts";
import { positionOf } from "../domain/position.ts";
import type { Message } from "../domain/transcript/message.ts";
import { definitionSha } from "../store/definitions.ts";
import { JournalReader } from "../store/journal-reader.ts";
import type { ReadDb } from "../store/line.ts";
import { DefinitionInvalidError } from "./agent-errors.ts";
import { inputJson } from "./enqueue.ts";
import { ArgumentError, fromPostgres, UnknownRunError } from "./errors.ts";
import type { HandleContext, RunStatusView } from "./handle.ts";
import { needsOffload, offload } from "./offload.ts";
import { redactInput } from "./redact-input.ts";
import { settingJson } from "./run-settings.ts";
import { queryTx, type Tx } from "./transaction.ts";

/** What a derived run may have of its own; what is not given is the base's. */
export interface DeriveOptions {
  readonly priority?: number;
  readonly pool?: string;
  readonly labels?: readonly string[];
  readonly metadata?: JsonObject;
  readonly runAt?: Date;
  /** Not inherited: the base's has probably passed. */
  readonly deadline?: Date;
  readonly traceparent?: string;
  readonly tracestate?: string;
  readonly actor?: string;
  readonly tx?: Tx;
}

export interface ForkOptions extends DeriveOptions {
  /** The run's own seq up to which its events are kept. Default: the last place where a run can go on. */
  readonly at?: number;
  /** Shown behind the view as the user's message. */
  readonly input?: unknown;
  /** Changes to the base's definition: model, instructions, limits and so on. Stored, and promoted for nobody. */
  readonly overlay?: DefinitionOverlay;
  /** Of this run alone, over the definition's. */
  readonly compaction?: CompactionPolicy;
  /** Over what was set for the base alone, limit by limit; the definition's hard limits hold. The fork begins at zero. */
  readonly budget?: Budget;
  readonly interactive?: boolean;
  /** Asked for again with the same key it is the same fork. */
  readonly idempotencyKey?: string;
}

export interface RetryOptions extends DeriveOptions {
  /** Gives the retry that there is, also when it has ended. Default: a retry that has ended is followed by another. */
  readonly once?: boolean;
  /** Of this retry alone, over what was set for the run that failed. Both have no effect on a retry that is there already. */
  readonly compaction?: CompactionPolicy;
  readonly budget?: Budget;
  readonly overlay?: DefinitionOverlay;
}

/** A run as it was right after one of its events. */
export interface RunStateView {
  readonly run_id: string;
  /** The run's own seq. */
  readonly seq: number;
  readonly at: string;
  readonly state: RunStatusView["state"];
  readonly wait_reason?: string;
  readonly turn: number;
  /** Where it was inside its turn. Only at `boundary` (and `answered`, with input) it can be forked. */
  readonly phase: RunState["phase"]["kind"];
  readonly epoch: number;
  /** So many of the messages are those of the runs before it. */
  readonly inherited: number;
  readonly messages: readonly Message[];
  readonly usage: RunStatusView["usage"];
  readonly output?: JsonValue;
  readonly error?: RunStatusView["error"];
}

const FORK_SQL = `select capstan.fork_run(run_id => $1::uuid, at => $2::int, input => $3::jsonb, definition_sha => $4, compaction => $5::jsonb, interactive => $6::boolean,
  idempotency_key => $7, options => $8::jsonb, actor => $9, budget => $10::jsonb) as id`;
const RETRY_SQL =
  "select capstan.retry_run(run_id => $1::uuid, definition_sha => $2, once => $3, options => $4::jsonb, actor => $5, compaction => $6::jsonb, budget => $7::jsonb) as id";

/** Throws ForkPointError, UnknownRunError, IdempotencyConflictError, DefinitionInvalidError, ArgumentError. */
export async function forkRun(runId: string, context: HandleContext, options: ForkOptions): Promise<string> {
  const { at, input, overlay, compaction, interactive, idempotencyKey, actor, tx } = options;
  const base = overlay === undefined && compaction === undefined && input === undefined ? undefined : await baseOf(runId, context, tx);
  const changed = overlay === undefined || base === undefined ? undefined : overlaid(base, overlay);
  const sha = changed === undefined ? null : await storeDefinition(changed, context, tx);
  const policy = base === undefined ? undefined : policyOf(base, { definition: changed, overlay, compaction });
  const kept = input === undefined || base === undefined ? null : JSON.stringify(await keptInput(runId, input, { tenant: base.tenant, runId, context, tx }));
  return await derive(
    FORK_SQL,
    [
      runId,
      at ?? null,
      kept,
      sha,
      policy === undefined ? null : JSON.stringify(policy),
      interactive ?? null,
      idempotencyKey ?? null,
      deriveJson(options),
      actor ?? null,
      settingJson("budget", options.budget),
    ],
    context,
    tx,
  );
}

/** Throws RunNotFailedError, UnknownRunError, DefinitionInvalidError. */
export async function retryRun(runId: string, context: HandleContext, options: RetryOptions): Promise<string> {
  const { overlay, once = false, actor, tx } = options;
  const settings = [settingJson("compaction", options.compaction), settingJson("budget", options.budget)];
  const sha = overlay === undefined ? null : await storeDefinition(overlaid(await baseOf(runId, context, tx), overlay), context, tx);
  return await derive(RETRY_SQL, [runId, sha, once, deriveJson(options), actor ?? null, ...settings], context, tx);
}

export function deriveJson({ priority, pool, labels, metadata, runAt, deadline, traceparent, tracestate }: DeriveOptions): string {
  return JSON.stringify({ priority, pool, labels, metadata, run_at: runAt, deadline, traceparent, tracestate });
}

export async function derive(sql: string, values: readonly unknown[], { db, named }: HandleContext, tx: Tx | undefined): Promise<string> {
  try {
    return ((await queryTx<{ id: string }>(tx ?? db, named(sql), values))[0] as { id: string }).id;
  } catch (error) {
    throw fromPostgres(error);
  }
}

/** What can stand in an event: files and long texts go to blobs first. */
export async function keptInput(
  what: string,
  input: unknown,
  { tenant, runId, context, tx }: { readonly tenant: string; readonly runId: string; readonly context: HandleContext; readonly tx: Tx | undefined },
): Promise<JsonValue> {
  const limitBytes = DEFAULT_INLINE_PAYLOAD_BYTES;
  const { redactor } = context;
  const shown = redactor === undefined ? input : await redactInput(input, redactor, { place: "input", tenant, runId });
  const kept = needsOffload(shown, limitBytes - 4_096) ? await offload(shown, { db: tx ?? context.db, named: context.named, tenant, runId, limitBytes }) : shown;
  return inputJson(what, kept);
}

interface Base {
  readonly tenant: string;
  readonly agent: string;
  readonly definition: unknown;
  /** What was set for the run alone, over its definition; null when nothing was. */
  readonly policy: CompactionPolicy | null;
}

async function baseOf(runId: string, { db, named }: HandleContext, tx: Tx | undefined): Promise<Base> {
  try {
    const [base] = await queryTx<Base & Record<string, unknown>>(
      tx ?? db,
      named("select r.tenant, r.agent, r.policy, d.definition from capstan.runs r left join capstan.agent_definitions d on d.sha = r.definition_sha where r.id = $1::uuid"),
      [runId],
    );
    if (base === undefined) throw new UnknownRunError(`no run ${runId}`);
    return base;
  } catch (error) {
    throw fromPostgres(error);
  }
}

function overlaid(base: Base, overlay: DefinitionOverlay): AgentDefinition {
  if (base.definition === null) throw new ArgumentError(`no definition of agent ${base.agent} is pinned to the run yet: there is nothing to change`);
  const changed = applyOverlay(normalizeDefinition(agentDefinition.parse(base.definition)), overlay);
  if (!changed.ok) throw new DefinitionInvalidError(base.agent, changed.issues);
  return changed.definition;
}

/** Gives its sha. */
export async function storeDefinition(definition: AgentDefinition, { db, named }: HandleContext, tx: Tx | undefined): Promise<string> {
  const sha = definitionSha(definition);
  try {
    await queryTx(tx ?? db, named("insert into capstan.agent_definitions (sha, name, definition) values ($1, $2, $3::jsonb) on conflict (sha) do nothing"), [
      sha,
      definition.name,
      JSON.stringify(definition),
    ]);
  } catch (error) {
    throw fromPostgres(error);
  }
  return sha;
}

interface PolicyChanges {
  readonly definition: AgentDefinition | undefined;
  readonly overlay: DefinitionOverlay | undefined;
  readonly compaction: CompactionPolicy | undefined;
}

/** A policy that was set for the base alone stands over its definition's: what an overlay changes must be changed in it, too. */
function policyOf(base: Base, { definition, overlay, compaction }: PolicyChanges): CompactionPolicy | undefined {
  const own = base.policy ?? undefined;
  if (compaction === undefined && (own === undefined || overlay?.compaction === undefined)) return undefined;
  const changed = own === undefined ? undefined : (Object.fromEntries(Object.entries(overlay?.compaction ?? {}).filter(([, value]) => value !== null)) as CompactionPolicy);
  const before = own ?? definition?.compaction ?? (base.definition === null ? undefined : agentDefinition.parse(base.definition).compaction);
  return mergedPolicy(mergeCompaction(before, changed), compaction);
}

/** What holds for one run: what is given over what was there. Refused with the field's name, also where only both together are wrong. */
export function mergedPolicy(before: CompactionPolicy | undefined, given: CompactionPolicy | undefined): CompactionPolicy | undefined {
  settingJson("compaction", given);
  const merged = mergeCompaction(before, given);
  const issues = policyIssues(merged);
  if (issues.length > 0) throw new ArgumentError(issues.map(({ path, message }) => `compaction.${path} ${message}`).join("; "));
  return merged;
}

/** Folds the run's line up to one of its own events. Throws UnknownRunError, ArgumentError. */
export async function stateAt(runId: string, seq: number, { db, named }: HandleContext): Promise<RunStateView> {
  const reader = new JournalReader(readDb(db), named);
  try {
    const row = await reader.row(runId);
    if (row === undefined) throw new UnknownRunError(`no run ${runId}`);
    const position = positionOf(seq, row.seqOffset);
    if (!Number.isInteger(seq) || seq < 1 || position >= row.nextSeq) throw new ArgumentError(`run ${runId} has the events 1 to ${row.nextSeq - 1 - row.seqOffset}, not ${seq}`);
    const state = initialState();
    let at = row.createdAt;
    for await (const read of reader.walk(runId, { below: position + 1 })) {
      evolve(state, read.event);
      ({ at } = read);
    }
    return viewOf(runId, seq, at, state);
  } catch (error) {
    throw fromPostgres(error);
  }
}

function viewOf(runId: string, seq: number, at: Date, state: RunState): RunStateView {
  const before = state.own?.position ?? 0;
  return {
    run_id: runId,
    seq,
    at: at.toISOString(),
    state: state.status,
    ...(state.waitReason === undefined ? {} : { wait_reason: state.waitReason }),
    turn: state.turn,
    phase: state.phase.kind,
    epoch: state.epoch,
    inherited: state.places.filter(({ last }) => last < before).length,
    messages: state.view,
    usage: {
      input_tokens: state.usage.inputTokens,
      output_tokens: state.usage.outputTokens,
      cache_read_tokens: state.usage.cacheReadTokens,
      cache_write_tokens: state.usage.cacheWriteTokens,
      cost_usd_micros: state.usage.costUsdMicros,
    },
    ...(state.output === undefined ? {} : { output: state.output }),
    ...(state.error === undefined ? {} : { error: state.error as NonNullable<RunStatusView["error"]> }),
  };
}

/** Reading through whatever the caller's way to the database is. */
function readDb(db: Tx): ReadDb {
  return { query: async ({ text, values }) => ({ rows: await queryTx(db, text, values) }) };
}
