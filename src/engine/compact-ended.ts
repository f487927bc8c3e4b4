/**
 * Compaction of a run that has ended: asked for by hand, for the run that will continue from it. Its end stands; all that
 * is appended are the events of the compaction, each under a claim that is given back in the same commit.
 */
import type { AgentDefinition } from "../domain/definition.ts";
import { effectiveDefinition } from "../domain/effective-definition.ts";
import { CapstanError } from "../domain/error.ts";
import { INBOX_BATCH } from "./boundary.ts";
import { applyCompactionItem } from "./compaction-step.ts";
import type { Model } from "./model-port.ts";
import type { Turn } from "./turn.ts";

export async function compactEnded(turn: Turn): Promise<void> {
  const { session, deps } = turn;
  const { memory, state } = session;
  if (memory.inboxPending === 0 || memory.paused) return;
  const items = await deps.store.pendingInbox(memory.row.id, INBOX_BATCH);
  if (items.length === 0) return;
  const prepared = await prepare(turn);
  // A run that ended in the middle of a turn is continued from before that turn: a marker behind it would be read by nobody.
  const { kind: phase } = state.phase;
  const rests = phase === "boundary" || phase === "answered";
  for (const item of items) {
    if (item.kind !== "compact" && item.kind !== "compaction") session.consume(item.id);
    else if (prepared.kind === "ready" && (rests || item.kind === "compaction")) await applyCompactionItem(turn, item, prepared.definition, prepared.model);
    else {
      const trigger = "manual" as const;
      const why =
        prepared.kind === "gone" ? ({ reason: "agent_gone", detail: { message: prepared.message } } as const) : ({ reason: "nothing_to_cut", detail: { phase } } as const);
      session.stage("compaction.skipped", { trigger, ...why }, { inboxId: item.id, ...(item.actor === undefined ? {} : { actor: item.actor }) });
    }
  }
  await turn.commit({ release: true });
}

type Prepared = { readonly kind: "ready"; readonly definition: AgentDefinition; readonly model: Model } | { readonly kind: "gone"; readonly message: string };

/** Other than a run that goes on, an ended one is not parked for what is missing here. */
async function prepare(turn: Turn): Promise<Prepared> {
  const { deps, session } = turn;
  const { definitionSha: sha, agent } = session.state;
  const stored = sha === undefined ? undefined : await deps.definitions.get(sha);
  if (stored === undefined) return { kind: "gone", message: `agent ${agent} has no definition ${sha ?? "that the run was pinned to"}` };
  const definition = effectiveDefinition(stored, session.state);
  try {
    const model = deps.models.resolve(definition.model, session.memory.row.tenant);
    session.memory.definition = definition;
    session.frame ??= deps.frames.of(definition, model);
    session.windowTokens ??= model.window.tokens;
    return { kind: "ready", definition, model };
  } catch (error) {
    if (!(error instanceof CapstanError)) throw error;
    return { kind: "gone", message: error.message };
  }
}
