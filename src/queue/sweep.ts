/** Finds workers that died and runs that nobody holds, and puts the runs back. Every worker sweeps; rounds may overlap. */
import type pg from "pg";
import type { Log } from "../engine/ports.ts";
import { Loop } from "./loop.ts";
import { LINES_SQL, LOCKED_POOLS_SQL, LOST_JOBS_SQL, SWEEP_SQL, UNKNOWN_POOLS_SQL, UNLOCKED_SQL, UNPARK_SQL } from "./sql/sweep.ts";

export interface SweepOptions {
  readonly pool: pg.Pool;
  readonly named: (text: string) => string;
  readonly workerSchema: string;
  readonly log: Log;
  readonly everyMs: number;
  /** A dispatched run that nobody claimed for this long may have lost its job. */
  readonly lostAfterMs: number;
  workerId(): string;
  /** False while this worker cannot trust its own view of the database: right after an outage every heartbeat looks stale. */
  mayBury(): boolean;
  onTaken(): void;
  /** Reads the limits again and settles what dead workers left. */
  settleQuotas(): Promise<void>;
  /** Gives back what this worker holds without being at work on it. */
  releaseForgotten(): Promise<void>;
}

export class Sweep {
  readonly #options: SweepOptions;
  readonly #loop: Loop;
  #rounds = 0;

  constructor(options: SweepOptions) {
    this.#options = options;
    this.#loop = new Loop({ name: "sweep", log: options.log, everyMs: options.everyMs, round: () => this.round() });
  }

  start(): void {
    this.#loop.start();
  }

  stop(): Promise<void> {
    return this.#loop.stop();
  }

  async round(): Promise<void> {
    const { pool, named, log, mayBury, workerId, onTaken, lostAfterMs } = this.#options;
    // Limits are read, and what is settled there is of workers that somebody has buried.
    if (!mayBury()) return await this.#options.settleQuotas();
    const { rows } = await pool.query<{ buried: number; taken: string[] }>({ name: "capstan-sweep", text: named(SWEEP_SQL), values: [workerId()] });
    const { buried = 0, taken = [] } = rows[0] ?? {};
    if (buried > 0 || taken.length > 0) log.warn({ buried, runs: taken.length }, "took runs over from workers that are gone");
    await this.#unlockQueues();
    if (taken.length > 0) onTaken();
    // The search for lost jobs reads more rows and is rarely needed.
    if (this.#rounds++ % 4 === 0) {
      const lost = await pool.query({ name: "capstan-lost-jobs", text: named(LOST_JOBS_SQL), values: [lostAfterMs] });
      if ((lost.rowCount ?? 0) > 0) {
        log.warn({ runs: lost.rowCount }, "runs had lost their jobs and got new ones");
        onTaken();
      }
      await this.#unlockUnknown();
      await this.#options.releaseForgotten();
      const { rows: lines } = await pool.query<{ started: number }>({ name: "capstan-lines", text: named(LINES_SQL) });
      if ((lines[0]?.started ?? 0) > 0) log.info({ runs: lines[0]?.started }, "runs that stood in line for a concurrency key found a place");
      await pool.query({ name: "capstan-unpark", text: named(UNPARK_SQL), values: [lostAfterMs] });
    }
    await this.#options.settleQuotas();
  }

  async #unlockUnknown(): Promise<void> {
    const { pool, named, workerSchema, lostAfterMs, log } = this.#options;
    const { rows } = await pool.query<{ locked_by: string }>({ name: "capstan-unknown-pools", text: named(UNKNOWN_POOLS_SQL), values: [lostAfterMs] });
    if (rows.length === 0) return;
    log.warn({ queuePools: rows.map((row) => row.locked_by) }, "unlocking jobs of workers that died before they had named their queue");
    await pool.query(`select ${workerSchema}.force_unlock_workers($1::text[])`, [rows.map((row) => row.locked_by)]);
  }

  async #unlockQueues(): Promise<void> {
    const { pool, named, workerSchema } = this.#options;
    const { rows } = await pool.query<{ id: string; queue_pools: string[] }>({ name: "capstan-locked-pools", text: named(LOCKED_POOLS_SQL) });
    if (rows.length === 0) return;
    await pool.query(`select ${workerSchema}.force_unlock_workers($1::text[])`, [rows.flatMap((row) => row.queue_pools)]);
    await pool.query(named(UNLOCKED_SQL), [rows.map((row) => row.id)]);
  }
}
