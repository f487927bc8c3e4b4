/** Asks the ring whether a turn's model may be called, before anything of the call is journaled. */
import { CapabilityRefusedError, QuotaExhaustedError } from "../domain/capability-error.ts";
import { fail } from "./boundary.ts";
import type { Admission, Effect } from "./ports.ts";
import type { Turn } from "./turn.ts";

/** Runs that wait for one window must not all come in its first moment: each adds up to this, by chance. */
const SPREAD_MS = 5_000;

/** Undefined: the run has ended with the refusal's code, or waits for its quota. */
export async function admitCall(turn: Turn, effect: Effect): Promise<Admission | undefined> {
  try {
    return await turn.deps.ring.admit(effect);
  } catch (error) {
    if (!(error instanceof CapabilityRefusedError)) throw error;
    if (error instanceof QuotaExhaustedError) await waitForQuota(turn, error);
    else await fail(turn, error.code, error.message, error.details);
    return undefined;
  }
}

/**
 * Parks the run until there may be room again. A run that finds none after all waits on without another event, however
 * often it looks: its journal does not grow by waiting.
 */
async function waitForQuota(turn: Turn, { bucket, retryAfterMs, details }: QuotaExhaustedError): Promise<void> {
  const { deps, session } = turn;
  const { state, memory } = session;
  const { deadline, id } = memory.row;
  const turnDone = session.hasStaged && session.token !== undefined;
  const againAt = new Date(turn.now.getTime() + retryAfterMs + deps.random() * Math.min(SPREAD_MS, retryAfterMs));
  const wish = deadline !== undefined && deadline < againAt ? deadline : againAt;
  const isNew = state.waitReason !== "quota";
  if (isNew) session.stage("run.parked", { reason: "quota", wake_at: wish.toISOString(), detail: details });
  await turn.commit({ release: true, wish, turnDone });
  if (isNew) deps.log.warn({ runId: id, turn: state.turn, reason: "quota", bucket, retryAfterMs }, "run parked");
}
