/** The rows between `compaction.requested` and the marker. Lock order: run row before task; a claim locks the task alone. */
import type pg from "pg";
import { HEAD_VERSION } from "../domain/compaction/head.ts";
import { summarizedSchema } from "../domain/compaction/types.ts";
import { eventSchemas } from "../domain/event.ts";
import type { JsonObject } from "../domain/json.ts";
import type { CompactionResult, CompactionTask, CompactionTasks } from "../engine/ports.ts";
import { untilConnected, type Outage } from "./until-connected.ts";

interface RawTask {
  id: string;
  run_id: string;
  tenant: string;
  agent: string;
  view_epoch: number;
  fencing_token: number;
  attempts: number;
  request: unknown;
  ended: boolean;
  waits: boolean;
  turn: number;
  age_ms: number;
}

/**
 * A claim by a worker that was buried would be swept by nobody: it asks for a live incarnation, like a run's. A task of a
 * dead worker is not taken over here but freed by the sweep alone, which counts the deaths (FREE_TASKS_SQL).
 */
const CLAIM_SQL = `
with claimed as (
  update capstan.compaction_tasks t set state = 'summarizing', worker_id = $2, fencing_token = t.fencing_token + 1, attempts = t.attempts + 1, wait_reason = null, dispatched_at = coalesce(t.dispatched_at, capstan.now()), updated_at = capstan.now()
  where t.id = $1 and exists (select from capstan.workers w where w.id = $2 and w.ended_at is null)
    and t.state = 'requested' and t.due_at <= capstan.now()
  returning t.*
)
select c.id, c.run_id, c.tenant, c.agent, c.view_epoch, c.fencing_token, c.attempts, c.request, coalesce(c.requested_at <= r.finished_at, false) as ended, r.wait_reason is not distinct from 'compaction' as waits, r.turn, (extract(epoch from capstan.now() - c.requested_at) * 1000)::float8 as age_ms
from claimed c join capstan.runs r on r.id = c.run_id`;

/** Waiting for a quota is no try. */
const AGAIN_SQL = `
update capstan.compaction_tasks set state = 'requested', worker_id = null, dispatched_at = null, wait_reason = $4, attempts = attempts - case $4 when 'quota' then 1 else 0 end, due_at = capstan.now() + $3::int * interval '1 ms', updated_at = capstan.now()
where id = $1 and fencing_token = $2 and state = 'summarizing'`;

/**
 * Tasks that this worker holds without being at work on them: a claim whose answer was lost with its connection, or one
 * that could not be put back. The sweep frees those of dead workers only. Not the newest: their claim may be on its way here.
 */
const FORGOTTEN_SQL = `
update capstan.compaction_tasks set state = 'requested', worker_id = null, dispatched_at = null, fencing_token = fencing_token + 1, wait_reason = 'retry', due_at = capstan.now(), updated_at = capstan.now()
where state in ('requested', 'summarizing') and dispatched_at is not null and state = 'summarizing'
  and worker_id = $1 and id <> all($2::uuid[]) and updated_at < capstan.now() - interval '30 s'
returning id`;

const LOST_SQL = `
select h.id from unnest($1::uuid[], $2::int[]) as h(id, token)
left join capstan.compaction_tasks t on t.id = h.id
left join capstan.runs r on r.id = t.run_id
where t.id is null or t.fencing_token <> h.token or t.state <> 'summarizing' or t.requested_at <= r.finished_at`;

export class PostgresCompactionTasks implements CompactionTasks {
  readonly #pool: pg.Pool;
  readonly #named: (text: string) => string;
  readonly #outage: Outage;
  readonly #workerId: () => string;

  constructor(pool: pg.Pool, named: (text: string) => string, outage: Outage, workerId: () => string) {
    this.#pool = pool;
    this.#named = named;
    this.#outage = outage;
    this.#workerId = workerId;
  }

