/**
 * One compaction task from claim to outcome, on the summarize pool. It reads the run's head and tail, never its whole
 * journal, writes nothing of the run, and holds no transaction while the summarizer works.
 */
import { composeHead } from "../domain/compaction/head.ts";
import { estimateTokens } from "../domain/compaction/footprint.ts";
import { replacedBy } from "../domain/compaction/fold.ts";
import { MAX_QUOTA_WAIT_HARD_MS, MAX_QUOTA_WAIT_MS } from "../domain/compaction/patience.ts";
import { compactionPolicy } from "../domain/compaction/policy.ts";
import { hasContextTool } from "../domain/definition.ts";
import { effectiveDefinition } from "../domain/effective-definition.ts";
import type { CompactionReason } from "../domain/compaction/types.ts";
import { grantsOf } from "../domain/grants.ts";
import type { RunState } from "../domain/fold.ts";
import type { JsonObject } from "../domain/json.ts";
import { toolOrigin } from "../domain/mcp-name.ts";
import { CapstanError } from "../domain/error.ts";
import { backoffMs } from "../domain/retry.ts";
import { inputMessage } from "../domain/transcript/derive.ts";
import type { Message } from "../domain/transcript/message.ts";
import type { CompactionTask, CompactionTasks, DefinitionStore, JournalStore, Log, UsageLedger } from "../engine/ports.ts";
import { hitFailpoint } from "../engine/failpoints.ts";
import { remember, viewDigest } from "../engine/run-memory.ts";
import { summarize, type SummarizeDeps, type SummaryOutcome } from "./summarize.ts";
import { summarizerText } from "./summarizer-text.ts";

export interface TaskDeps extends SummarizeDeps {
  readonly tasks: CompactionTasks;
  readonly store: Pick<JournalStore, "load">;
  readonly definitions: Pick<DefinitionStore, "get">;
  readonly ledger: UsageLedger;
  readonly log: Log;
  /** Called as soon as the task is this worker's: from then on it can be taken away. */
  claimed(task: CompactionTask): AbortSignal;
  random(): number;
}

/** Failures that may pass are tried so often in all; then the run is told, and goes on without. */
const MAX_ATTEMPTS = 4;
const RETRY_BACKOFF = { firstMs: 1_000, maxMs: 60_000 };
/** A task that waits for a quota looks again after this at the latest. */
const MAX_QUOTA_LOOK_MS = 30_000;
const CALL_TIMEOUT_MS = 10 * 60_000;
/** Bytes of the tail that are looked through for facts: more than any window holds. */
const TAIL_TEXT_BYTES = 4 * 1024 * 1024;

export async function performTask(taskId: string, deps: TaskDeps): Promise<void> {
  const task = await deps.tasks.claim(taskId);
  // Taken by another worker, settled, or dispatched twice: a job is only a hint.
  if (task === undefined) return;
  const signal = deps.claimed(task);
  hitFailpoint("summarize.claimed");
  const fail = async (reason: CompactionReason, detail: JsonObject): Promise<void> => {
    await deps.tasks.finish(task, { kind: "failed", reason, detail });
  };
  if (task.runEnded) return await fail("superseded", { message: "the run has ended" });
  const loaded = await deps.store.load(task.runId);
  if (loaded === undefined) return await fail("superseded", { message: "the run is gone" });
  const { state } = remember(loaded, 0);
  if (state.epoch !== task.viewEpoch) return await fail("superseded", { view_epoch: state.epoch });
  const stored = state.definitionSha === undefined ? undefined : await deps.definitions.get(state.definitionSha);
  if (stored === undefined) return await fail("agent_gone", { definition_sha: state.definitionSha ?? null });
  const definition = effectiveDefinition(stored, state);

  const span = spanOf(state, task);
  const pinned = task.request.cut.keep_first ? inputMessage(state.input) : undefined;
  const outcome = await summarize(
    {
      runId: task.runId,
      tenant: task.tenant,
      agent: task.agent,
      turn: task.turn,
      attempt: task.attempts,
      grants: grantsOf(definition),
      taint: span.taint,
      model: definition.model,
      policy: compactionPolicy.partial().parse(task.request.policy),
      trigger: task.request.trigger,
      byBytes: task.request.by_bytes ?? false,
      messages: span.messages,
      task: pinned,
      previousSummary: state.compaction.head?.summary,
      replacedTokens: span.tokens,
      hard: isHard(task),
      signal,
      timeoutMs: definition.limits?.model_timeout_ms ?? CALL_TIMEOUT_MS,
    },
    deps,
  );
  hitFailpoint("summarize.returned");
  await recordCalls(deps, task, outcome);
  // Stopped, or taken away meanwhile: the task goes back, or is another's. A summary that is there is handed in all the
  // same: it is paid for, and the fence refuses it if the task has moved on.
  if (signal.aborted && outcome.kind === "rejected") return;
  if (outcome.kind === "rejected") return await afterRejection(deps, task, outcome, fail);
  const { head, factsCheck } = composeHead({
    previous: state.compaction.head,
    spanMessages: span.messages,
    spanPlaces: span.places,
    toolEffect: (name) => definition.tools.find((tool) => tool.name === name)?.effect,
    pins: state.compaction.pins,
    summary: outcome.summary,
    obligations: [],
    taskText: pinned === undefined ? "" : summarizerText([pinned], { maxBytes: TAIL_TEXT_BYTES }),
    tailText: summarizerText(span.tail, { maxBytes: TAIL_TEXT_BYTES }),
    tail: span.tail,
    requestSeq: task.request.cut.request_seq,
    windowTokens: windowOf(deps, definition.model, task.tenant),
    hasContextTool: hasContextTool(definition),
    tainted: span.taint.length > 0 || (state.compaction.head?.tainted ?? false),
  });
  hitFailpoint("summarize.before_finish");
  await deps.tasks.finish(task, {
    kind: "ready",
    summarized: {
      head,
      rung: outcome.rung,
      summarizer: outcome.summarizer,
      ...(outcome.model === undefined ? {} : { model: outcome.model }),
      ...(outcome.usage === undefined ? {} : { usage: outcome.usage }),
      ...(outcome.costUsdMicros === undefined ? {} : { cost_usd_micros: outcome.costUsdMicros }),
      calls: outcome.calls.length,
      facts_check: factsCheck,
      source_digest: viewDigest(span.messages).digest,
      duration_ms: outcome.durationMs,
    },
  });
  hitFailpoint("summarize.finished");
}

