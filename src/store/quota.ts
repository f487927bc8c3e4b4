/**
 * Quotas over many workers (docs/adr holds the reasons): rates are leased to workers in slices, slots are rows. Nothing
 * is asked of the database while no limit applies to a call; limits are read again at every round of the sweep.
 */
import { randomUUID } from "node:crypto";
import type pg from "pg";
import { amountOf, mergeLimits, sharesOf, tenantOfBucket, type QuotaAmounts, type QuotaKind, type QuotaLimit, type QuotaShare } from "../domain/quota.ts";
import type { Effect, EffectEstimate, QuotaGate, QuotaGrant, QuotaReservation } from "../engine/ports.ts";
import { QuotaSlices, type Draw } from "./quota-slices.ts";
import { FOLD_QUOTAS_SQL, LIMITS_SQL, RESERVE_SQL, SETTLE_SQL, SWEEP_QUOTAS_SQL, TAKE_SLOT_SQL, TENANT_BUCKETS_SQL } from "./sql/quota.ts";
import { untilConnected, type Outage } from "./until-connected.ts";

export interface QuotaGateOptions {
  readonly pool: pg.Pool;
  readonly named: (text: string) => string;
  readonly outage: Outage;
  readonly configured: readonly QuotaLimit[];
  /** Of the incarnation that speaks now. */
  workerId(): string;
  clockMs(): number;
}

interface Open {
  readonly draws: readonly (Draw & { readonly share: QuotaShare })[];
}

type Refusal = Omit<Extract<QuotaGrant, { kind: "exhausted" }>, "kind">;

/** A slot frees when some call ends, which nobody can foretell. */
const SLOT_RETRY_MS = 1_000;
/** Waiting longer without another look would miss a limit that was raised, and slices that came back. */
const MAX_WAIT_MS = 5 * 60_000;
/** Two workers may want the same number of a slot; so often in a row they do not. */
const SLOT_TRIES = 8;

export class PostgresQuotaGate implements QuotaGate {
  readonly #options: QuotaGateOptions;
  readonly #slices: QuotaSlices;
  readonly #open = new Map<string, Open>();
  #limits: readonly QuotaLimit[];

  constructor(options: QuotaGateOptions) {
    this.#options = options;
    this.#limits = options.configured;
    this.#slices = new QuotaSlices(options.pool, options.named, options.outage, () => options.clockMs());
  }

  /** Reads the limits: before the first call, and every few seconds from then on. */
  async refresh(): Promise<void> {
    const { pool, named, configured } = this.#options;
    const { rows } = await pool.query<QuotaLimit>({ name: "capstan-quota-limits", text: named(LIMITS_SQL) });
    this.#limits = mergeLimits(configured, rows);
  }

  async reserve(effect: Effect, estimate: EffectEstimate): Promise<QuotaGrant> {
    const shares = this.#sharesOf(effect);
    if (shares.length === 0) return { kind: "granted", reservation: undefined };
    const id = randomUUID();
    const draws: Open["draws"][number][] = [];
    let refusal: Refusal | undefined;
    let isHeld = false;
    try {
      refusal = await this.#take(id, effect, estimate, shares, draws);
      isHeld = refusal === undefined;
    } finally {
      if (!isHeld) {
        for (const draw of draws) this.#slices.settle(draw, 0);
        if (shares.some(({ limit }) => limit.unit === "concurrent")) await this.#free(id);
      }
    }
    if (refusal !== undefined) return { kind: "exhausted", ...refusal, retryAfterMs: Math.ceil(Math.min(refusal.retryAfterMs, MAX_WAIT_MS)) };
    this.#open.set(id, { draws });
    return { kind: "granted", reservation: { id } };
  }

