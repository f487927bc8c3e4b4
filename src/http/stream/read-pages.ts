/** The statements by which one process reads for all its followers, whichever runs they follow. */
import type { RunEvent } from "../../client/handle.ts";
import { runEvent, type EventRow } from "../../client/postgres-runs.ts";
import type { Tx } from "../../client/transaction.ts";
import { queryTx } from "../../client/transaction.ts";
import { fromPostgres } from "../../client/errors.ts";
import { callEvents } from "../../client/live-feed.ts";

/** A run as it is now; `missing` when there is none. */
export type Head = { readonly missing: true } | { readonly missing: false; readonly state: string; readonly ended: boolean; readonly lastSeq: number };

export interface StartedHead {
  readonly head: Head;
  /** The newest event that begins or ends a model call, of a run that has not ended. */
  readonly call: Pick<RunEvent, "type" | "turn" | "attempt"> | undefined;
}

export interface PageWish {
  readonly runId: string;
  readonly after: number;
}

export interface Page {
  readonly head: Head;
  /** The next events behind `after`, perhaps not all of them. */
  readonly events: readonly RunEvent[];
}

const PAGE_EVENTS = 100;
/** Payloads of one page: the event that passes it is the last. With MAX_WISHES it bounds what a statement may bring. */
const PAGE_BYTES = 512 * 1024;
export const MAX_WISHES = 64;

interface HeadRow {
  readonly n: number;
  readonly state: string | null;
  readonly ended: boolean;
  readonly last_seq: number;
}

const HEAD = "x.n::int as n, r.state, r.finished_at is not null as ended, r.next_seq - 1 as last_seq";

const START = `
select ${HEAD}, c.type, c.turn, c.attempt
from unnest($1::uuid[]) with ordinality as x(id, n) left join capstan.runs r on r.id = x.id
left join lateral (select e.type, e.turn, e.attempt from capstan.events e where e.run_id = r.id and e.type = any($2::text[]) order by e.seq desc limit 1) c on r.finished_at is null`;

/** Only runs of which there is something to tell: a thousand that stand still cost one statement without a row. */
const CHANGED = `
select ${HEAD} from unnest($1::uuid[], $2::int[]) with ordinality as x(id, seq, n) left join capstan.runs r on r.id = x.id
where r.id is null or r.next_seq - 1 > x.seq or r.finished_at is not null`;

/** Head and events of one snapshot: a run that has ended at `last_seq` has no event behind it that is not here or in a later page. */
const PAGES = `
select ${HEAD}, e.seq, e.type, e.version, e.turn, e.attempt, to_jsonb(e.at) #>> '{}' as at, e.actor, e.origin, e.payload
from unnest($1::uuid[], $2::int[]) with ordinality as x(id, after, n) left join capstan.runs r on r.id = x.id
left join lateral (
  select p.* from (
    select w.*, sum(w.size) over (order by w.seq) - w.size as bytes_before
    from (select * from capstan.events e where e.run_id = x.id and e.seq > x.after order by e.seq limit ${PAGE_EVENTS}) w
  ) p where p.bytes_before < ${PAGE_BYTES}
) e on true
order by x.n, e.seq`;

export class PageReader {
  readonly #db: Tx;
  readonly #named: (text: string) => string;

  constructor(db: Tx, named: (text: string) => string) {
    this.#db = db;
    this.#named = named;
  }

  async start(runIds: readonly string[]): Promise<StartedHead[]> {
    const rows = await this.#query<HeadRow & { type: string | null; turn: number; attempt: number }>(START, [runIds, callEvents]);
    const started = new Map(rows.map((row) => [row.n, { head: headOf(row), call: row.type === null ? undefined : { type: row.type, turn: row.turn, attempt: row.attempt } }]));
    return runIds.map((_, i) => started.get(i + 1) ?? { head: { missing: true }, call: undefined });
  }

  /** By position in `known`; runs that have neither grown nor ended are left out. */
  async changed(known: readonly { readonly runId: string; readonly seq: number }[]): Promise<Map<number, Head>> {
    const rows = await this.#query<HeadRow>(CHANGED, [known.map(({ runId }) => runId), known.map(({ seq }) => seq)]);
    return new Map(rows.map((row) => [row.n - 1, headOf(row)]));
  }

  /** A page for each wish, in their order. */
  async pages(wishes: readonly PageWish[]): Promise<Page[]> {
    const rows = await this.#query<HeadRow & { [F in keyof EventRow]: EventRow[F] | null }>(PAGES, [wishes.map(({ runId }) => runId), wishes.map(({ after }) => after)]);
    const pages = wishes.map(() => ({ head: { missing: true } as Head, events: [] as RunEvent[] }));
    for (const row of rows) {
      const page = pages[row.n - 1];
      if (page === undefined) continue;
      page.head = headOf(row);
      const { n: _n, state: _state, ended: _ended, last_seq: _last, ...event } = row;
      if (event.seq !== null) page.events.push(runEvent(event as EventRow));
    }
    return pages;
  }

  async #query<Row extends object>(text: string, values: readonly unknown[]): Promise<Row[]> {
    try {
      return await queryTx<Row & Record<string, unknown>>(this.#db, this.#named(text), values);
    } catch (error) {
      throw fromPostgres(error);
    }
  }
}

function headOf({ state, ended, last_seq: lastSeq }: HeadRow): Head {
  return state === null ? { missing: true } : { missing: false, state, ended, lastSeq };
}
