/** The facts that doctor judges, as the database tells them. Each query is short and takes no lock that anybody waits for. */
import { randomUUID } from "node:crypto";
import pg from "pg";

type Db = Pick<pg.Pool, "query">;
type Named = (text: string) => string;

export interface ServerFacts {
  readonly version: string;
  readonly version_num: number;
  readonly fsync: string;
  readonly synchronous_commit: string;
  readonly full_page_writes: string;
  readonly in_recovery: boolean;
  readonly read_only: boolean;
  readonly max_connections: number;
  readonly connections: number;
  readonly user: string;
  readonly is_superuser: boolean;
  /** Milliseconds by which the server's clock is ahead of ours, half the round trip taken off. */
  readonly clock_skew_ms: number;
  readonly round_trip_ms: number;
}

export async function serverFacts(db: Db): Promise<ServerFacts> {
  // The first query of a connection pays for the connection, which would count as skew.
  await db.query("select 1");
  const sentAt = Date.now();
  const { rows } = await db.query<Omit<ServerFacts, "clock_skew_ms" | "round_trip_ms"> & { now_ms: number }>(
    `select (extract(epoch from clock_timestamp()) * 1000)::float8 as now_ms, current_setting('server_version') as version, current_setting('server_version_num')::int as version_num,
       current_setting('fsync') as fsync, current_setting('synchronous_commit') as synchronous_commit, current_setting('full_page_writes') as full_page_writes,
       pg_is_in_recovery() as in_recovery, current_setting('transaction_read_only') = 'on' as read_only, current_setting('max_connections')::int as max_connections,
       (select count(*)::int from pg_stat_activity where backend_type = 'client backend') as connections,
       current_user as "user", (select rolsuper from pg_roles where rolname = current_user) as is_superuser`,
  );
  const round_trip_ms = Date.now() - sentAt;
  const { now_ms, ...facts } = rows[0] as (typeof rows)[number];
  return { ...facts, round_trip_ms, clock_skew_ms: Math.round(now_ms - (sentAt + round_trip_ms / 2)) };
}

export interface JournalGuardFacts {
  readonly owner: string;
  /** This user could change or remove events if the triggers did not refuse. */
  readonly may_rewrite: boolean;
  readonly owner_role_exists: boolean;
  readonly app_role_exists: boolean;
  readonly triggers_on: number;
}

export async function journalGuardFacts(db: Db, schema: string): Promise<JournalGuardFacts | undefined> {
  const { rows } = await db.query<JournalGuardFacts>(
    `select pg_get_userbyid(c.relowner) as owner,
       has_table_privilege(c.oid, 'UPDATE') or has_table_privilege(c.oid, 'DELETE') or has_table_privilege(c.oid, 'TRUNCATE') as may_rewrite,
       exists (select from pg_roles where rolname = $1 || '_owner') as owner_role_exists, exists (select from pg_roles where rolname = $1 || '_app') as app_role_exists,
       (select count(*)::int from pg_trigger t where t.tgrelid = c.oid and t.tgname in ('events_append_only', 'events_no_truncate') and t.tgenabled in ('O', 'A')) as triggers_on
     from pg_class c where c.relname = 'events' and c.relnamespace = to_regnamespace($1)`,
    [schema],
  );
  return rows[0];
}

export interface WorkerFact {
  readonly id: string;
  readonly pool: string;
  readonly host: string;
  readonly pid: number;
  readonly version: string;
  readonly agents: readonly string[];
  readonly slots: number;
  readonly busy: number;
  readonly silent_ms: number;
  readonly lease_ms: number;
}

/** Workers that have not signed off. */
export async function openWorkers(db: Db, named: Named): Promise<WorkerFact[]> {
  const { rows } = await db.query<WorkerFact>(
    named(`select id, pool, host, pid, version, agents, slots, busy, lease_ms, (extract(epoch from capstan.now() - heartbeat_at) * 1000)::float8 as silent_ms
      from capstan.workers where ended_at is null order by started_at`),
  );
  return rows;
}

export async function recentDeaths(db: Db, named: Named): Promise<{ readonly reason: string; readonly n: number }[]> {
  const { rows } = await db.query<{ reason: string; n: number }>(
    named(`select end_reason as reason, count(*)::int as n from capstan.workers
      where ended_at > capstan.now() - interval '1 hour' and end_reason in ('lost', 'blocked') group by 1 order by 1`),
  );
  return rows;
}

export interface RunGroup {
  readonly agent: string;
  readonly pool: string;
  readonly n: number;
  readonly oldest_ms: number;
  readonly example: string;
}

