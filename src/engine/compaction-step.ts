/**
 * Compaction at a boundary: decides whether one is due, plans and requests it, applies what the summarize pool has made,
 * and waits for it only when the next request would not fit. The view is changed here alone, under the run's lease.
 */
import { mayCompact } from "../domain/compaction/breaker.ts";
import { excerptMessage } from "../domain/compaction/excerpt.ts";
import { estimateTokens, hasReached, textTokens } from "../domain/compaction/footprint.ts";
import { headMessage, keptFrom, turnAtHand } from "../domain/compaction/fold.ts";
import { HEAD_VERSION } from "../domain/compaction/head.ts";
import { planCut, planPrune } from "../domain/compaction/plan.ts";
import { isCompactionConfigured, resolvePolicy, type ResolvedPolicy } from "../domain/compaction/policy.ts";
import { REMEMBERED_COMPACTIONS, type Carry, type CompactionReason, type CompactionTrigger, type Cut, type Excerpt, type Head, type Place } from "../domain/compaction/types.ts";
import { newProblem } from "../domain/compaction/validate.ts";
import type { AgentDefinition } from "../domain/definition.ts";
import type { RunState } from "../domain/fold.ts";
import type { JsonObject } from "../domain/json.ts";
import type { Message } from "../domain/transcript/message.ts";
import { park } from "./boundary.ts";
import { gaugeOf, overheadOf, type Gauge } from "./context-gauge.ts";
import { hitFailpoint } from "./failpoints.ts";
import type { Model } from "./model-port.ts";
import type { CompactionReport, InboxItem } from "./ports.ts";
import { viewDigest } from "./run-memory.ts";
import type { Turn } from "./turn.ts";

type Due = { readonly trigger: CompactionTrigger; readonly byBytes: boolean; readonly prefetch: boolean };

/** To be asked at the top of a turn, before its request is committed. "rest": the run waits, and the lease is given back. */
export async function compactBeforeRequest(turn: Turn, definition: AgentDefinition, model: Model): Promise<"go_on" | "rest"> {
  const { compaction } = turn.session.state;
  const isAuto = isCompactionConfigured(definition.compaction);
  if (!isAuto && !compaction.wanted && compaction.task === undefined) return "go_on";
  const policy = resolvePolicy(definition.compaction);
  const gauge = gaugeOf(turn, definition, model);
  const task = compaction.task;
  if (task !== undefined) {
    const due = isAuto ? dueBy(turn, policy, gauge) : undefined;
    // One that was made early waits for its line.
    const isDue = compaction.wanted || (due !== undefined && !due.prefetch);
    if (task.prepared && (isDue || gauge.isOverHardLine)) {
      await applyReady(turn, task.id, undefined);
      return "go_on";
    }
    return gauge.isOverHardLine && isAuto ? await waitFor(turn, task.id, { lookAgain: true }) : "go_on";
  }
  const due: Due | undefined = compaction.wanted ? { trigger: "self", byBytes: false, prefetch: false } : dueBy(turn, policy, gauge);
  if (due === undefined) return "go_on";
  if (due.trigger === "auto") {
    const allowed = mayCompact({ history: compaction, turn: turnAtHand(turn.session.state), byBytes: due.byBytes });
    if (!allowed.ok && allowed.reason !== undefined) {
      skip(turn, due.trigger, allowed.reason, allowed.detail ?? {});
      // A summary for every other turn is no way to live at the hard line either (C15).
      if (gauge.isOverHardLine) return await lastResort(turn, definition, policy, gauge);
    }
    if (!allowed.ok && !gauge.isOverHardLine) return "go_on";
  }
  // One summary a turn: neither after one that failed in it, nor after one that did not help enough.
  const atHand = turnAtHand(turn.session.state);
  const hadOne = compaction.unappliedTurn === atHand || compaction.appliedTurns.at(-1) === atHand;
  if (gauge.isOverHardLine && isAuto && hadOne) return await lastResort(turn, definition, policy, gauge);
  const requested = request(turn, definition, policy, gauge, { ...due, hard: gauge.isOverHardLine });
  if (!gauge.isOverHardLine || !isAuto) return "go_on";
  return requested === undefined ? await lastResort(turn, definition, policy, gauge) : await waitFor(turn, requested);
}

