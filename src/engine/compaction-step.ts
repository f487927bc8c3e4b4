/**
 * Compaction at a boundary: decides whether one is due, plans and requests it, has what the summarize pool made put in,
 * and waits for it only when the next request would not fit.
 */
import { mayCompact } from "../domain/compaction/breaker.ts";
import { textTokens } from "../domain/compaction/footprint.ts";
import { turnAtHand } from "../domain/compaction/fold.ts";
import { planCut, planPrune } from "../domain/compaction/plan.ts";
import { isCompactionConfigured, resolvePolicy, type ResolvedPolicy } from "../domain/compaction/policy.ts";
import type { CompactionReason, CompactionTrigger } from "../domain/compaction/types.ts";
import type { AgentDefinition } from "../domain/definition.ts";
import type { JsonObject } from "../domain/json.ts";
import { applyReady, count, envelopeOf } from "./apply-summary.ts";
import { park } from "./boundary.ts";
import { dueBy, type Due } from "./compaction-due.ts";
import { gaugeOf, type Gauge } from "./context-gauge.ts";
import type { Model } from "./model-port.ts";
import type { InboxItem } from "./ports.ts";
import type { Turn } from "./turn.ts";

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
    return isAuto && (gauge.isOverHardLine || beginsWithSummary(turn)) ? await waitFor(turn, task.id, { lookAgain: true }) : "go_on";
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
  if (requested !== undefined && isAuto && beginsWithSummary(turn)) return await waitFor(turn, requested);
  if (!gauge.isOverHardLine || !isAuto) return "go_on";
  return requested === undefined ? await lastResort(turn, definition, policy, gauge) : await waitFor(turn, requested);
}

/**
 * The next run of a thread under a budget: what came before is summarized before its message is answered. A run of one
 * turn would else end before its summary is there, and so would the next one. If no summary comes of it the run goes on.
 */
function beginsWithSummary({ session: { state } }: Turn): boolean {
  return state.own?.origin === "continue" && state.ownCompaction !== undefined && state.turn === state.own.turn;
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
    // Behind a view that another run began stand messages that are as much the task as the first one is.
    interactive: state.interactive || state.own !== undefined,
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
  const fields = { runId: turn.session.memory.row.id, turn: state.turn, trigger, reason, ...detail };
  turn.onceCommitted(() => turn.deps.log.warn(fields, "compaction skipped"));
  count(turn, trigger, reason);
}

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
