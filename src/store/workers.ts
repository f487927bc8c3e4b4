/** Worker rows: one per incarnation. */
import type pg from "pg";
import { randomUUID } from "node:crypto";
import type { JsonObject } from "../domain/json.ts";

/** Beats only while not buried: an incarnation that was swept never comes back to life. */
export const BEAT_SQL = "update capstan.workers set heartbeat_at = capstan.now(), busy = $2::int where id = $1 and ended_at is null";
export const END_BLOCKED_SQL = "update capstan.workers set ended_at = capstan.now(), end_reason = 'blocked' where id = $1 and ended_at is null";

export interface WorkerFacts {
  readonly pool: string;
  readonly host: string;
  readonly pid: number;
  readonly version: string;
  readonly leaseMs: number;
  readonly slots: number;
  readonly agents: readonly string[];
  readonly tools: JsonObject;
  readonly eventVersions: JsonObject;
}

/** Runs that waited for one of the agents ($1) in a pool ($2; null: in any) are looked at again. In one order, so that two cannot wait for each other in a circle. */
export const WISH_FOR_AGENTS_SQL = `insert into capstan.wishes (run_id, at, priority, ready, pool, agent, tenant)
  select r.id, capstan.now(), r.priority, true, r.pool, r.agent, r.tenant from capstan.runs r
  where r.state = 'waiting' and r.wait_reason = 'agent_missing' and r.agent = any($1) and ($2::text is null or r.pool = $2)
  order by r.id
  on conflict (run_id) do update set ready = true, at = excluded.at`;

export class WorkerStore {
  readonly #pool: pg.Pool;
  readonly #named: (text: string) => string;

  constructor(pool: pg.Pool, named: (text: string) => string) {
    this.#pool = pool;
    this.#named = named;
  }

  /** A new incarnation. Runs that waited for an agent which this worker has are wished for again. */
  async register(facts: WorkerFacts): Promise<string> {
    const id = randomUUID();
    await this.#pool.query(
      this.#named(`insert into capstan.workers (id, pool, host, pid, version, started_at, heartbeat_at, lease_ms, slots, agents, tools, event_versions)
        values ($1, $2, $3, $4, $5, capstan.now(), capstan.now(), $6, $7, $8, $9, $10)`),
      [id, facts.pool, facts.host, facts.pid, facts.version, facts.leaseMs, facts.slots, facts.agents, facts.tools, facts.eventVersions],
    );
    await this.#pool.query(this.#named(WISH_FOR_AGENTS_SQL), [facts.agents, facts.pool]);
    return id;
  }

  /** Must be known before jobs are locked under it, so that a sweep can unlock them. */
  async addQueuePool(id: string, queuePool: string): Promise<void> {
    await this.#pool.query(this.#named("update capstan.workers set queue_pools = array_append(queue_pools, $2) where id = $1"), [id, queuePool]);
  }

  async end(id: string, reason: "stopped" | "lost"): Promise<void> {
    await this.#pool.query(this.#named("update capstan.workers set ended_at = capstan.now(), end_reason = $2, busy = 0 where id = $1 and ended_at is null"), [id, reason]);
  }

  /** Wants a job for a run that nobody holds: for jobs that failed before they could claim. */
  async wish(runId: string, inMs: number): Promise<void> {
    await this.#pool.query(
      this.#named(`insert into capstan.wishes as w (run_id, at, priority, ready, pool, agent, tenant)
        select r.id, n.now + $2::int * interval '1 ms', r.priority, $2::int = 0, r.pool, r.agent, r.tenant
        from capstan.runs r cross join (select capstan.now() as now) n where r.id = $1 and r.finished_at is null and r.worker_id is null
        on conflict (run_id) do nothing`),
      [runId, inMs],
    );
  }
}