/** Only sizes the head's caps: a model that this worker does not know is told of by the summarizer. */
function windowOf(deps: TaskDeps, model: string, tenant: string): number | undefined {
  try {
    return deps.models.resolve(model, tenant).window.tokens;
  } catch (error) {
    if (error instanceof CapstanError) return undefined;
    throw error;
  }
}

interface Span {
  readonly messages: readonly Message[];
  readonly places: RunState["places"];
  readonly tail: readonly Message[];
  readonly tokens: number;
  readonly taint: readonly string[];
}

/** What is to be summarized: neither the pinned task nor an earlier head, which is given apart. */
function spanOf(state: RunState, task: CompactionTask): Span {
  const { from, to, messages } = replacedBy(state, task.request.cut);
  const head = state.marker === undefined ? [] : state.view.slice(0, 1);
  return {
    messages,
    places: state.places.slice(from, to),
    tail: state.view.slice(to),
    tokens: estimateTokens([...head, ...messages]),
    // Tools' results are never the operator's own word.
    taint: [...new Set(messages.flatMap((message) => (message.role === "tool" ? message.content.map(({ name }) => toolOrigin(name)) : [])))],
  };
}

async function recordCalls({ ledger }: TaskDeps, task: CompactionTask, outcome: SummaryOutcome): Promise<void> {
  for (const call of outcome.calls) {
    await ledger.record({
      runId: task.runId,
      tenant: task.tenant,
      agent: task.agent,
      model: call.model ?? outcome.summarizer,
      kind: "summary",
      turn: task.turn,
      attempt: task.attempts,
      outcome: call.outcome === "summarized" ? "ok" : call.outcome,
      usage: {
        inputTokens: call.usage?.input ?? 0,
        outputTokens: call.usage?.output ?? 0,
        cacheReadTokens: call.usage?.cache_read ?? 0,
        cacheWriteTokens: call.usage?.cache_write ?? 0,
        costUsdMicros: call.costUsdMicros ?? 0,
      },
      estimated: call.usage === undefined,
    });
  }
}

/** The run cannot go on without it: when it was requested, or by now. */
function isHard({ request, runWaits }: CompactionTask): boolean {
  return request.hard === true || runWaits;
}

type Rejected = Extract<SummaryOutcome, { kind: "rejected" }>;

async function afterRejection(deps: TaskDeps, task: CompactionTask, outcome: Rejected, fail: (reason: CompactionReason, detail: JsonObject) => Promise<void>): Promise<void> {
  const { reason, error, retryable, retryAfterMs } = outcome;
  deps.log.warn({ taskId: task.id, runId: task.runId, attempt: task.attempts, reason, code: error.code, retryable }, "a summary was not made");
  const mayWaitMs = isHard(task) ? MAX_QUOTA_WAIT_HARD_MS : MAX_QUOTA_WAIT_MS;
  // What is larger than its whole quota never fits, however long it waits.
  if (reason === "quota" && retryable && task.ageMs < mayWaitMs) {
    await deps.tasks.again(task, Math.min(MAX_QUOTA_LOOK_MS, retryAfterMs ?? MAX_QUOTA_LOOK_MS), "quota");
    return;
  }
  if (retryable && reason !== "quota" && task.attempts < MAX_ATTEMPTS) {
    await deps.tasks.again(task, retryAfterMs ?? backoffMs(task.attempts, deps.random(), RETRY_BACKOFF), "retry");
    return;
  }
  await fail(reason, { code: error.code, message: error.message, attempts: task.attempts, calls: outcome.calls.length });
}
