/**
 * What becomes of a finished task at a boundary: its summary is put in by compare-and-set on the view's epoch, kept until
 * it is needed, or what went wrong is journaled. The view is changed here alone, under the run's lease.
 */
import { estimateTokens } from "../domain/compaction/footprint.ts";
import { markedView, turnAtHand } from "../domain/compaction/fold.ts";
import { HEAD_VERSION } from "../domain/compaction/head.ts";
import { resolvePolicy } from "../domain/compaction/policy.ts";
import { REMEMBERED_COMPACTIONS, type Carry, type CompactionReason, type CompactionTrigger, type Cut, type Excerpt, type Summarized } from "../domain/compaction/types.ts";
import { newProblem } from "../domain/compaction/validate.ts";
import type { AgentDefinition } from "../domain/definition.ts";
import type { RunState } from "../domain/fold.ts";
import type { JsonObject } from "../domain/json.ts";
import type { Message } from "../domain/transcript/message.ts";
import { dueBy } from "./compaction-due.ts";
import { gaugeOf, overheadOf } from "./context-gauge.ts";
import { hitFailpoint } from "./failpoints.ts";
import type { Model } from "./model-port.ts";
import type { CompactionReport, InboxItem } from "./ports.ts";
import { viewDigest } from "./run-memory.ts";
import type { Turn } from "./turn.ts";

/** Puts a finished summary in, or journals why it is not. */
export async function applyReady(turn: Turn, taskId: string, item: InboxItem | undefined, definition?: AgentDefinition, model?: Model): Promise<void> {
  const { session, deps } = turn;
  const { state } = session;
  const task = state.compaction.task;
  const outcome = await deps.compactions.result(taskId);
  const trigger = task?.trigger ?? "auto";
  const failed = (reason: CompactionReason, detail: JsonObject): void => {
    session.stage("compaction.failed", { task_id: taskId, trigger, reason, detail }, envelopeOf(item));
    const fields = { runId: session.memory.row.id, turn: state.turn, taskId, trigger, reason, ...detail };
    turn.onceCommitted(() => deps.log.warn(fields, "compaction failed; the view is unchanged"));
    count(turn, trigger, reason);
  };
  if (task === undefined || task.id !== taskId || task.epoch !== state.epoch) return failed("superseded", { view_epoch: state.epoch });
  if (outcome === undefined) return failed("marker_lost", { message: "the task's row is gone or was settled" });
  if (outcome.result.kind === "failed") return failed(outcome.result.reason, outcome.result.detail);
  const { summarized } = outcome.result;
  // A run that stands still for it (its request was refused for length, say) takes it at once.
  const isWaitedFor = state.waitReason === "compaction" || state.phase.kind === "failed";
  if (item !== undefined && task.prefetch && !task.prepared && !isWaitedFor && definition !== undefined && model !== undefined) {
    const gauge = gaugeOf(turn, definition, model);
    const due = state.compaction.wanted ? undefined : dueBy(turn, resolvePolicy(definition.compaction), gauge);
    if (!state.compaction.wanted && (due === undefined || due.prefetch)) {
      session.stage("compaction.prepared", { task_id: taskId }, envelopeOf(item));
      return;
    }
  }
  const cut = { ...task.cut, excerpts: excerptsInForce(state, task.cut) };
  const after = markedView(state, summarized.head, cut);
  const problem = newProblem(state.view, after);
  if (problem !== undefined) return failed("not_smaller", { message: `the view would not be valid: ${problem}` });
  const beforeBytes = session.transcriptBytes;
  const sizes = measure(turn, after);
  const beforeTokens = measure(turn, state.view).tokens;
  // On one scale: bytes of both views.
  if (sizes.bytes >= beforeBytes) return failed("not_smaller", { before_bytes: beforeBytes, after_bytes: sizes.bytes });
  hitFailpoint("marker.before_append");
  session.stage(
    "context.compacted",
    {
      task_id: taskId,
      trigger,
      cut,
      head: summarized.head,
      before: { tokens: beforeTokens, scale: "estimate", bytes: beforeBytes },
      after: { tokens: sizes.tokens, scale: "estimate", bytes: sizes.bytes },
      summarizer: summarized.summarizer,
      ...(summarized.model === undefined ? {} : { model: summarized.model }),
      ...(summarized.usage === undefined ? {} : { usage: summarized.usage }),
      ...(summarized.cost_usd_micros === undefined ? {} : { cost_usd_micros: summarized.cost_usd_micros }),
      calls: summarized.calls,
      rung: summarized.rung,
      facts_check: summarized.facts_check,
      policy: task.policy,
      source_digest: summarized.source_digest,
      view_digest: sizes.digest,
      algorithm: HEAD_VERSION,
      carry: { ...carryOf(state, cut), ...budgetOf(turn, summarized) },
      duration_ms: summarized.duration_ms,
    },
    envelopeOf(item),
  );
  count(turn, trigger, "applied", {
    tokensSaved: beforeTokens - sizes.tokens,
    calls: summarized.calls,
    ...(summarized.cost_usd_micros === undefined ? {} : { costUsdMicros: summarized.cost_usd_micros }),
  });
  const atHand = turnAtHand(state);
  turn.onceCommitted(() => turn.spans.compacted(atHand, { trigger, beforeTokens, afterTokens: sizes.tokens, rung: summarized.rung }));
  const fields = { runId: session.memory.row.id, turn: state.turn, taskId, trigger, beforeBytes, afterBytes: sizes.bytes, rung: summarized.rung };
  turn.onceCommitted(() => deps.log.info(fields, "compacted"));
}

