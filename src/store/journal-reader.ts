/** Reads journals: for the fold, for followers, for verify. Rows of one run come in seq order and never with a gap. */
import type pg from "pg";
import { isUsableMarker } from "../domain/compaction/fold.ts";
import { tailFrom } from "../domain/compaction/resume.ts";
import type { CapstanEvent } from "../domain/event.ts";
import { toEvent, type StoredEvent } from "../domain/upcast.ts";
import type { InboxItem, LoadedRun, RunRow } from "../engine/ports.ts";
import { RUN_COLUMNS, toRunRow, type RawRunRow } from "./sql/run-row.ts";
import type { JsonValue } from "../domain/json.ts";

/** An event with what only its row tells. */
export interface JournalRow {
  readonly event: CapstanEvent;
  readonly at: Date;
  readonly fencingToken: number;
  readonly sizeBytes: number;
}

interface RawEvent {
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

const EVENT_COLUMNS = "e.seq, e.type, e.version, e.turn, e.attempt, e.step_key, e.view_epoch, e.origin, e.actor, e.inbox_id, e.payload, e.at, e.fencing_token, e.size";
/** Rows fetched at a time when a whole journal is walked: some MB at most for ordinary events. */
const PAGE_ROWS = 2_000;

export class JournalReader {
  readonly #pool: pg.Pool;
  readonly #named: (text: string) => string;

  constructor(pool: pg.Pool, named: (text: string) => string) {
    this.#pool = pool;
    this.#named = named;
  }

  async row(runId: string): Promise<RunRow | undefined> {
    const { rows } = await this.#pool.query<RawRunRow>({
      name: "capstan-run-row",
      text: this.#named(`select ${RUN_COLUMNS} from capstan.runs r where r.id = $1`),
      values: [runId],
    });
    return rows[0] && toRunRow(rows[0]);
  }

  /**
   * Row first: all events below its next_seq are committed by then, and later ones are cut off. A compacted run is read
   * from its marker's tail on: head and tail are all that its view needs, however long it is.
   */
  async load(runId: string): Promise<LoadedRun | undefined> {
    const row = await this.row(runId);
    if (row === undefined) return undefined;
    const marked = row.viewMarkerSeq === undefined ? undefined : await this.#marked(runId, row.viewMarkerSeq);
    const after = marked === undefined ? 0 : tailFrom(marked.marker) - 1;
    const events: CapstanEvent[] = [];
    for await (const { event } of this.walk(runId, { after, below: row.nextSeq })) events.push(event);
    return marked === undefined ? { row, events } : { row, events, marked };
  }

  /** The first event and the newest marker whose summary says something: blank ones of old rows are passed over (case C30). */
  async #marked(runId: string, markerSeq: number): Promise<LoadedRun["marked"]> {
    const [first] = await this.page(runId, 0, 2, 1);
    if (first?.event.type !== "run.created") return undefined;
    for (let below = markerSeq + 1; ;) {
      const { rows } = await this.#pool.query<RawEvent>({
        name: "capstan-marker",
        text: this.#named(`select ${EVENT_COLUMNS} from capstan.events e where e.run_id = $1 and e.seq < $2 and e.type = 'context.compacted' order by e.seq desc limit 1`),
        values: [runId, below],
      });
      const marker = rows[0] && toEvent(storedEvent(rows[0]));
      if (marker?.type !== "context.compacted") return undefined;
      if (isUsableMarker(marker)) return { created: first.event, marker };
      below = marker.seq;
    }
  }

  /** Events after `after` (exclusive) and below `below` (exclusive), page by page. */
  async *walk(runId: string, { after = 0, below = 2_147_483_647 }: { after?: number; below?: number } = {}): AsyncGenerator<JournalRow> {
    for (let last = after; ;) {
      const rows = await this.page(runId, last, below, PAGE_ROWS);
      yield* rows;
      if (rows.length < PAGE_ROWS) return;
      last = rows.at(-1)?.event.seq ?? last;
    }
  }

  async page(runId: string, after: number, below: number, limit: number): Promise<JournalRow[]> {
    const { rows } = await this.#pool.query<RawEvent>({
      name: "capstan-events",
      text: this.#named(`select ${EVENT_COLUMNS} from capstan.events e where e.run_id = $1 and e.seq > $2 and e.seq < $3 order by e.seq limit $4`),
      values: [runId, after, below, limit],
    });
    return rows.map((raw) => ({ event: toEvent(storedEvent(raw)), at: raw.at, fencingToken: raw.fencing_token, sizeBytes: raw.size }));
  }

  async pendingInbox(runId: string, limit: number): Promise<InboxItem[]> {
    const { rows } = await this.#pool.query<{ id: string; kind: string; payload: JsonValue; actor: string | null; traceparent: string | null }>({
      name: "capstan-inbox",
      text: this.#named("select id, kind, payload, actor, traceparent from capstan.inbox where run_id = $1 and applied_seq is null order by id limit $2"),
      values: [runId, limit],
    });
    return rows.map((row) => ({ ...row, actor: row.actor ?? undefined, traceparent: row.traceparent ?? undefined }));
  }
}

function storedEvent(raw: RawEvent): StoredEvent {
  return {
    seq: raw.seq,
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
