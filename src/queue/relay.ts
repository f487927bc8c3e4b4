/**
 * The relay of one worker: turns wishes of its pool and agents into graphile-worker jobs, tenant by tenant, and only a few
 * ahead of its slots, so that what runs next is still decided by one query and not by what was queued long ago.
 */
import type pg from "pg";
import { hitFailpoint } from "../engine/failpoints.ts";
import type { Log } from "../engine/ports.ts";
import type { JobSource } from "./job-source.ts";
import { Loop } from "./loop.ts";
import { ADMIT_SQL, DISPATCH_SQL, PROMOTE_SQL, STILL_WAITING_SQL } from "./sql/relay.ts";

/** Without a notification (another process enqueued while LISTEN was down) a wish waits this long at most. */
const POLL_MS = 500;
/** After this time we look whether a job that did not start here has started in another worker, and counts no longer. */
const LOOK_AFTER_MS = 1_000;
const MAX_PER_DISPATCH = 500;
/** Jobs that began within this time tell how many more are admitted than there are slots. */
const RATE_WINDOW_MS = 1_000;

interface Dispatched {
  /** Null: nothing was taken, and the walk over the tenants goes on behind `tenant`. */
  readonly run_id: string | null;
  readonly at: string;
  readonly tenant: string;
  readonly more: boolean;
}

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
  /** The tenant that was served last. */
  #cursor = "";
  #rate = { sinceMs: 0, started: 0, before: 0 };
  /** Runs dispatched by this relay that have not started here yet: when by the database's clock, and last looked at by ours. */
  readonly #outstanding = new Map<string, { readonly at: string; readonly seenMs: number }>();

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
    return this.#outstanding.size > 0 || this.#moreWaited;
  }

  jobStarted(runId: string): void {
    this.#outstanding.delete(runId);
    this.#rate.started++;
  }

  /**
   * Jobs that may wait for a slot: as many as begin in a second, so that no slot stands idle until the next round, and at
   * most one for each slot. Of slow calls few begin: then a run that is more urgent, or another tenant's, stands behind few.
   */
  #ahead(): number {
    const { sinceMs, started, before } = this.#rate;
    const nowMs = performance.now();
    if (nowMs - sinceMs >= RATE_WINDOW_MS) this.#rate = { sinceMs: nowMs, started: 0, before: nowMs - sinceMs < 2 * RATE_WINDOW_MS ? started : 0 };
    return Math.max(1, Math.min(this.#options.slots, Math.max(started, before)));
  }

  async #dispatchRound(): Promise<number | void> {
    const { pool, named, poolName, agents, slots, running } = this.#options;
    await this.#forgetStarted();
    const room = Math.min(MAX_PER_DISPATCH, slots + this.#ahead() - running() - this.#outstanding.size);
    if (room <= 0) {
      this.#moreWaited = true;
      return;
    }
    hitFailpoint("relay.before_dispatch");
    const { rows } = await pool.query<Dispatched>({ name: "capstan-dispatch", text: named(DISPATCH_SQL), values: [poolName, agents, room, this.#cursor] });
    this.#cursor = rows.at(-1)?.tenant ?? this.#cursor;
    if (rows[0]?.run_id === null) return rows[0].more ? 0 : undefined;
    if (rows.length > 0) hitFailpoint("relay.dispatched");
    const seenMs = performance.now();
    for (const { run_id: runId, at } of rows) if (runId !== null) this.#outstanding.set(runId, { at, seenMs });
    this.#moreWaited = rows.length === room || rows[0]?.more === true;
    if (this.#moreWaited) return 0;
  }

  async #promoteRound(): Promise<number> {
    const { pool, named } = this.#options;
    const { rows } = await pool.query<{ promoted: number; keyed: boolean; next_in_ms: number | null }>({ name: "capstan-promote", text: named(PROMOTE_SQL) });
    const { promoted = 0, keyed = false, next_in_ms: next } = rows[0] ?? {};
    if (keyed) await pool.query({ name: "capstan-admit", text: named(ADMIT_SQL) });
    if (promoted > 0 || keyed) this.poke();
    // Those that were looked at are in, in line, or put off a little: the rest of them comes at once.
    if (keyed) return 0;
    return Math.min(POLL_MS, Math.max(5, next ?? POLL_MS));
  }

  /**
   * Counting them by time alone would admit as many again each second while all workers are in slow calls, until every
   * run that waits is a job and the order among them is decided by what was queued long ago.
   */
  async #forgetStarted(): Promise<void> {
    const limit = performance.now() - LOOK_AFTER_MS;
    const old = [...this.#outstanding].filter(([, { seenMs }]) => seenMs < limit);
    if (old.length === 0) return;
    const { pool, named } = this.#options;
    const { rows } = await pool.query<{ run_id: string }>({
      name: "capstan-still-waiting",
      text: named(STILL_WAITING_SQL),
      values: [old.map(([runId]) => runId), old.map(([, { at }]) => at)],
    });
    const waiting = new Set(rows.map(({ run_id: runId }) => runId));
    const seenMs = performance.now();
    for (const [runId, { at }] of old) {
      // One that started here meanwhile is gone already, and must not come back.
      if (!this.#outstanding.has(runId)) continue;
      if (waiting.has(runId)) this.#outstanding.set(runId, { at, seenMs });
      else this.#outstanding.delete(runId);
    }
  }
}