/** All excerpts that the tail shows: a fold that begins at this marker knows of no earlier ones. */
function excerptsInForce(state: RunState, cut: Cut): Excerpt[] {
  const planned = (cut.excerpts ?? []).filter(({ seq }) => !state.compaction.excerpts.has(seq));
  return [...state.compaction.excerpts.values(), ...planned].filter(({ seq }) => seq >= cut.first_kept_seq).toSorted((a, b) => a.seq - b.seq);
}

function measure(turn: Turn, view: readonly Message[]): { tokens: number; bytes: number; digest: string } {
  const digest = viewDigest(view);
  return { ...digest, tokens: estimateTokens(view) + (turn.session.frame === undefined ? 0 : overheadOf(turn.session.frame)) };
}

function carryOf(state: RunState, cut: Cut): Carry {
  const { compaction, corrections } = state;
  return {
    turn: state.turn,
    native_output: state.nativeOutput,
    corrections: { ...corrections },
    model_failures: state.modelFailures,
    ...(state.truncatedTo === undefined ? {} : { truncated_to: state.truncatedTo }),
    ...(state.phase.kind === "failed" ? { overflow_attempt: state.phase.attempt } : {}),
    ...standingFrom(state, cut),
    applied_turns: [...compaction.appliedTurns, turnAtHand(state)].slice(-REMEMBERED_COMPACTIONS),
    ...(compaction.unappliedTurn === undefined ? {} : { unapplied_turn: compaction.unappliedTurn }),
    reported: [...compaction.reported],
    pins: [...compaction.pins],
  };
}

/** Only where the run has a budget, so that markers of other runs stay as they are. */
function budgetOf({ session: { state, memory } }: Turn, { usage, cost_usd_micros: cost = 0 }: Summarized): Pick<Carry, "budget"> {
  if (memory.definition?.budget === undefined) return {};
  const { told, over, wrapTurn, spent } = state.budget;
  return {
    budget: {
      told: [...told],
      ...(over === undefined ? {} : { over }),
      ...(wrapTurn === undefined ? {} : { wrap_turn: wrapTurn }),
      spent: { tokens: Math.round(spent.tokens + (usage?.input ?? 0) + (usage?.output ?? 0)), cost_usd_micros: Math.round(spent.costUsdMicros + cost) },
    },
  };
}

/** The answer that a run rests on, and its wait, stand behind what is replaced, and before the tail when nothing is kept. */
function standingFrom({ places, phase, view }: RunState, cut: Cut): { from_seq?: number } {
  const last = places.at(-1);
  if (last === undefined) return {};
  const from = phase.kind === "answered" && view.at(-1)?.role === "assistant" ? last.first : last.last + 1;
  return from < cut.first_kept_seq ? { from_seq: from } : {};
}

/** Counted when it is committed: what is refused did not happen. */
export function count(turn: Turn, trigger: CompactionTrigger, outcome: string, numbers: Pick<CompactionReport, "tokensSaved" | "calls" | "costUsdMicros"> = {}): void {
  const { id: runId, agent, tenant } = turn.session.memory.row;
  turn.onceCommitted(() => turn.deps.countCompaction({ runId, agent, tenant, trigger, outcome, ...numbers }));
}

export const envelopeOf = (item: InboxItem | undefined): { inboxId?: string; actor?: string } =>
  item === undefined ? {} : { inboxId: item.id, ...(item.actor === undefined ? {} : { actor: item.actor }) };