const GROUPED = "count(*)::int as n, min(id::text) as example";

/** Ready wishes that no living worker takes, by agent and pool. */
export async function unservedWishes(db: Db, named: Named): Promise<RunGroup[]> {
  const { rows } = await db.query<RunGroup>(
    named(`select w.agent, w.pool, count(*)::int as n, min(w.run_id::text) as example, (extract(epoch from capstan.now() - min(w.at)) * 1000)::float8 as oldest_ms
      from capstan.wishes w where w.ready and not exists (
        select from capstan.workers k where k.ended_at is null and k.pool = w.pool and w.agent = any(k.agents) and k.heartbeat_at + k.lease_ms * interval '1 ms' > capstan.now())
      group by w.agent, w.pool order by n desc limit 50`),
  );
  return rows;
}

/** Compactions that no living worker of the summarize pool can take, by agent. */
export async function unservedSummaries(db: Db, named: Named): Promise<RunGroup[]> {
  const { rows } = await db.query<RunGroup>(
    named(`select t.agent, 'summarize' as pool, count(*)::int as n, min(t.run_id::text) as example, (extract(epoch from capstan.now() - min(t.requested_at)) * 1000)::float8 as oldest_ms
      from capstan.compaction_tasks t where t.state = 'requested' and not exists (
        select from capstan.workers k where k.ended_at is null and k.pool = 'summarize' and t.agent = any(k.agents) and k.heartbeat_at + k.lease_ms * interval '1 ms' > capstan.now())
      group by t.agent order by n desc limit 50`),
  );
  return rows;
}

/** Runs parked for a reason, by agent. */
export async function parkedRuns(db: Db, named: Named, reason: string): Promise<RunGroup[]> {
  const { rows } = await db.query<RunGroup>(
    named(`select agent, pool, ${GROUPED}, (extract(epoch from capstan.now() - min(updated_at)) * 1000)::float8 as oldest_ms
      from capstan.runs where state = 'waiting' and wait_reason = $1 group by agent, pool order by n desc limit 50`),
    [reason],
  );
  return rows;
}

/** `kind`: held by a worker that is gone; past the deadline; a retry or timer that is overdue; ready to go on and in no queue. */
export interface StuckGroup {
  readonly kind: "orphaned" | "overdue" | "asleep" | "forgotten";
  readonly n: number;
  readonly example: string;
}

/** Longer than any sweep and search for lost jobs takes with default settings: what is still there needs somebody's eye. */
const STUCK_AFTER = "interval '90 s'";

export async function stuckRuns(db: Db, named: Named): Promise<StuckGroup[]> {
  const { rows } = await db.query<StuckGroup>(
    named(`with clock as materialized (select capstan.now() as now), open as (
        select r.* from capstan.runs r cross join clock where r.state in ('queued', 'running', 'waiting') and not r.paused and r.updated_at < clock.now - ${STUCK_AFTER}
          and not exists (select from capstan.pauses p where p.value in ('*', r.tenant))
      ), found as (
        select 'orphaned' as kind, id from open r where r.worker_id is not null and not exists (select from capstan.workers w where w.id = r.worker_id and w.ended_at is null)
        union all select 'overdue', r.id from open r cross join clock where r.deadline < clock.now - ${STUCK_AFTER} and r.worker_id is null
        union all select 'asleep', r.id from open r cross join clock where r.state = 'waiting' and r.wake_at < clock.now - ${STUCK_AFTER}
        union all select 'forgotten', r.id from open r where r.state in ('queued', 'running') and r.worker_id is null
          and not exists (select from capstan.wishes w where w.run_id = r.id)
          and not exists (select from graphile_worker.jobs j where j.task_identifier = 'capstan/' || r.pool || '/' || r.agent)
      )
      select kind, ${GROUPED} from found group by kind order by kind`),
  );
  return rows;
}

export interface QueueFacts {
  /** Jobs locked by queue pools that no living worker owns. */
  readonly locked_by_dead: number;
  readonly waiting: number;
  readonly oldest_waiting_ms: number | null;
  /** Tried as often as graphile-worker tries: it never takes them again. */
  readonly exhausted: number;
}

