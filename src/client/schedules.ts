/** Schedules as a service makes and keeps them. Lines are read here and by workers alike (domain/schedule.ts). */
import type { JsonObject, JsonValue } from "../domain/json.ts";
import { nextTick, parseScheduleTimes, type CatchUp } from "../domain/schedule.ts";
import { fromPostgres, ScheduleExistsError, ScheduleInvalidError, ScheduleUnknownError } from "./errors.ts";
import { checkSettings, type ScheduleSettings } from "./schedule-settings.ts";
import { queryTx, type Tx } from "./transaction.ts";

export interface CreateScheduleOptions extends ScheduleSettings {
  /**
   * A schedule of that name is brought to these settings instead of being refused, so that a service may say this at every
   * start. Its next tick stays unless line or zone have changed; a paused one stays paused.
   */
  readonly replace?: boolean;
  /** The caller's own transaction. */
  readonly tx?: Tx;
}

export interface ScheduleRef {
  /** Default `default`. */
  readonly tenant?: string;
  readonly actor?: string;
}

export interface ScheduleView {
  readonly tenant: string;
  readonly name: string;
  readonly agent: string;
  readonly cron: string;
  readonly timezone: string;
  readonly catch_up: CatchUp;
  readonly paused: boolean;
  /** The next tick; absent while it is paused. */
  readonly next_at?: string;
  /** The newest tick that was due and taken care of, and the newest run, also one that was wanted by hand. */
  readonly last_tick_at?: string;
  readonly last_run_id?: string;
  /** Why the last due tick started no run. */
  readonly last_error?: { readonly at: string; readonly tick?: string; readonly code: string; readonly message: string };
  readonly created_at: string;
  readonly updated_at: string;
  readonly actor?: string;
}

export interface ScheduleDetail extends ScheduleView {
  readonly input: JsonValue;
  /** What its runs get beside the input: subject, priority, interactive, metadata, labels, pool, concurrency_key. */
  readonly options?: JsonObject;
}

const AT = (column: string): string => `'${column}', to_char(s.${column} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')`;
const VIEW = `'tenant', s.tenant, 'name', s.name, 'agent', s.agent, 'cron', s.cron, 'timezone', s.timezone, 'catch_up', s.catch_up, 'paused', s.paused, ${AT("next_at")},
  ${AT("last_tick_at")}, 'last_run_id', s.last_run_id, 'last_error', s.last_error, ${AT("created_at")}, ${AT("updated_at")}, 'actor', s.actor`;
const SUMMARY = `jsonb_strip_nulls(jsonb_build_object(${VIEW}))`;
/** The input is put in afterwards: nulls in it are the user's. */
const DETAIL = `${SUMMARY} || jsonb_build_object('input', s.input) || case when s.options is null then '{}' else jsonb_build_object('options', s.options) end`;

/** No row: there is one of that name, and it is not to be replaced. */
const PUT = `
insert into capstan.schedules as s (tenant, name, agent, input, cron, timezone, catch_up, options, next_at, created_at, updated_at, actor)
values ($1, $2, $3, $4::jsonb, $5, $6, $7, $8::jsonb, $9::timestamptz, capstan.now(), capstan.now(), $10)
on conflict (tenant, name) do update set
  agent = excluded.agent, input = excluded.input, cron = excluded.cron, timezone = excluded.timezone, catch_up = excluded.catch_up, options = excluded.options,
  next_at = case when s.paused then null when s.cron = excluded.cron and s.timezone = excluded.timezone then coalesce(s.next_at, excluded.next_at) else excluded.next_at end,
  updated_at = case when (s.agent, s.input, s.cron, s.timezone, s.catch_up, s.options) is distinct from
    (excluded.agent, excluded.input, excluded.cron, excluded.timezone, excluded.catch_up, excluded.options) then excluded.updated_at else s.updated_at end,
  actor = coalesce(excluded.actor, s.actor)
where $11
returning ${DETAIL} as schedule`;

const RESUME = `
update capstan.schedules s set paused = false, next_at = $5::timestamptz, updated_at = capstan.now(), actor = coalesce($6, s.actor)
where s.tenant = $1 and s.name = $2 and s.cron = $3 and s.timezone = $4 and s.paused returning true as resumed`;

export class ScheduleClient {
  readonly #db: Tx;
  readonly #named: (text: string) => string;

  constructor(db: Tx, named: (text: string) => string) {
    this.#db = db;
    this.#named = named;
  }

