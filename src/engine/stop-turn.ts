/** Stops the turn at hand of an interactive run from outside, and keeps the run: it waits for input again. */
import type { OpenCall } from "../domain/fold.ts";
import { INBOX_LIMIT } from "./call-waits.ts";
import { hitFailpoint } from "./failpoints.ts";
import type { InboxItem } from "./ports.ts";
import type { Turn } from "./turn.ts";

/** True when the run was asked to stop, and has. To be asked before anything else is done for the run. */
export async function stopIfAsked(turn: Turn): Promise<boolean> {
  const { session, deps, held } = turn;
  const { memory } = session;
  if (!session.state.interactive || (memory.inboxPending === 0 && held.reason !== "stopped")) return false;
  const items = await deps.store.pendingInbox(memory.row.id, INBOX_LIMIT);
  const stop = items.find(({ kind }) => kind === "stop");
  if (stop === undefined) return false;
  await stopTurn(turn, stop);
  return true;
}

export async function stopTurn(turn: Turn, item: InboxItem): Promise<void> {
  const { session, deps } = turn;
  // A refusal below drops what is staged and gives the run back: what is known by now must not go with it.
  if (session.token !== undefined && session.hasStaged) await turn.commit();
  const { state, memory } = session;
  const { reason } = item.payload as { reason?: string };
  const others = (await deps.store.pendingInbox(memory.row.id, INBOX_LIMIT)).filter(({ id }) => id !== item.id && !session.hasTaken(id));
  // Answers to calls that wait no more: left behind, they would begin another turn.
  const answers = others.filter(({ kind }) => kind === "wait");
  for (const { id } of answers) session.consume(id);
  if (state.phase.kind === "calling") for (const call of state.phase.calls.filter((open) => open.result === undefined)) endCall(turn, call);
  session.stage("turn.stopped", reason === undefined ? {} : { reason }, { inboxId: item.id, ...(item.actor === undefined ? {} : { actor: item.actor }) });
  // In one commit with the rest: a worker that found the turn stopped and the run at work would begin the next one.
  session.stage("run.parked", { reason: "input" });
  hitFailpoint("stop.before_append");
  const left = others.length - answers.length;
  const wish = left > 0 ? ("now" as const) : memory.row.deadline;
  await turn.commit({ release: true, turnDone: true, inboxAtMost: left, ...(wish === undefined ? {} : { wish }) });
  hitFailpoint("stop.committed");
  deps.log.info({ runId: memory.row.id, turn: state.turn, ...(reason === undefined ? {} : { reason }) }, "turn stopped");
}

/** Of a call with side effects that was announced and has no result nothing is known: its worker has died with it. */
function endCall(turn: Turn, call: OpenCall): void {
  if (call.announced && call.waiting === undefined) return turn.stageEnd({ type: "tool.interrupted", call, payload: { reason: "worker_lost" } });
  // Calls that may be repeated are not announced: whether this one was under way is not known here.
  const effect = turn.session.memory.definition?.tools.find((tool) => tool.name === call.call.name)?.effect;
  const why =
    call.waiting !== undefined
      ? "nobody waits for this call any more"
      : effect === "once"
        ? "this call was not made"
        : "this call has no result, and may or may not have been made";
  turn.stageEnd({ type: "tool.failed", call, payload: { error: { code: "STOPPED", message: `the turn was stopped from outside; ${why}` }, duration_ms: 0 } });
}