export async function queueFacts(db: Db, named: Named): Promise<QueueFacts> {
  const { rows } = await db.query<QueueFacts>(
    named(`with alive as (
        select unnest(queue_pools) as id from capstan.workers where ended_at is null and heartbeat_at + lease_ms * interval '1 ms' > capstan.now()
      )
      select count(*) filter (where j.locked_at is not null and j.locked_by not in (select id from alive))::int as locked_by_dead,
        count(*) filter (where j.locked_at is null and j.attempts < j.max_attempts)::int as waiting,
        (extract(epoch from now() - min(j.run_at) filter (where j.locked_at is null and j.attempts < j.max_attempts)) * 1000)::float8 as oldest_waiting_ms,
        count(*) filter (where j.locked_at is null and j.attempts >= j.max_attempts)::int as exhausted
      from graphile_worker.jobs j where j.task_identifier like 'capstan/%'`),
  );
  return rows[0] as QueueFacts;
}

export interface BloatFact {
  readonly table_name: string;
  readonly live: number;
  readonly dead: number;
  readonly last_vacuum: Date | null;
}

export async function bloatFacts(db: Db, schema: string, workerSchema: string): Promise<BloatFact[]> {
  const { rows } = await db.query<BloatFact>(
    `select s.schemaname || '.' || s.relname as table_name, s.n_live_tup::float8 as live, s.n_dead_tup::float8 as dead, greatest(s.last_vacuum, s.last_autovacuum) as last_vacuum
     from pg_stat_user_tables s where (s.schemaname = $1 and s.relname in ('runs', 'wishes', 'workers')) or (s.schemaname = $2 and s.relname = '_private_jobs') order by 1`,
    [schema, workerSchema],
  );
  return rows;
}

export interface HorizonFact {
  readonly source: string;
  readonly xmin_age: number;
  readonly open_ms: number | null;
}

/** Who holds vacuum back furthest: an open transaction, a replication slot, or a prepared transaction. */
export async function horizonFacts(db: Db): Promise<HorizonFact[]> {
  const { rows } = await db.query<HorizonFact>(
    `select * from (
       select format('pid %s (%s, %s)', pid, coalesce(nullif(application_name, ''), 'no application_name'), state) as source, age(backend_xmin)::float8 as xmin_age,
         (extract(epoch from now() - xact_start) * 1000)::float8 as open_ms
       from pg_stat_activity where backend_xmin is not null and pid <> pg_backend_pid() and backend_type = 'client backend'
       union all select 'replication slot ' || slot_name, greatest(age(xmin), age(catalog_xmin))::float8, null from pg_replication_slots where coalesce(xmin, catalog_xmin) is not null
       union all select 'prepared transaction ' || gid, age(transaction)::float8, (extract(epoch from now() - prepared) * 1000)::float8 from pg_prepared_xacts
     ) h order by xmin_age desc limit 5`,
  );
  return rows;
}

export interface GrowthFact {
  readonly level: number;
  readonly n: number;
  readonly example: string;
}

export async function growthFacts(db: Db, named: Named): Promise<GrowthFact[]> {
  const { rows } = await db.query<GrowthFact>(
    named(`select growth_level as level, ${GROUPED} from capstan.runs where growth_level > 0 and state in ('queued', 'running', 'waiting') group by growth_level order by 1 desc`),
  );
  return rows;
}

export async function promotedModels(db: Db, named: Named): Promise<{ readonly agent: string; readonly models: readonly string[] }[]> {
  const { rows } = await db.query<{ agent: string; models: string[] }>(
    named(`select a.name as agent, array(select distinct m from unnest(array[d.definition ->> 'model']
        || array(select jsonb_array_elements_text(coalesce(d.definition -> 'fallbacks', '[]')))) m) as models
      from capstan.agents a join capstan.agent_definitions d on d.sha = a.promoted_sha where a.retired_at is null order by a.name`),
  );
  return rows;
}

/** Milliseconds until a notification came through on a connection of its own; undefined when it did not come in time. */
export async function listenDelayMs(db: Db, directUrl: string, { timeoutMs }: { readonly timeoutMs: number }): Promise<number | undefined> {
  const channel = `capstan_doctor_${randomUUID().replaceAll("-", "")}`;
  const client = new pg.Client({ connectionString: directUrl, application_name: "capstan doctor", connectionTimeoutMillis: timeoutMs });
  client.on("error", () => {});
  let timer: NodeJS.Timeout | undefined;
  try {
    await client.connect();
    await client.query(`listen ${channel}`);
    const sentAt = performance.now();
    const heard = new Promise<number>((resolve) => client.once("notification", () => resolve(performance.now() - sentAt)));
    const tooLate = new Promise<undefined>((resolve) => {
      timer = setTimeout(() => resolve(undefined), timeoutMs);
    });
    await db.query("select pg_notify($1, '')", [channel]);
    return await Promise.race([heard, tooLate]);
  } finally {
    clearTimeout(timer);
    await client.end();
  }
}