  /** Throws ScheduleInvalidError, ScheduleExistsError, InputInvalidError and TooLargeError. The first tick is the next one from now on. */
  async create(name: string, { replace = false, tx, ...settings }: CreateScheduleOptions): Promise<ScheduleDetail> {
    const { agent, input, tenant, catchUp, options, actor } = checkSettings(name, settings);
    const db = tx ?? this.#db;
    const parsed = parseScheduleTimes(settings.cron, settings.timezone ?? "UTC", await this.#now(db));
    if (!parsed.ok) throw new ScheduleInvalidError(name, parsed.problem);
    const { times, next } = parsed;
    const values = [
      tenant,
      name,
      agent,
      JSON.stringify(input),
      times.cron,
      times.timezone,
      catchUp,
      options === null ? null : JSON.stringify(options),
      next.toISOString(),
      actor,
      replace,
    ];
    const [row] = await this.#query<{ schedule: ScheduleDetail }>(PUT, values, db);
    if (row === undefined) throw new ScheduleExistsError(`tenant ${tenant} has a schedule ${name} already; delete it, or create with replace`);
    return row.schedule;
  }

  /** By tenant and name; all tenants unless one is given. At most 1,000, without their inputs. */
  async list({ tenant }: { readonly tenant?: string } = {}): Promise<ScheduleView[]> {
    const text = `select ${SUMMARY} as schedule from capstan.schedules s where $1::text is null or s.tenant = $1 order by s.tenant, s.name limit 1000`;
    return (await this.#query<{ schedule: ScheduleView }>(text, [tenant ?? null])).map(({ schedule }) => schedule);
  }

  /** Throws ScheduleUnknownError, as do all that follow. */
  async get(name: string, { tenant = "default" }: ScheduleRef = {}): Promise<ScheduleDetail> {
    const [row] = await this.#query<{ schedule: ScheduleDetail }>(`select ${DETAIL} as schedule from capstan.schedules s where s.tenant = $1 and s.name = $2`, [tenant, name]);
    if (row === undefined) throw new ScheduleUnknownError(`tenant ${tenant} has no schedule ${name}`);
    return row.schedule;
  }

  /** False when it was paused already. Its runs go on. */
  async pause(name: string, { tenant = "default", actor }: ScheduleRef = {}): Promise<boolean> {
    const [row] = await this.#query<{ paused: boolean }>("select capstan.pause_schedule(name => $2, tenant => $1, actor => $3) as paused", [tenant, name, actor ?? null]);
    return row?.paused ?? false;
  }

  /** From the next tick on: those that fell into the pause are not caught up, whatever the policy. False when it was not paused. */
  async resume(name: string, { tenant = "default", actor }: ScheduleRef = {}): Promise<boolean> {
    for (;;) {
      const { paused, cron, timezone } = await this.get(name, { tenant });
      if (!paused) return false;
      const next = nextTick({ cron, timezone }, await this.#now(this.#db));
      const resumed = await this.#query(RESUME, [tenant, name, cron, timezone, next?.toISOString() ?? null, actor ?? null]);
      if (resumed.length > 0) return true;
      // Somebody has resumed or changed it between reading and writing: look again.
    }
  }

  async delete(name: string, { tenant = "default" }: ScheduleRef = {}): Promise<void> {
    await this.#query("select capstan.delete_schedule(name => $2, tenant => $1)", [tenant, name]);
  }

  /** Starts one run at once, also of a paused schedule, and gives its id. The next tick stays where it is. */
  async runNow(name: string, { tenant = "default", actor, idempotencyKey }: ScheduleRef & { readonly idempotencyKey?: string } = {}): Promise<string> {
    const text = "select capstan.run_schedule(name => $2, tenant => $1, idempotency_key => $3, actor => $4) as id";
    const [row] = await this.#query<{ id: string }>(text, [tenant, name, idempotencyKey ?? null, actor ?? null]);
    return (row as { id: string }).id;
  }

  /** The database's clock decides what is due, so it says from when on ticks count. */
  async #now(db: Tx): Promise<Date> {
    const [row] = await this.#query<{ now: number }>("select (extract(epoch from capstan.now()) * 1000)::float8 as now", [], db);
    return new Date(Math.floor((row as { now: number }).now));
  }

  async #query<Row extends object>(text: string, values: readonly unknown[], db: Tx = this.#db): Promise<Row[]> {
    try {
      return await queryTx<Row & Record<string, unknown>>(db, this.#named(text), values);
    } catch (error) {
      throw fromPostgres(error);
    }
  }
}