/** The provider refused for length. With auto on: one compaction and one strictly smaller try; otherwise the run waits. */
export async function compactAfterOverflow(turn: Turn, definition: AgentDefinition, model: Model, message: string): Promise<"go_on" | "rest"> {
  const { state } = turn.session;
  const { compaction } = state;
  const exhausted = async (detail: JsonObject): Promise<"rest"> =>
    (await park(turn, "context_exhausted", { message, model: model.name, ...detail, fix: "compact the run (capstan runs compact), or turn compaction on in a new definition" }))
      .kind;
  if (!isCompactionConfigured(definition.compaction)) return await exhausted({ auto: false });
  if (compaction.overflowTurn === state.turn) return await exhausted({ compacted_this_turn: true });
  if (compaction.task?.prepared === true) {
    // Its inbox item was taken when it was made: nobody would wake a run that waited for it.
    await applyReady(turn, compaction.task.id, undefined);
    if (state.phase.kind === "failed" && state.phase.smaller === true) return "go_on";
  } else if (compaction.task !== undefined) return await waitFor(turn, compaction.task.id, { lookAgain: true });
  const policy = resolvePolicy(definition.compaction);
  const gauge = gaugeOf(turn, definition, model);
  const requested =
    compaction.unappliedTurn === turnAtHand(state) ? undefined : request(turn, definition, policy, gauge, { trigger: "overflow", byBytes: false, prefetch: false, hard: true });
  if (requested !== undefined) return await waitFor(turn, requested);
  return await lastResort(turn, definition, policy, gauge, { refused: true });
}

/** Inbox items of compaction: what the summarize pool has made, and what people ask for. True when the item is one. */
export async function applyCompactionItem(turn: Turn, item: InboxItem, definition: AgentDefinition, model: Model): Promise<boolean> {
  if (item.kind === "compaction") {
    await applyReady(turn, (item.payload as { task_id: string }).task_id, item, definition, model);
    return true;
  }
  if (item.kind !== "compact") return false;
  const { task } = turn.session.state.compaction;
  if (task !== undefined) {
    // A second request while one is in flight joins it; an early one is put in now.
    skip(turn, "manual", "joined", { task_id: task.id }, item);
    if (task.prepared) await applyReady(turn, task.id, undefined);
    return true;
  }
  request(turn, definition, resolvePolicy(definition.compaction), gaugeOf(turn, definition, model), { trigger: "manual", byBytes: false, prefetch: false, hard: false }, item);
  return true;
}

function dueBy(turn: Turn, policy: ResolvedPolicy, gauge: Gauge): Due | undefined {
  if (policy.after_bytes !== undefined && turn.session.transcriptBytes > policy.after_bytes) return { trigger: "auto", byBytes: true, prefetch: false };
  if (!policy.enabled) return undefined;
  if (gauge.isOverHardLine || hasReached(gauge.usedTokens, gauge.firesAtTokens)) return { trigger: "auto", byBytes: false, prefetch: false };
  return hasReached(gauge.usedTokens, gauge.prefetchAtTokens) ? { trigger: "auto", byBytes: false, prefetch: true } : undefined;
}

