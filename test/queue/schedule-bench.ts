/** Schedules, loops that serve them, and connections that live at another time. */
import pg from "pg";
import { afterAll } from "vitest";
import { ScheduleClient } from "../../src/client/schedules.ts";
import { Schedules } from "../../src/queue/schedules.ts";
import { same } from "./queue-bench.ts";

export interface LogEntry {
  readonly level: string;
  readonly message: string;
  readonly fields: Readonly<Record<string, unknown>>;
}

export interface StartedRun {
  readonly id: string;
  readonly tick: string;
  readonly key: string | null;
}

export interface ScheduleBench {
  readonly db: pg.Pool;
  readonly schedules: ScheduleClient;
  /** Connections on which capstan.now() is ahead by this interval. */
  ahead(interval: string): pg.Pool;
  /** A loop that is not started: a test calls its rounds. `later` moves its own clock, which only says how long a failed schedule rests. */
  loop(pool: pg.Pool): { readonly schedules: Schedules; readonly log: LogEntry[]; later(ms: number): void };
  /** Runs that a schedule has started by the clock or by hand, by their ticks. */
  runsOf(name: string): Promise<StartedRun[]>;
  /** Makes its tick due: the last full minute, so that it is on time. */
  makeDue(...names: string[]): Promise<void>;
}

export function scheduleBench(url: string): ScheduleBench {
  const pools: pg.Pool[] = [];
  const open = (options: pg.PoolConfig): pg.Pool => {
    const pool = new pg.Pool({ connectionString: url, ...options });
    pool.on("error", () => {});
    pool.on("connect", (client) => client.on("error", () => {}));
    pools.push(pool);
    return pool;
  };
  const db = open({ max: 10 });
  afterAll(() => Promise.all(pools.map((pool) => pool.end())));
  return {
    db,
    schedules: new ScheduleClient(db, same),
    ahead: (interval) => open({ max: 3, options: `-c capstan_clock.offset=${interval.replaceAll(" ", "\\ ")}` }),
    loop(pool) {
      const log: LogEntry[] = [];
      let clock = 0;
      const keep = (level: string) => (fields: object, message: string) => void log.push({ level, message, fields: fields as LogEntry["fields"] });
      const schedules = new Schedules({
        pool,
        named: same,
        log: { debug: keep("debug"), info: keep("info"), warn: keep("warn"), error: keep("error") },
        clockMs: () => clock,
      });
      return { schedules, log, later: (ms) => void (clock += ms) };
    },
    async runsOf(name) {
      const { rows } = await db.query<StartedRun>(
        `select r.id, e.payload::jsonb #>> '{schedule,tick}' as tick, r.idempotency_key as key from capstan.runs r join capstan.events e on e.run_id = r.id and e.seq = 1
          where r.origin = 'schedule' and e.payload::jsonb #>> '{schedule,name}' = $1 order by tick, r.id`,
        [name],
      );
      return rows;
    },
    async makeDue(...names) {
      await db.query("update capstan.schedules set next_at = date_trunc('minute', capstan.now()) where name = any($1)", [names]);
    },
  };
}
