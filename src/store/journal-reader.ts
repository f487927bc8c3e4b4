/** Reads journals: for the fold, for followers, for verify. Rows of one line come in order and never with a gap. */
import type { QueryResultRow } from "pg";
import { isUsableMarker } from "../domain/compaction/fold.ts";
import { tailFrom } from "../domain/compaction/resume.ts";
import type { CapstanEvent, EventOf } from "../domain/event.ts";
import { positionOf, seqOf, within, type Segment } from "../domain/position.ts";
import { toEvent, type StoredEvent } from "../domain/upcast.ts";
import type { InboxItem, LoadedRun, RunRow } from "../engine/ports.ts";
import { partsBetween, readLine, type LineSegment, type Part, type ReadDb } from "./line.ts";
import { RUN_COLUMNS, toRunRow, type RawRunRow } from "./sql/run-row.ts";
import type { JsonValue } from "../domain/json.ts";

/** An event with what only its row tells. */
export interface JournalRow {
  /** Its `seq` is the position in the line of the run that was asked for (domain/position.ts). */
  readonly event: CapstanEvent;
  /** Whose row it is: the run's own, or one that its view begins with. */
  readonly runId: string;
  readonly at: Date;
  readonly fencingToken: number;
  readonly sizeBytes: number;
}

interface RawEvent {
  run_id: string;
  seq_offset: number;
  seq: number;
  type: string;
  version: number;
  turn: number;
  attempt: number;
  step_key: string | null;
  view_epoch: number;
  origin: string | null;
  actor: string | null;
  inbox_id: string | null;
  payload: unknown;
  at: Date;
  fencing_token: number;
  size: number;
}

const eventColumns = [
  "run_id",
  "seq",
  "type",
  "version",
  "turn",
  "attempt",
  "step_key",
  "view_epoch",
  "origin",
  "actor",
  "inbox_id",
  "payload",
  "at",
  "fencing_token",
  "size",
] as const;
const EVENT_COLUMNS = eventColumns.map((column) => `e.${column}`).join(", ");
/** Of a run that nobody has begun: all that there is of it, in the same round trip. */
const FIRST_EVENT = eventColumns.map((column) => `f.${column} as first_${column}`).join(", ");
/** Rows fetched at a time when a whole journal is walked: some MB at most for ordinary events. */
const PAGE_ROWS = 2_000;
const NO_END = 2_147_483_647;

export class JournalReader {
  readonly #db: ReadDb;
  readonly #named: (text: string) => string;

  constructor(db: ReadDb, named: (text: string) => string) {
    this.#db = db;
    this.#named = named;
  }

