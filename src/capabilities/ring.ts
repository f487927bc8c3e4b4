/**
 * The one place through which every model call, summary and tool passes, in this order: grant, quota, guard, execute,
 * meter. A refusal is the same error whatever was refused, and it is metered too.
 */
import { CapabilityRefusedError, QuotaExhaustedError } from "../domain/capability-error.ts";
import { isGranted } from "../domain/grants.ts";
import { noAmounts } from "../domain/quota.ts";
import type { Admission, Effect, EffectReport, EffectRing, QuotaGate, QuotaReservation } from "../engine/ports.ts";
import { askGuard, type Guard } from "./guard.ts";

export type Meter = (effect: Effect, report: EffectReport) => void;

export interface RingOptions {
  readonly meter: Meter;
  readonly clockMs: () => number;
  readonly quota?: QuotaGate;
  readonly guard?: Guard;
}

const NO_ESTIMATE = { inputTokens: 0, maxOutputTokens: 0, costUsdMicros: 0 };

export function createRing({ meter, clockMs, quota, guard }: RingOptions): EffectRing {
  const admit = async (effect: Effect): Promise<Admission> => {
    let reservation: QuotaReservation | undefined;
    let request: unknown;
    const startedMs = clockMs();
    try {
      checkGrants(effect);
      checkSystemPrompt(effect);
      reservation = await reserve(quota, effect);
      request = guard === undefined ? effect.request : await askGuard(guard, effect);
      if (request !== effect.request) checkSystemPrompt({ ...effect, request });
    } catch (error) {
      if (reservation !== undefined) await quota?.settle(reservation, noAmounts);
      if (error instanceof CapabilityRefusedError) meter(effect, { outcome: error.code, durationMs: clockMs() - startedMs });
      throw error;
    }
    return {
      request,
      async run(execute, report) {
        const executedMs = clockMs();
        const executed = await settled(execute);
        const durationMs = clockMs() - executedMs;
        const reported: EffectReport = executed.ok ? { ...report(executed.result), durationMs } : { outcome: "threw", durationMs, possiblyBilled: true };
        if (reservation !== undefined) await quota?.settle(reservation, amountsOf(reported));
        meter(effect, reported);
        if (executed.ok) return executed.result;
        throw executed.error;
      },
      async abandon() {
        if (reservation !== undefined) await quota?.settle(reservation, noAmounts);
      },
    };
  };
  return {
    admit,
    async perform(effect, execute, report) {
      const admission = await admit(effect);
      return await admission.run(() => execute(admission.request), report);
    },
  };
}

async function settled<T>(execute: () => Promise<T>): Promise<{ readonly ok: true; readonly result: T } | { readonly ok: false; readonly error: unknown }> {
  try {
    return { ok: true, result: await execute() };
  } catch (error) {
    return { ok: false, error };
  }
}

function checkGrants(effect: Effect): void {
  const needs = effect.needs ?? [`${effect.kind === "summary" ? "summarizer" : effect.kind}:${effect.name}`];
  const missing = needs.filter((resource) => !isGranted(effect.grants, resource));
  if (missing.length === 0) return;
  throw new CapabilityRefusedError("GRANT_DENIED", `agent ${effect.agent} has no grant for ${missing.join(", ")}: add it to the grants of the agent's definition`, {
    effect: effect.kind,
    name: effect.name,
    missing,
  });
}

/**
 * A system prompt is the operator's own word, to the letter: tainted content in it would speak with the operator's
 * authority. Compared, not searched, so that no encoding of the content slips through.
 */
function checkSystemPrompt({ kind, name, agent, request, system }: Effect): void {
  if (kind === "tool" || typeof request !== "object" || request === null || !("system" in request)) return;
  const given: unknown = request.system;
  if (given === undefined || given === "" || given === system) return;
  throw new CapabilityRefusedError(
    "SYSTEM_PROMPT_FOREIGN",
    `a call of ${name} for agent ${agent} has a system prompt that is not its operator's own; tainted content belongs in a user message`,
    {
      effect: kind,
      name,
    },
  );
}

async function reserve(quota: QuotaGate | undefined, effect: Effect): Promise<QuotaReservation | undefined> {
  if (quota === undefined) return undefined;
  const grant = await quota.reserve(effect, effect.estimate ?? NO_ESTIMATE);
  if (grant.kind === "exhausted") throw new QuotaExhaustedError(grant);
  return grant.reservation;
}

/** Numbers that are none, or give back what was never taken, come of models of the user's own: then nobody knows what the call took. */
function amountsOf({ inputTokens = 0, outputTokens = 0, costUsdMicros = 0, possiblyBilled = false }: EffectReport) {
  const isKnown = [inputTokens, outputTokens, costUsdMicros].every((amount) => Number.isFinite(amount) && amount >= 0);
  return possiblyBilled || !isKnown ? "reserved" : { calls: 1, tokens: inputTokens + outputTokens, costUsdMicros };
}