/** Plans and stages the request; gives the task's id, or undefined when there is nothing to do (which is journaled once per reason). */
function request(turn: Turn, definition: AgentDefinition, policy: ResolvedPolicy, gauge: Gauge, due: Due & { readonly hard: boolean }, item?: InboxItem): string | undefined {
  const { session } = turn;
  const { state } = session;
  const plan = planCut({
    view: state.view,
    places: state.places,
    hasHead: state.marker !== undefined,
    ...(state.compaction.head === undefined ? {} : { headSummaryTokens: textTokens(state.compaction.head.summary) }),
    nextSeq: state.seq + 1,
    policy,
    windowTokens: gauge.maxTokens,
    interactive: state.interactive,
    trigger: due.trigger,
    byBytes: due.byBytes,
    hard: due.hard,
    overheadTokens: gauge.overheadTokens,
    ...(gauge.firesAtTokens === undefined ? {} : { firesAtTokens: gauge.firesAtTokens }),
    ...(gauge.hardLineTokens === undefined ? {} : { hardLineTokens: gauge.hardLineTokens }),
    shortened: state.compaction.excerpts,
  });
  if (plan.kind === "skip") {
    skip(turn, due.trigger, plan.reason, { ...plan.detail, agent: definition.name }, item);
    return undefined;
  }
  const taskId = turn.deps.newId();
  session.stage(
    "compaction.requested",
    {
      task_id: taskId,
      trigger: due.trigger,
      cut: plan.cut,
      policy: policy as unknown as JsonObject,
      before: { tokens: gauge.usedTokens, scale: gauge.scale, bytes: session.transcriptBytes },
      ...(due.byBytes ? { by_bytes: true } : {}),
      ...(due.prefetch ? { prefetch: true } : {}),
      ...(due.hard ? { hard: true } : {}),
    },
    envelopeOf(item),
  );
  return taskId;
}

function skip(turn: Turn, trigger: CompactionTrigger, reason: CompactionReason, detail: JsonObject, item?: InboxItem): void {
  const { state } = turn.session;
  // Somebody waits for the answer of a manual or self compaction; auto tells each reason once, not every turn.
  if (trigger === "auto" && state.compaction.reported.includes(reason)) return;
  turn.session.stage("compaction.skipped", { trigger, reason, detail }, envelopeOf(item));
  turn.deps.log.warn({ runId: turn.session.memory.row.id, turn: state.turn, trigger, reason, ...detail }, "compaction skipped");
  count(turn, trigger, reason);
}

function count(turn: Turn, trigger: CompactionTrigger, outcome: string, numbers: Pick<CompactionReport, "tokensSaved" | "calls" | "costUsdMicros"> = {}): void {
  const { id: runId, agent, tenant } = turn.session.memory.row;
  turn.deps.countCompaction({ runId, agent, tenant, trigger, outcome, ...numbers });
}

const envelopeOf = (item: InboxItem | undefined): { inboxId?: string; actor?: string } =>
  item === undefined ? {} : { inboxId: item.id, ...(item.actor === undefined ? {} : { actor: item.actor }) };

async function waitFor(turn: Turn, taskId: string, options: { readonly lookAgain?: boolean } = {}): Promise<"rest"> {
  return (await park(turn, "compaction", { task_id: taskId }, options)).kind;
}

/** What a request that was refused although it seemed to fit is brought down to, when results are all that can be shortened. */
const REFUSED_SHARE = 0.75;

/** Nothing can be summarized and the next request does not fit: shorten what can be fetched again, else say so and wait. */
async function lastResort(
  turn: Turn,
  definition: AgentDefinition,
  policy: ResolvedPolicy,
  gauge: Gauge,
  { refused = false }: { readonly refused?: boolean } = {},
): Promise<"go_on" | "rest"> {
  const { session } = turn;
  const { state } = session;
  const refetchable = new Set(definition.tools.filter(({ effect }) => effect !== "once").map(({ name }) => name));
  const before = { tokens: gauge.usedTokens, scale: gauge.scale, bytes: session.transcriptBytes };
  const fits = refused && !gauge.isOverHardLine ? Math.floor(gauge.usedTokens * REFUSED_SHARE) : (gauge.hardLineTokens ?? 0);
  const pruned = planPrune({
    view: state.view,
    places: state.places,
    policy,
    isRefetchable: (name) => refetchable.has(name),
    shortened: state.compaction.excerpts,
    wantedTokens: gauge.usedTokens - fits,
  });
  if (pruned !== undefined && gauge.usedTokens - pruned.freedTokens <= fits) {
    const tokens = Math.max(0, gauge.usedTokens - pruned.freedTokens);
    session.stage("context.pruned", {
      excerpts: pruned.excerpts,
      before,
      after: { tokens, scale: "estimate", bytes: Math.max(0, before.bytes - pruned.freedBytes) },
      reason: "irreducible",
    });
    return "go_on";
  }
  return (
    await park(turn, "context_exhausted", {
      used_tokens: gauge.usedTokens,
      max_tokens: gauge.maxTokens ?? null,
      system_and_tools_tokens: gauge.overheadTokens,
      fix: "use a model with a larger window, shorten instructions and tools, or lower keep_last_n",
    })
  ).kind;
}

