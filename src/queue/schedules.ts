/**
 * Starts the runs of schedules that are due. Every worker looks; who moves a schedule on has started its runs, in the same
 * commit (capstan.tick_schedule), so a tick starts one run however many look, and a worker that dies leaves it due. The
 * database's clock says what is due; between reading and starting nothing is held, so a worker that is suspended there
 * keeps nobody from it.
 */
import type pg from "pg";
import { dueTicks, type CatchUp } from "../domain/schedule.ts";
import type { Log } from "../engine/ports.ts";
import { isConnectionError } from "../store/pg-errors.ts";
import { Loop } from "./loop.ts";
import { DUE_SCHEDULES_SQL, NOTE_SCHEDULE_ERROR_SQL, TICK_SCHEDULE_SQL, UNTIL_NEXT_SCHEDULE_SQL } from "./sql/schedules.ts";

export interface SchedulesOptions {
  readonly pool: pg.Pool;
  readonly named: (text: string) => string;
  readonly log: Log;
  /** Milliseconds from any fixed point; only differences count. */
  clockMs(): number;
}

/** A schedule that was made a moment ago is seen this late at most; known ones are waited for exactly. */
const LOOK_EVERY_MS = 5_000;
/** Due, and not to be had: somebody else is at it. */
const BUSY_PAUSE_MS = 1_000;
/** One that failed is left alone this long, by this worker: the others come first, and nothing spins. */
const REST_MS = 30_000;
const BATCH = 50;

interface DueSchedule {
  readonly tenant: string;
  readonly name: string;
  readonly cron: string;
  readonly timezone: string;
  readonly catch_up: CatchUp;
  /** In microseconds, as Postgres keeps it. */
  readonly expected_at: string;
  readonly now: Date;
}

interface Ticked {
  readonly runs: readonly string[];
  readonly error: { readonly tick: string; readonly code: string; readonly message: string } | null;
}

export class Schedules {
  readonly #options: SchedulesOptions;
  readonly #loop: Loop;
  readonly #resting = new Map<string, { readonly tenant: string; readonly name: string; readonly untilMs: number }>();
  #stopping = false;

  constructor(options: SchedulesOptions) {
    this.#options = options;
    this.#loop = new Loop({ name: "schedules", log: options.log, everyMs: LOOK_EVERY_MS, round: () => this.round() });
  }

  start(): void {
    this.#loop.start();
  }

  /** A round that is under way ends after the schedule at hand. */
  stop(): Promise<void> {
    this.#stopping = true;
    return this.#loop.stop();
  }

  /** Starts what is due; gives the milliseconds until the next look. */
  async round(): Promise<number> {
    const { pool, named, clockMs } = this.#options;
    for (const [key, { untilMs }] of this.#resting) if (untilMs <= clockMs()) this.#resting.delete(key);
    const { rows } = await pool.query<DueSchedule>({ name: "capstan-due-schedules", text: named(DUE_SCHEDULES_SQL), values: [BATCH, ...this.#restingNames()] });
    let moved = 0;
    for (const schedule of rows) {
      if (this.#stopping) return 0;
      if (await this.#tick(schedule)) moved++;
    }
    const next = await pool.query<{ in_ms: number | null }>({ name: "capstan-next-schedule", text: named(UNTIL_NEXT_SCHEDULE_SQL), values: this.#restingNames() });
    const inMs = next.rows[0]?.in_ms ?? LOOK_EVERY_MS;
    if (inMs <= 0) return moved > 0 ? 0 : BUSY_PAUSE_MS;
    return Math.min(Math.ceil(inMs), LOOK_EVERY_MS);
  }

  /** Whether it was moved on, by us. One that fails must not keep the others. */
  async #tick(schedule: DueSchedule): Promise<boolean> {
    const { pool, named, log } = this.#options;
    const { tenant, name, cron, timezone, expected_at: expectedAt } = schedule;
    try {
      const { ticks, next } = dueTicks(schedule, schedule.catch_up, new Date(expectedAt), schedule.now);
      // Lines that end are refused when they are made, so this is no line that we have checked.
      if (next === undefined) throw new RangeError(`${cron} has no further tick`);
      const times = ticks.map((tick) => tick.toISOString());
      const { rows } = await pool.query<{ ticked: Ticked | null }>({
        name: "capstan-tick-schedule",
        text: named(TICK_SCHEDULE_SQL),
        values: [tenant, name, cron, timezone, expectedAt, times, next.toISOString()],
      });
      const ticked = rows[0]?.ticked ?? null;
      if (ticked === null) return false;
      this.#report(schedule, ticked, ticks.length);
      return true;
    } catch (error) {
      if (isConnectionError(error)) throw error;
      this.#resting.set(JSON.stringify([tenant, name]), { tenant, name, untilMs: this.#options.clockMs() + REST_MS });
      log.error({ tenant, schedule: name, dueAt: expectedAt, err: error }, "a schedule could not start its run and is tried again");
      await this.#note(schedule, error);
      return false;
    }
  }

  #report({ tenant, name, expected_at: expectedAt, catch_up: catchUp, now }: DueSchedule, { runs, error }: Ticked, ticks: number): void {
    const { log } = this.#options;
    if (error !== null) log.error({ tenant, schedule: name, tick: error.tick, code: error.code, problem: error.message }, "a schedule's tick started no run and is passed over");
    else if (ticks === 0) log.warn({ tenant, schedule: name, dueAt: expectedAt, catchUp }, "a schedule's ticks were missed and are not caught up");
    else log.debug({ tenant, schedule: name, dueAt: expectedAt, lateMs: now.getTime() - new Date(expectedAt).getTime(), runs: [...runs] }, "a schedule started runs");
  }

  /** Where an operator looks for it. A database that cannot even do this is the loop's business. */
  async #note({ tenant, name, expected_at: expectedAt }: DueSchedule, error: unknown): Promise<void> {
    const { code = "SCHEDULE_FAILED", message = String(error) } = error as { code?: string; message?: string };
    const { pool, named, log } = this.#options;
    try {
      await pool.query(named(NOTE_SCHEDULE_ERROR_SQL), [tenant, name, expectedAt, code, message]);
    } catch (noting) {
      if (isConnectionError(noting)) throw noting;
      log.warn({ tenant, schedule: name, err: noting }, "could not note a schedule's error");
    }
  }

  #restingNames(): [string[], string[]] {
    const all = [...this.#resting.values()];
    return [all.map(({ tenant }) => tenant), all.map(({ name }) => name)];
  }
}
