/** The engine's JournalStore on Postgres: reader and grouped writer behind one port. */
import type pg from "pg";
import type { Spent } from "../domain/budget.ts";
import type { CapstanEvent } from "../domain/event.ts";
import type { AppendOutcome, AppendRequest, ChildOutcome, InboxItem, JournalStore, LoadedRun } from "../engine/ports.ts";
import type { JsonValue } from "../domain/json.ts";
import { JournalReader } from "./journal-reader.ts";
import type { JournalWriter } from "./journal-writer.ts";
import { plainArray } from "./sql/array-literal.ts";
import { untilConnected, type Outage } from "./until-connected.ts";

export class PostgresJournalStore implements JournalStore {
  readonly #reader: JournalReader;
  readonly #writer: JournalWriter;
  readonly #pool: pg.Pool;
  readonly #named: (text: string) => string;
  readonly #outage: Outage;

  constructor(pool: pg.Pool, named: (text: string) => string, writer: JournalWriter, outage: Outage) {
    this.#pool = pool;
    this.#outage = outage;
    this.#named = named;
    this.#writer = writer;
    this.#reader = new JournalReader(pool, named);
  }

  load(runId: string): Promise<LoadedRun | undefined> {
    return this.#reader.load(runId);
  }

  async *eventsBelow(runId: string, below: number): AsyncGenerator<CapstanEvent> {
    for await (const { event } of this.#reader.walk(runId, { below })) yield event;
  }

  pendingInbox(runId: string, limit: number): Promise<InboxItem[]> {
    return this.#reader.pendingInbox(runId, limit);
  }

  append(request: AppendRequest): Promise<AppendOutcome> {
    return this.#writer.append(request);
  }

  /**
   * No row means that the lease is gone already: then whoever took it wishes for the job. Waits for a database that is
   * away: a run that its live worker neither works on nor gives back would be nobody's for ever.
   */
  async giveBack(runId: string, token: number, wishAt: "now" | Date | undefined): Promise<void> {
    await untilConnected(this.#outage, "giving a run back", () =>
      this.#pool.query(
        this.#named(`
        with freed as (
          update capstan.runs set worker_id = null, updated_at = capstan.now()
          where id = $1 and fencing_token = $2 and worker_id is not null and finished_at is null
          returning id, pool, priority, agent, tenant
        )
        insert into capstan.wishes as w (run_id, at, priority, ready, pool, agent, tenant)
        select f.id, greatest($3::timestamptz, n.now), f.priority, $3::timestamptz <= n.now, f.pool, f.agent, f.tenant
        from freed f cross join (select capstan.now() as now) n where $3::timestamptz is not null
        on conflict (run_id) do update set at = least(w.at, excluded.at), ready = w.ready or excluded.ready`),
        [runId, token, wishAt === undefined ? null : wishAt === "now" ? "-infinity" : wishAt.toISOString()],
      ),
    );
  }

  async called(held: readonly { readonly runId: string; readonly token: number }[]): Promise<{ readonly runId: string; readonly why: "lost" | "stopped" }[]> {
    const { rows } = await this.#pool.query<{ run_id: string; is_lost: boolean }>({
      name: "capstan-called",
      text: this.#named(`
        select h.run_id, l.is_lost from unnest($1::uuid[], $2::int[]) as h(run_id, token)
        left join capstan.runs r on r.id = h.run_id
        cross join lateral (select r.id is null or r.fencing_token <> h.token or r.finished_at is not null as is_lost) l
        where l.is_lost or (r.interactive and r.inbox_pending > 0
          and exists (select from capstan.inbox i where i.run_id = r.id and i.applied_seq is null and i.kind = 'stop'))`),
      values: [plainArray(held.map((h) => h.runId)), plainArray(held.map((h) => h.token))],
    });
    return rows.map((row) => ({ runId: row.run_id, why: row.is_lost ? "lost" : "stopped" }));
  }

  async childOutcomes(runId: string, call: string): Promise<ChildOutcome[]> {
    const { rows } = await this.#pool.query<{
      id: string;
      agent: string;
      child_index: number;
      state: string;
      payload: { output?: JsonValue; error?: { code: string; message: string }; reason?: string };
    }>({
      name: "capstan-children",
      text: this.#named(`
        select c.id, c.agent, c.child_index, c.state, e.payload from capstan.runs c
        join lateral (select e.payload from capstan.events e where e.run_id = c.id and e.type in ('run.completed', 'run.failed', 'run.cancelled') order by e.seq desc limit 1) e on true
        where c.parent_run_id = $1 and c.parent_call = $2 order by c.child_index`),
      values: [runId, call],
    });
    return rows.map(({ id, agent, child_index: index, state, payload }) => ({
      index,
      agent,
      runId: id,
      ...(state === "completed"
        ? { output: payload.output ?? null }
        : { error: payload.error ? { code: payload.error.code, message: payload.error.message } : { code: "RUN_CANCELLED", message: payload.reason ?? "the run was cancelled" } }),
    }));
  }

  async childSpending(runId: string, call: string): Promise<Spent> {
    const { rows } = await this.#pool.query<{ tokens: number; cost: number }>({
      name: "capstan-child-spending",
      text: this.#named(`
        with recursive tree as (
          select c.id, c.input_tokens, c.output_tokens, c.cost_usd_micros from capstan.runs c where c.parent_run_id = $1 and c.parent_call = $2
          union all
          select c.id, c.input_tokens, c.output_tokens, c.cost_usd_micros from capstan.runs c join tree t on c.parent_run_id = t.id
        )
        select coalesce(sum(input_tokens + output_tokens), 0)::float8 as tokens, coalesce(sum(cost_usd_micros), 0)::float8 as cost from tree`),
      values: [runId, call],
    });
    return { tokens: rows[0]?.tokens ?? 0, costUsdMicros: rows[0]?.cost ?? 0 };
  }
}