/** Puts a finished summary in, or journals why it is not. */
async function applyReady(turn: Turn, taskId: string, item: InboxItem | undefined, definition?: AgentDefinition, model?: Model): Promise<void> {
  const { session, deps } = turn;
  const { state } = session;
  const task = state.compaction.task;
  const outcome = await deps.compactions.result(taskId);
  const trigger = task?.trigger ?? "auto";
  const failed = (reason: CompactionReason, detail: JsonObject): void => {
    session.stage("compaction.failed", { task_id: taskId, trigger, reason, detail }, envelopeOf(item));
    deps.log.warn({ runId: session.memory.row.id, turn: state.turn, taskId, trigger, reason, ...detail }, "compaction failed; the view is unchanged");
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
  const after = viewAfter(state, summarized.head, cut);
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
      carry: carryOf(state, cut),
      duration_ms: summarized.duration_ms,
    },
    envelopeOf(item),
  );
  count(turn, trigger, "applied", {
    tokensSaved: beforeTokens - sizes.tokens,
    calls: summarized.calls,
    ...(summarized.cost_usd_micros === undefined ? {} : { costUsdMicros: summarized.cost_usd_micros }),
  });
  turn.spans.compacted(turnAtHand(state), { trigger, beforeTokens, afterTokens: sizes.tokens, rung: summarized.rung });
  deps.log.info({ runId: session.memory.row.id, turn: state.turn, taskId, trigger, beforeBytes, afterBytes: sizes.bytes, rung: summarized.rung }, "compacted");
}

/** All excerpts that the tail shows: a fold that begins at this marker knows of no earlier ones. */
function excerptsInForce(state: RunState, cut: Cut): Excerpt[] {
  const planned = (cut.excerpts ?? []).filter(({ seq }) => !state.compaction.excerpts.has(seq));
  return [...state.compaction.excerpts.values(), ...planned].filter(({ seq }) => seq >= cut.first_kept_seq).toSorted((a, b) => a.seq - b.seq);
}

/** The view as the fold will make it from the marker. */
function viewAfter(state: RunState, head: Head, cut: Cut): Message[] {
  const kept = keptFrom(state.places, cut.first_kept_seq, state.marker !== undefined);
  const fresh = new Map((cut.excerpts ?? []).filter(({ seq }) => !state.compaction.excerpts.has(seq)).map((excerpt) => [excerpt.seq, excerpt]));
  const tail = state.view.slice(kept).map((message, i) => {
    const place = state.places[kept + i] as Place;
    const seqs = place.parts ?? [place.first];
    return seqs.some((seq) => fresh.has(seq)) ? excerptMessage(message, seqs, fresh) : message;
  });
  return [headMessage(state, head, cut.keep_first), ...tail];
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

/** The answer that a run rests on, and its wait, stand behind what is replaced, and before the tail when nothing is kept. */
function standingFrom({ places, phase, view }: RunState, cut: Cut): { from_seq?: number } {
  const last = places.at(-1);
  if (last === undefined) return {};
  const from = phase.kind === "answered" && view.at(-1)?.role === "assistant" ? last.first : last.last + 1;
  return from < cut.first_kept_seq ? { from_seq: from } : {};
}
