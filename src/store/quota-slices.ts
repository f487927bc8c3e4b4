/**
 * What this worker has leased of the buckets and not claimed for a call yet. Kept in memory: most calls find room here
 * and need no statement for it. A slice belongs to one window and one incarnation of the worker, and dies with either.
 */
import type pg from "pg";
import { sliceOf, type QuotaShare } from "../domain/quota.ts";
import { LEASE_SQL, RETURN_SQL } from "./sql/quota.ts";
import { untilConnected, type Outage } from "./until-connected.ts";

export interface Slice {
  readonly bucket: string;
  readonly workerId: string;
  readonly windowStart: Date;
  readonly windowEnd: Date;
  /** By this process's monotonic clock: the window's end. */
  readonly endsAtMs: number;
  /** Of which a round lets a worker keep without use: what is left over it goes back. */
  readonly keep: number;
  /** Below zero when calls took more than they had reserved. */
  available: number;
  /** Rounds since a call last drew from it. */
  idleRounds: number;
}

export interface Draw {
  readonly slice: Slice;
  readonly amount: number;
}

export type DrawOutcome = { readonly kind: "drawn"; readonly draw: Draw } | { readonly kind: "exhausted"; readonly remainingMs: number };

/** A slice that nobody has drawn from for so many rounds is given back whole: others may be waiting for it. */
const IDLE_ROUNDS = 5;

export class QuotaSlices {
  readonly #pool: pg.Pool;
  readonly #named: (text: string) => string;
  readonly #outage: Outage;
  readonly #clockMs: () => number;
  readonly #slices = new Map<string, Slice>();
  /** One statement at a time per bucket: callers that come meanwhile look again instead of leasing as well. */
  readonly #busy = new Map<string, Promise<void>>();

  constructor(pool: pg.Pool, named: (text: string) => string, outage: Outage, clockMs: () => number) {
    this.#pool = pool;
    this.#named = named;
    this.#outage = outage;
    this.#clockMs = clockMs;
  }

  async draw(share: QuotaShare, amount: number, workerId: string): Promise<DrawOutcome> {
    const { bucket } = share;
    for (;;) {
      const slice = this.#current(bucket, workerId);
      if (slice !== undefined && slice.available >= amount) {
        slice.available -= amount;
        slice.idleRounds = 0;
        return { kind: "drawn", draw: { slice, amount } };
      }
      const busy = this.#busy.get(bucket);
      if (busy !== undefined) {
        await busy;
        continue;
      }
      const remainingMs = await this.#alone(bucket, () => this.#lease(share, amount, workerId));
      if (remainingMs !== undefined) return { kind: "exhausted", remainingMs };
    }
  }

  /** What a call did not take comes back to its slice, if that still is one; `taken` above the draw becomes a debt. */
  settle({ slice, amount }: Draw, taken: number): void {
    slice.available += amount - taken;
  }

  available(bucket: string, workerId: string): number {
    return this.#current(bucket, workerId)?.available ?? 0;
  }

  /** The incarnation was buried: its slices belong to the buckets again. */
  forget(workerId: string): void {
    for (const slice of this.#slices.values()) if (slice.workerId === workerId) this.#slices.delete(slice.bucket);
  }

  /** Gives back what lies idle here. */
  async round(): Promise<void> {
    for (const slice of this.#slices.values()) {
      slice.idleRounds++;
      const spare = slice.idleRounds > IDLE_ROUNDS ? slice.available : slice.available - slice.keep;
      if (spare > 0) await this.#return(slice, spare);
    }
  }

  async returnAll(): Promise<void> {
    for (const slice of this.#slices.values()) if (slice.available !== 0) await this.#return(slice, slice.available);
    this.#slices.clear();
  }

  #current(bucket: string, workerId: string): Slice | undefined {
    const slice = this.#slices.get(bucket);
    if (slice === undefined) return undefined;
    if (slice.workerId === workerId && this.#clockMs() < slice.endsAtMs) return slice;
    this.#slices.delete(bucket);
    return undefined;
  }

  /** Undefined when there is more than before; otherwise the milliseconds until the window ends. */
  async #lease({ bucket, limit }: QuotaShare, amount: number, workerId: string): Promise<number | undefined> {
    const has = this.#current(bucket, workerId)?.available ?? 0;
    const need = amount - has;
    // Repeated after a lost connection it may lease twice: that leaves quota unused, which is the harmless side.
    const { rows } = await untilConnected(this.#outage, "leasing quota", () =>
      this.#pool.query<{ leased: number | null; window_start: Date; window_end: Date; remaining_ms: number }>({
        name: "capstan-quota-lease",
        text: this.#named(LEASE_SQL),
        values: [workerId, bucket, limit.window, limit.amount, need, sliceOf(limit)],
      }),
    );
    const row = rows[0];
    if (row === undefined) throw new Error("the lease of a quota gave no row");
    if (row.leased === null) return row.remaining_ms;
    const before = this.#current(bucket, workerId);
    const isSameWindow = before !== undefined && before.windowStart.getTime() === row.window_start.getTime();
    if (isSameWindow) before.available += row.leased;
    else {
      this.#slices.set(bucket, {
        bucket,
        workerId,
        windowStart: row.window_start,
        windowEnd: row.window_end,
        endsAtMs: this.#clockMs() + row.remaining_ms,
        keep: sliceOf(limit),
        available: row.leased,
        idleRounds: 0,
      });
    }
    return undefined;
  }

  async #return(slice: Slice, amount: number): Promise<void> {
    const { bucket, workerId, windowStart, endsAtMs } = slice;
    while (this.#busy.has(bucket)) await this.#busy.get(bucket);
    // A call may have drawn meanwhile.
    const spare = Math.min(amount, slice.available);
    if (this.#slices.get(bucket) !== slice || this.#clockMs() >= endsAtMs || spare === 0) return;
    slice.available -= spare;
    // Not repeated when the connection breaks: returned twice, the bucket would grow.
    await this.#alone(bucket, () => this.#pool.query({ name: "capstan-quota-return", text: this.#named(RETURN_SQL), values: [workerId, bucket, windowStart, spare] }));
  }

  async #alone<T>(bucket: string, work: () => Promise<T>): Promise<T> {
    let free: () => void = () => {};
    this.#busy.set(
      bucket,
      new Promise((resolve) => {
        free = resolve;
      }),
    );
    try {
      return await work();
    } finally {
      this.#busy.delete(bucket);
      free();
    }
  }
}
