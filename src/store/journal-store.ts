/** The engine's JournalStore on Postgres: reader and grouped writer behind one port. */
import type pg from "pg";
import type { CapstanEvent } from "../domain/event.ts";
import type { AppendOutcome, AppendRequest, InboxItem, JournalStore, LoadedRun } from "../engine/ports.ts";
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

  async lost(held: readonly { readonly runId: string; readonly token: number }[]): Promise<string[]> {
    const { rows } = await this.#pool.query<{ run_id: string }>({
      name: "capstan-lost",
      text: this.#named(`
        select h.run_id from unnest($1::uuid[], $2::int[]) as h(run_id, token)
        left join capstan.runs r on r.id = h.run_id
        where r.id is null or r.fencing_token <> h.token or r.finished_at is not null`),
      values: [plainArray(held.map((h) => h.runId)), plainArray(held.map((h) => h.token))],
    });
    return rows.map((row) => row.run_id);
  }
}
