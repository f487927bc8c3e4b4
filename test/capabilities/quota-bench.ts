/** Quota gates of several workers over one database, without workers around them. */
import { randomUUID } from "node:crypto";
import type pg from "pg";
import { parseLimits, type QuotaLimitSpec } from "../../src/domain/quota.ts";
import type { Effect, EffectEstimate, QuotaReservation } from "../../src/engine/ports.ts";
import { PostgresQuotaGate } from "../../src/store/quota.ts";
import { silentLog } from "../../src/telemetry/log.ts";
import { same, type QueueBench } from "../queue/queue-bench.ts";

export interface TestGate {
  readonly gate: PostgresQuotaGate;
  readonly workerId: string;
  readonly pool: pg.Pool;
}

export async function openGate(bench: QueueBench, limits: readonly QuotaLimitSpec[] = [], { clockMs = () => performance.now() } = {}): Promise<TestGate> {
  const worker = await bench.worker();
  const parsed = parseLimits(limits);
  if (!parsed.ok) throw new Error(JSON.stringify(parsed.issues));
  const gate = new PostgresQuotaGate({
    pool: worker.pool,
    named: same,
    outage: { log: silentLog, signal: new AbortController().signal },
    configured: parsed.limits,
    workerId: () => worker.id,
    clockMs,
  });
  await gate.refresh();
  return { gate, workerId: worker.id, pool: worker.pool };
}

export function effectOf(over: Partial<Effect> = {}): Effect {
  return { kind: "model", name: "test:model", runId: randomUUID(), tenant: "acme", agent: "writer", turn: 1, attempt: 1, grants: ["model:*", "tool:*", "summarizer:*"], ...over };
}

export const estimate = (over: Partial<EffectEstimate> = {}): EffectEstimate => ({ inputTokens: 600, maxOutputTokens: 400, costUsdMicros: 0, ...over });

/** The reservation, or undefined when the quota is exhausted. */
export async function tryReserve({ gate }: TestGate, effect: Effect = effectOf(), most: EffectEstimate = estimate()): Promise<QuotaReservation | undefined> {
  const grant = await gate.reserve(effect, most);
  return grant.kind === "granted" ? grant.reservation : undefined;
}