  /** Takes from each bucket in turn; what it took stands in `draws` also when a later one refuses. */
  async #take(id: string, effect: Effect, estimate: EffectEstimate, shares: readonly QuotaShare[], draws: Open["draws"][number][]): Promise<Refusal | undefined> {
    const workerId = this.#options.workerId();
    const amounts: QuotaAmounts = { calls: 1, tokens: estimate.inputTokens + estimate.maxOutputTokens, costUsdMicros: estimate.costUsdMicros };
    for (const share of shares) {
      const { bucket, limit } = share;
      if (limit.unit === "concurrent") continue;
      const amount = amountOf(limit.unit, amounts);
      // A tool takes no tokens, and a model without a known price no money.
      if (amount === 0) continue;
      const outcome = await this.#slices.draw(share, amount, workerId);
      if (outcome.kind === "exhausted") {
        const neverFits = amount > limit.amount ? { neverFits: { needed: amount, limit: limit.amount } } : {};
        return { bucket, retryAfterMs: outcome.remainingMs, ...neverFits };
      }
      draws.push({ ...outcome.draw, share });
    }
    // Slots last: nobody may hold one while waiting for something else.
    for (const { bucket, limit } of shares) {
      if (limit.unit === "concurrent" && !(await this.#takeSlot(bucket, limit.amount, id, workerId))) return { bucket, retryAfterMs: SLOT_RETRY_MS };
    }
    if (draws.length > 0 && !(await this.#writeReservation(id, effect, workerId, draws))) {
      this.#slices.forget(workerId);
      return { bucket: draws[0]?.share.bucket ?? "", retryAfterMs: SLOT_RETRY_MS };
    }
    return undefined;
  }

  async settle({ id }: QuotaReservation, actual: QuotaAmounts | "reserved"): Promise<void> {
    const open = this.#open.get(id);
    if (open === undefined) return;
    this.#open.delete(id);
    const taken = open.draws.map(({ share, amount }) => (actual === "reserved" ? amount : amountOf(share.limit.unit, actual)));
    open.draws.forEach((draw, i) => this.#slices.settle(draw, taken[i] ?? draw.amount));
    await this.#free(
      id,
      open.draws.map(({ share }) => share.bucket),
      taken,
    );
  }

  /** One round of the sweep: limits, what dead workers left, what lies idle here. */
  async round(): Promise<void> {
    const { pool, named, outage } = this.#options;
    await this.refresh();
    await this.#slices.round();
    const { rows } = await pool.query<{ settled: number; freed: number }>({ name: "capstan-quota-sweep", text: named(SWEEP_QUOTAS_SQL) });
    const { settled = 0, freed = 0 } = rows[0] ?? {};
    if (settled > 0 || freed > 0) outage.log.warn({ settled, freed }, "settled calls of workers that are gone at what they had reserved");
    await pool.query({ name: "capstan-quota-fold", text: named(FOLD_QUOTAS_SQL) });
  }

  /** The worker stops and makes no further call. */
  async release(): Promise<void> {
    await this.#slices.returnAll();
  }

  /**
   * Tenants whose calls of this kind would be refused now, so that a relay need not take up their work; `*` when
   * everybody's would. No statement while no limit of the kind exists.
   */
  async exhaustedTenants(kind: QuotaKind): Promise<Set<string>> {
    const limits = this.#limits.filter((limit) => limit.kind === kind && (limit.scope === "tenant" || limit.scope === "overall"));
    if (limits.length === 0) return new Set();
    const { pool, named, workerId } = this.#options;
    const { rows } = await pool.query<{ bucket: string; taken: number }>({ name: "capstan-quota-tenants", text: named(TENANT_BUCKETS_SQL), values: [`${kind}/%`] });
    const exhausted = new Set<string>();
    for (const { bucket, taken } of rows) {
      const tenant = tenantOfBucket(bucket);
      const subject = { kind, tenant: tenant ?? "", agent: "", model: undefined };
      const share = sharesOf(limits, subject).find((candidate) => candidate.bucket === bucket);
      if (share === undefined || taken < share.limit.amount || this.#slices.available(bucket, workerId()) > 0) continue;
      exhausted.add(tenant ?? "*");
    }
    // A limit of nothing has no bucket: no call of it was ever admitted.
    for (const { scope, value, amount } of limits) if (amount === 0 && (scope === "overall" || value !== "*")) exhausted.add(value);
    return exhausted;
  }

  #sharesOf({ kind, name, tenant, agent }: Effect): QuotaShare[] {
    if (this.#limits.length === 0) return [];
    return sharesOf(this.#limits, { kind: kind === "model" ? "turn" : kind, tenant, agent, model: kind === "tool" ? undefined : name });
  }

  async #takeSlot(bucket: string, limit: number, id: string, workerId: string): Promise<boolean> {
    const { pool, named, outage } = this.#options;
    for (let attempt = 1; attempt <= SLOT_TRIES; attempt++) {
      const { rows } = await untilConnected(outage, "taking a quota slot", () =>
        pool.query<{ slot: number | null; held: number }>({ name: "capstan-quota-slot", text: named(TAKE_SLOT_SQL), values: [bucket, id, workerId, limit] }),
      );
      const { slot, held } = rows[0] ?? { slot: null, held: limit };
      if (slot !== null) return true;
      if (held >= limit) return false;
    }
    return false;
  }

  async #writeReservation(id: string, effect: Effect, workerId: string, draws: Open["draws"]): Promise<boolean> {
    const { pool, named, outage } = this.#options;
    const { rowCount } = await untilConnected(outage, "reserving quota", () =>
      pool.query({
        name: "capstan-quota-reserve",
        text: named(RESERVE_SQL),
        values: [
          id,
          effect.runId,
          effect.turn,
          effect.attempt,
          workerId,
          draws.map(({ slice }) => slice.bucket),
          draws.map(({ slice }) => slice.windowStart),
          draws.map(({ slice }) => slice.windowEnd),
          draws.map(({ amount }) => amount),
        ],
      }),
    );
    return rowCount !== 0;
  }

  /** Never throws: the sweep settles what could not be written here once this worker has ended. */
  async #free(id: string, buckets: readonly string[] = [], taken: readonly number[] = []): Promise<void> {
    const { pool, named, outage } = this.#options;
    try {
      await untilConnected(outage, "settling quota", () => pool.query({ name: "capstan-quota-settle", text: named(SETTLE_SQL), values: [id, buckets, taken] }));
    } catch (error) {
      outage.log.warn({ err: error, reservation: id }, "could not settle a quota reservation: it counts as reserved until this worker has ended");
    }
  }
}
