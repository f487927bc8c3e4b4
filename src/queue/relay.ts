/**
 * The relay of one worker: turns wishes of its pool and agents into graphile-worker jobs, about as many ahead as it has
 * slots, so that what runs next is still decided by one query and not by what was queued long ago.
 */
import type pg from "pg";
import { hitFailpoint } from "../engine/failpoints.ts";
import type { Log } from "../engine/ports.ts";
import type { JobSource } from "./job-source.ts";
import { Loop } from "./loop.ts";
import { DISPATCH_SQL, PROMOTE_SQL } from "./sql/relay.ts";

/** Without a notification (another process enqueued while LISTEN was down) a wish waits this long at most. */
const POLL_MS = 500;
/** A job that did not start here within this time was taken by another worker, and no longer counts as ours. */
const OUTSTANDING_FOR_MS = 1_000;
const MAX_PER_DISPATCH = 500;

export interface RelayOptions {
  readonly pool: pg.Pool;
  readonly named: (text: string) => string;
  readonly poolName: string;
  readonly agents: readonly string[];
  readonly slots: number;
  readonly log: Log;
  /** Jobs that run in this worker now. */
  running(): number;
}

export class Relay implements JobSource {
  readonly #options: RelayOptions;
  readonly #dispatch: Loop;
  readonly #promote: Loop;
  #moreWaited = false;
  /** Runs dispatched by this relay that have not started here yet, by when. */
  readonly #outstanding = new Map<string, number>();

  constructor(options: RelayOptions) {
    this.#options = options;
    const { log } = options;
    this.#dispatch = new Loop({ name: "relay", log, everyMs: POLL_MS, round: () => this.#dispatchRound() });
    this.#promote = new Loop({ name: "timers", log, everyMs: POLL_MS, round: () => this.#promoteRound() });
  }

  start(): void {
    this.#dispatch.start();
    this.#promote.start();
  }

  async stop(): Promise<void> {
    await Promise.all([this.#dispatch.stop(), this.#promote.stop()]);
  }

  /** A wish may be there now: an append in this process set one, or a notification came. */
  poke(): void {
    this.#dispatch.poke();
  }

  /** Runs that were dispatched here and have no slot yet, or more wishes than the last dispatch could take. */
  get hasBacklog(): boolean {
    this.#forgetOld();
    return this.#outstanding.size > 0 || this.#moreWaited;
  }

  jobStarted(runId: string): void {
    this.#outstanding.delete(runId);
  }

  async #dispatchRound(): Promise<number | void> {
    const { pool, named, poolName, agents, slots, running } = this.#options;
    this.#forgetOld();
    const room = Math.min(MAX_PER_DISPATCH, 2 * slots - running() - this.#outstanding.size);
    if (room <= 0) {
      this.#moreWaited = true;
      return;
    }
    hitFailpoint("relay.before_dispatch");
    const { rows } = await pool.query<{ run_id: string }>({ name: "capstan-dispatch", text: named(DISPATCH_SQL), values: [poolName, agents, room] });
    if (rows.length > 0) hitFailpoint("relay.dispatched");
    const now = performance.now();
    for (const row of rows) this.#outstanding.set(row.run_id, now);
    this.#moreWaited = rows.length === room;
    if (rows.length === room) return 0;
  }

  async #promoteRound(): Promise<number> {
    const { pool, named } = this.#options;
    const { rows } = await pool.query<{ promoted: number; next_in_ms: number | null }>({ name: "capstan-promote", text: named(PROMOTE_SQL) });
    const { promoted = 0, next_in_ms: next } = rows[0] ?? {};
    if (promoted > 0) this.poke();
    return Math.min(POLL_MS, Math.max(5, next ?? POLL_MS));
  }

  #forgetOld(): void {
    const limit = performance.now() - OUTSTANDING_FOR_MS;
    for (const [runId, at] of this.#outstanding) {
      if (at >= limit) break;
      this.#outstanding.delete(runId);
    }
  }
}