  async row(runId: string): Promise<RunRow | undefined> {
    const { rows } = await this.#db.query<RawRunRow & QueryResultRow>({
      name: "capstan-run-row",
      text: this.#named(`select ${RUN_COLUMNS} from capstan.runs r where r.id = $1`),
      values: [runId],
    });
    return rows[0] && toRunRow(rows[0]);
  }

  /** The runs whose events make this run's line, oldest first, itself last; empty when there is no such run. */
  line(runId: string): Promise<LineSegment[]> {
    return readLine(this.#db, this.#named, runId);
  }

  /**
   * Row first: all events below its next_seq are committed by then, and later ones are cut off. A compacted run is read
   * from its marker's tail on: head and tail are all that its view needs, however long it is, and whichever run of its
   * line the marker is in.
   */
  async load(runId: string): Promise<LoadedRun | undefined> {
    const { rows } = await this.#db.query<RawRunRow & FirstEvent & QueryResultRow>({
      name: "capstan-load",
      text: this.#named(`select ${RUN_COLUMNS}, ${FIRST_EVENT} from capstan.runs r
        left join lateral (select ${EVENT_COLUMNS} from capstan.events e where e.run_id = r.id and e.seq = 1 and r.next_seq = 2 and r.seq_offset = 0) f on true
        where r.id = $1`),
      values: [runId],
    });
    const raw = rows[0];
    if (raw === undefined) return undefined;
    const row = toRunRow(raw);
    if (raw.first_seq !== null) return { row, events: [toRow(firstEvent(raw)).event] };
    const line = row.seqOffset === 0 ? [{ runId, offset: 0, last: undefined, definitionSha: row.definitionSha }] : await this.line(runId);
    const marked = row.viewMarkerSeq === undefined ? undefined : await this.#marked(line, row.viewMarkerSeq);
    const after = marked === undefined ? 0 : tailFrom(marked.marker) - 1;
    const events: CapstanEvent[] = [];
    for await (const { event } of this.#between(line, { after, below: row.nextSeq })) events.push(event);
    return marked === undefined ? { row, events } : { row, events, marked };
  }

  /** The line's first event and its newest marker whose summary says something: blank ones of old rows are passed over (case C30). */
  async #marked(line: readonly LineSegment[], markerPosition: number): Promise<LoadedRun["marked"]> {
    const [first, own] = [line[0], line.at(-1)];
    const created = first && (await this.#created(first));
    const marker = await this.#marker(line, markerPosition + 1);
    if (created === undefined || marker === undefined || own === undefined) return undefined;
    const from = tailFrom(marker);
    const { definitionSha } = line.findLast(({ offset }) => from > offset) ?? own;
    // What the run says of itself stands before the events that are read.
    const ownCreated = own.offset > 0 && from > own.offset + 1 ? await this.#created(own) : undefined;
    return { created, ...(ownCreated === undefined ? {} : { own: ownCreated }), marker, definitionSha };
  }

  async #created({ runId, offset }: Segment): Promise<EventOf<"run.created"> | undefined> {
    const [row] = await this.#page({ runId, offset, after: 0, below: 2 }, 1);
    return row?.event.type === "run.created" ? row.event : undefined;
  }

  async #marker(line: readonly Segment[], belowPosition: number): Promise<EventOf<"context.compacted"> | undefined> {
    for (const segment of line.toReversed()) {
      let below = within(segment, { after: 0, below: belowPosition })?.below;
      while (below !== undefined) {
        const { rows } = await this.#db.query<RawEvent & QueryResultRow>({
          name: "capstan-marker",
          text: this.#named(
            `select ${EVENT_COLUMNS}, $3::int as seq_offset from capstan.events e where e.run_id = $1 and e.seq < $2 and e.type = 'context.compacted' order by e.seq desc limit 1`,
          ),
          values: [segment.runId, below, segment.offset],
        });
        const marker = rows[0] && toRow(rows[0]).event;
        if (marker?.type !== "context.compacted") break;
        if (isUsableMarker(marker)) return marker;
        below = seqOf(marker.seq, segment.offset);
      }
    }
    return undefined;
  }

  /** Events of the run's line after position `after` (exclusive) and below `below` (exclusive), page by page. */
  async *walk(runId: string, { after = 0, below = NO_END }: { after?: number; below?: number } = {}): AsyncGenerator<JournalRow> {
    yield* this.#between(await this.line(runId), { after, below });
  }

  async *#between(line: readonly Segment[], { after, below }: { readonly after: number; readonly below: number }): AsyncGenerator<JournalRow> {
    const hasEnd = below < NO_END;
    const own = line.at(-1);
    // Without an end the run's own rows are read until there are no more: they may become more meanwhile.
    for (const parts of partsBetween(hasEnd ? line : line.slice(0, -1), { after, below }, PAGE_ROWS)) yield* await this.#parts(parts);
    if (hasEnd || own === undefined) return;
    for (let last = Math.max(0, seqOf(after, own.offset)); ;) {
      const rows = await this.#page({ runId: own.runId, offset: own.offset, after: last, below }, PAGE_ROWS);
      yield* rows;
      if (rows.length < PAGE_ROWS) return;
      last = seqOf(rows.at(-1)?.event.seq ?? last, own.offset);
    }
  }

  #parts(parts: readonly Part[]): Promise<JournalRow[]> {
    const [first, ...more] = parts;
    if (first === undefined) return Promise.resolve([]);
    return more.length === 0 ? this.#page(first, PAGE_ROWS) : this.#pages(parts);
  }

  async #page({ runId, offset, after, below }: Part, limit: number): Promise<JournalRow[]> {
    const { rows } = await this.#db.query<RawEvent & QueryResultRow>({
      name: "capstan-events",
      text: this.#named(`select ${EVENT_COLUMNS}, $5::int as seq_offset from capstan.events e where e.run_id = $1 and e.seq > $2 and e.seq < $3 order by e.seq limit $4`),
      values: [runId, after, below, limit, offset],
    });
    return rows.map(toRow);
  }

  /** Several runs of one line at once: a thread of a hundred short runs is not a hundred statements. */
  async #pages(parts: readonly Part[]): Promise<JournalRow[]> {
    const { rows } = await this.#db.query<RawEvent & QueryResultRow>({
      name: "capstan-line-events",
      text: this.#named(`select ${EVENT_COLUMNS}, p.seq_offset
        from unnest($1::uuid[], $2::int[], $3::int[], $4::int[]) as p(run_id, seq_offset, after, below)
        cross join lateral (select * from capstan.events o where o.run_id = p.run_id and o.seq > p.after and o.seq < p.below) e
        order by p.seq_offset + e.seq`),
      values: [parts.map(({ runId }) => runId), parts.map(({ offset }) => offset), parts.map(({ after }) => after), parts.map(({ below }) => below)],
    });
    return rows.map(toRow);
  }

  async pendingInbox(runId: string, limit: number): Promise<InboxItem[]> {
    const { rows } = await this.#db.query<{ id: string; kind: string; payload: JsonValue; actor: string | null; traceparent: string | null }>({
      name: "capstan-inbox",
      text: this.#named("select id, kind, payload, actor, traceparent from capstan.inbox where run_id = $1 and applied_seq is null order by id limit $2"),
      values: [runId, limit],
    });
    return rows.map((row) => ({ ...row, actor: row.actor ?? undefined, traceparent: row.traceparent ?? undefined }));
  }
}

type FirstEvent = { readonly [Column in keyof RawEvent as `first_${Column}`]: RawEvent[Column] | null };

function firstEvent(raw: FirstEvent): RawEvent {
  const columns = eventColumns.map((column) => [column, raw[`first_${column}`]] as const);
  return { ...Object.fromEntries(columns), seq_offset: 0 } as unknown as RawEvent;
}

function toRow(raw: RawEvent): JournalRow {
  return { event: toEvent(storedEvent(raw)), runId: raw.run_id, at: raw.at, fencingToken: raw.fencing_token, sizeBytes: raw.size };
}

function storedEvent(raw: RawEvent): StoredEvent {
  return {
    seq: positionOf(raw.seq, raw.seq_offset),
    type: raw.type,
    version: raw.version,
    turn: raw.turn,
    attempt: raw.attempt,
    epoch: raw.view_epoch,
    payload: raw.payload,
    ...(raw.step_key === null ? {} : { stepKey: raw.step_key }),
    ...(raw.origin === null ? {} : { origin: raw.origin }),
    ...(raw.actor === null ? {} : { actor: raw.actor }),
    ...(raw.inbox_id === null ? {} : { inboxId: raw.inbox_id }),
  };
}