  async result(taskId: string): Promise<{ viewEpoch: number; result: CompactionResult } | undefined> {
    const { rows } = await this.#pool.query<{ view_epoch: number; result: unknown; error: { reason: never; detail: JsonObject } | null }>(
      this.#named("select view_epoch, result, error from capstan.compaction_tasks where id = $1 and state = 'ready'"),
      [taskId],
    );
    const row = rows[0];
    if (row === undefined) return undefined;
    if (row.error !== null) return { viewEpoch: row.view_epoch, result: { kind: "failed", ...row.error } };
    const parsed = summarizedSchema.safeParse(row.result);
    // A store that drops fields (case C58): told, not applied, and not asked for again and again.
    if (parsed.success && parsed.data.head.version > HEAD_VERSION) {
      // Written as ours it would lose what a newer worker put into it.
      const message = `the summary was made by a newer worker (head version ${parsed.data.head.version}, this one knows ${HEAD_VERSION}); run a newer worker for this run`;
      return { viewEpoch: row.view_epoch, result: { kind: "failed", reason: "marker_lost", detail: { message } } };
    }
    if (!parsed.success)
      return {
        viewEpoch: row.view_epoch,
        result: { kind: "failed", reason: "marker_lost", detail: { message: parsed.error.issues[0]?.message ?? "the stored summary cannot be read" } },
      };
    return { viewEpoch: row.view_epoch, result: { kind: "ready", summarized: parsed.data } };
  }

  async claim(taskId: string): Promise<CompactionTask | undefined> {
    const { rows } = await this.#pool.query<RawTask>(this.#named(CLAIM_SQL), [taskId, this.#workerId()]);
    const raw = rows[0];
    return (
      raw && {
        id: raw.id,
        runId: raw.run_id,
        tenant: raw.tenant,
        agent: raw.agent,
        viewEpoch: raw.view_epoch,
        fencingToken: raw.fencing_token,
        attempts: raw.attempts,
        request: eventSchemas["compaction.requested"].parse(raw.request),
        runEnded: raw.ended,
        runWaits: raw.waits,
        turn: raw.turn,
        ageMs: raw.age_ms,
      }
    );
  }

  /** May be sent twice: the second finds the task `ready` and says false. */
  async finish(task: CompactionTask, result: CompactionResult): Promise<boolean> {
    const summarized = result.kind === "ready" ? JSON.stringify(result.summarized) : null;
    const error = result.kind === "failed" ? JSON.stringify({ reason: result.reason, detail: result.detail }) : null;
    const { rows } = await untilConnected(this.#outage, "handing a summary to its run", () =>
      this.#pool.query<{ done: boolean }>(this.#named("select capstan.finish_compaction($1, $2, $3::jsonb, $4::jsonb) as done"), [task.id, task.fencingToken, summarized, error]),
    );
    return rows[0]?.done ?? false;
  }

  async again(task: CompactionTask, inMs: number, waitReason: "retry" | "quota"): Promise<boolean> {
    const { rowCount } = await untilConnected(this.#outage, "putting a compaction off", () =>
      this.#pool.query(this.#named(AGAIN_SQL), [task.id, task.fencingToken, Math.ceil(inMs), waitReason]),
    );
    return rowCount === 1;
  }

  /** Frees what this worker holds and does not work on; `busy` are the tasks that it does work on. */
  async releaseForgotten(busy: readonly string[]): Promise<string[]> {
    const { rows } = await this.#pool.query<{ id: string }>(this.#named(FORGOTTEN_SQL), [this.#workerId(), busy]);
    return rows.map(({ id }) => id);
  }

  /** A job that was not begun: the task may be dispatched again at once. */
  async undispatch(taskId: string): Promise<void> {
    await this.#pool.query(this.#named("update capstan.compaction_tasks set dispatched_at = null where id = $1 and state = 'requested'"), [taskId]);
  }

  async lost(held: readonly { readonly id: string; readonly token: number }[]): Promise<string[]> {
    const { rows } = await this.#pool.query<{ id: string }>(this.#named(LOST_SQL), [held.map(({ id }) => id), held.map(({ token }) => token)]);
    return rows.map(({ id }) => id);
  }
}
