/**
 * The one way into the journal for workers. Appends of different runs that are ready at the same time share one
 * statement and one commit: at 50 concurrent runs that is the largest single effect on throughput that was measured
 * (docs/performance.md). A run has at most one append in flight, since its loop waits for each.
 *
 * A commit whose acknowledgement was lost (the connection died) is neither assumed nor repeated blindly: the same
 * append, with the same append id and the same guards, is sent again when the database answers. If it is refused, the
 * writer looks for rows with its own append id: they are there exactly if the first try arrived.
 */
import { randomInt } from "node:crypto";
import type pg from "pg";
import { LeaseLostError, RunFinishedError, RunMissingError, SeqConflictError } from "../domain/append-error.ts";
import { canonicalJson, type JsonValue } from "../domain/json.ts";
import { eventVersions } from "../domain/event.ts";
import { isTerminal, type RunStatus } from "../domain/run.ts";
import { hitFailpoint } from "../engine/failpoints.ts";
import type { AppendOutcome, AppendRequest, Log } from "../engine/ports.ts";
import { isConnectionError, isRetryableConflict } from "./pg-errors.ts";
import { APPEND_SQL, appendValues, lastSeqOf, type PreparedAppend } from "./sql/append.ts";

/** More statements at once would only split the groups; fewer would leave the database idle between two. */
const MAX_STATEMENTS_IN_FLIGHT = 2;
/** From so many waiting appends on, the client's work on one group is worth doing while the other is written. */
const SECOND_GROUP_RUNS = 8;
/**
 * So many appends that come at once are sent as two halves: the client works on the runs of one while the server writes
 * the other, where one group would keep either side waiting for the other (a third of both cores stood idle).
 */
const HALVED_FROM_RUNS = 24;
const MAX_GROUP_RUNS = 200;
const MAX_GROUP_BYTES = 8 * 1024 * 1024;
const RECONNECT_PAUSE_MS = 200;

interface Waiting extends PreparedAppend {
  /** A try of it ended without an answer: it may have been written. */
  outcomeUnknown: boolean;
  readonly resolve: (outcome: AppendOutcome) => void;
  readonly reject: (error: unknown) => void;
}

export interface JournalWriterOptions {
  readonly pool: pg.Pool;
  /** The incarnation to write as, read at each statement: a worker that was buried comes back under another. */
  readonly workerId: () => string;
  readonly named: (text: string) => string;
  readonly log: Log;
  readonly signal: AbortSignal;
  /** Told of each run whose journal has grown. */
  readonly onAppended?: (runId: string) => void;
}

interface ChangedRow {
  readonly id: string;
  readonly fencing_token: number;
  readonly inbox_pending: number;
  readonly paused: boolean;
  readonly journal_bytes: number;
  readonly taken_over: boolean;
}

export class JournalWriter {
  readonly #options: JournalWriterOptions;
  readonly #sql: { name: string; text: string };
  #waiting: Waiting[] = [];
  #inFlight = 0;
  #scheduled = false;

  constructor(options: JournalWriterOptions) {
    this.#options = options;
    this.#sql = { name: "capstan-append", text: options.named(APPEND_SQL) };
  }

  append(request: AppendRequest): Promise<AppendOutcome> {
    const payloads = request.events.map((event) => canonicalJson(event.payload as unknown as JsonValue));
    const versions = request.events.map((event) => eventVersions[event.type]);
    const bytes = payloads.reduce((sum, text) => sum + Buffer.byteLength(text), 0);
    // 31 random bits: it only has to differ from what another writer may have put at the same seq of the same run.
    const appendId = randomInt(2 ** 31);
    return new Promise((done, reject) => {
      const resolve = (outcome: AppendOutcome): void => {
        if (outcome.kind === "appended") this.#options.onAppended?.(request.runId);
        done(outcome);
      };
      this.#waiting.push({ request, appendId, payloads, versions, bytes, outcomeUnknown: false, resolve, reject });
      this.#schedule();
    });
  }

  /**
   * Two turns of the event loop are waited for: a run that was told of its last commit just now is back with its next
   * append by then (a tool's result takes one turn more than an answer), and comes along instead of missing the group.
   */
  #schedule(): void {
    if (this.#scheduled || !this.#mayFlush()) return;
    this.#scheduled = true;
    setImmediate(() =>
      setImmediate(() => {
        this.#scheduled = false;
        while (this.#mayFlush()) void this.#flush(this.#takeGroup(this.#groupSize()));
      }),
    );
  }

  /** A second statement beside the first only for a group worth it: else the runs split into two halves that never meet again. */
  #mayFlush(): boolean {
    const waiting = this.#waiting.length;
    return waiting > 0 && (this.#inFlight === 0 || (this.#inFlight < MAX_STATEMENTS_IN_FLIGHT && waiting >= SECOND_GROUP_RUNS));
  }

  #groupSize(): number {
    const waiting = this.#waiting.length;
    return this.#inFlight > 0 || waiting < HALVED_FROM_RUNS ? MAX_GROUP_RUNS : Math.min(MAX_GROUP_RUNS, Math.ceil(waiting / 2));
  }

  /**
   * One append per run and group: of two claims by doubled jobs in one statement the run's row would be changed once and
   * both would be told that they hold it.
   */
  #takeGroup(most: number): Waiting[] {
    const group: Waiting[] = [];
    const later: Waiting[] = [];
    const runs = new Set<string>();
    let bytes = 0;
    for (const item of this.#waiting) {
      const isFull = group.length >= most || (group.length > 0 && bytes + item.bytes > MAX_GROUP_BYTES);
      if (isFull || runs.has(item.request.runId)) {
        later.push(item);
        continue;
      }
      group.push(item);
      runs.add(item.request.runId);
      bytes += item.bytes;
    }
    this.#waiting = later;
    // One order for all groups: two statements that lock the same runs cannot wait for each other in a circle.
    return group.toSorted((a, b) => (a.request.runId < b.request.runId ? -1 : 1));
  }

  async #flush(group: Waiting[]): Promise<void> {
    this.#inFlight++;
    try {
      const changed = await this.#write(group);
      for (const item of group) {
        const row = changed.get(item.request.runId);
        if (row !== undefined) item.resolve(appended(row));
        else void this.#alone(item);
      }
    } catch (error) {
      // One member may have spoilt the statement, or the connection died: each is tried alone and gets its own answer.
      for (const item of group) {
        item.outcomeUnknown ||= isConnectionError(error);
        void this.#alone(item);
      }
    } finally {
      this.#inFlight--;
      if (this.#waiting.length > 0) this.#schedule();
    }
  }

  async #write(items: readonly Waiting[]): Promise<Map<string, ChangedRow>> {
    hitFailpoint("append.before_send");
    const sent = this.#options.pool.query<ChangedRow>({ ...this.#sql, values: appendValues(this.#options.workerId(), items) });
    const { rows } = await sent;
    hitFailpoint("append.unacknowledged");
    return new Map(rows.map((row) => [row.id, row]));
  }

  async #alone(item: Waiting): Promise<void> {
    try {
      item.resolve(await this.#untilKnown(item));
    } catch (error) {
      item.reject(error);
    }
  }

  /** Tries one append until its outcome is known. */
  async #untilKnown(item: Waiting): Promise<AppendOutcome> {
    for (let attempt = 1; ; attempt++) {
      try {
        const row = (await this.#write([item])).get(item.request.runId);
        if (row !== undefined) return appended(row);
        const refusal = await this.#refusal(item);
        if (refusal !== "again") return refusal;
      } catch (error) {
        if (!isConnectionError(error) && !isRetryableConflict(error)) throw error;
        if (this.#options.signal.aborted) throw error;
        item.outcomeUnknown ||= isConnectionError(error);
        if (attempt === 1 || attempt % 50 === 0) {
          this.#options.log.warn({ runId: item.request.runId, attempt, err: error }, "append outcome unknown, asking again");
        }
        await new Promise((resolve) => setTimeout(resolve, RECONNECT_PAUSE_MS));
      }
    }
  }

  /** Why a run was not in the result: our own rows are there already, or which guard failed. */
  async #refusal(item: Waiting): Promise<AppendOutcome | "again"> {
    const { request } = item;
    const arrived = await this.#arrived(item);
    if (arrived !== undefined) return arrived;
    const { rows } = await this.#options.pool.query<{
      state: RunStatus;
      next_seq: number;
      fencing_token: number;
      worker_id: string | null;
      paused: boolean;
      inbox_pending: number;
      buried: boolean;
    }>(
      this.#options.named(
        `select r.state, r.next_seq, r.fencing_token, r.worker_id, r.paused or exists (select from capstan.pauses p where p.value in ('*', r.tenant)) as paused, r.inbox_pending,
           not exists (select from capstan.workers w where w.id = $2 and w.ended_at is null) as buried
         from capstan.runs r where r.id = $1`,
      ),
      [request.runId, this.#options.workerId()],
    );
    const row = rows[0];
    if (row === undefined) throw new RunMissingError(request.runId);
    if (isTerminal(row.state) && request.onEnded !== true) throw new RunFinishedError(request.runId, row.state);
    if (request.guard.kind === "held") {
      if (row.fencing_token !== request.guard.token || row.worker_id !== this.#options.workerId()) {
        throw new LeaseLostError(request.runId, request.guard.token, row.fencing_token);
      }
    } else if (row.worker_id !== null || row.paused) {
      if (row.worker_id === this.#options.workerId() && item.outcomeUnknown) await this.#undoLostClaim(request.runId, row.fencing_token);
      return { kind: "unclaimable", paused: row.paused };
    } else if (row.buried) {
      // Nobody holds the run, and this job is the only one that it has: it must be wished for again.
      throw new LeaseLostError(request.runId, row.fencing_token, row.fencing_token);
    }
    if (row.next_seq !== lastSeqOf(request) + 1) throw new SeqConflictError(request.runId, lastSeqOf(request), row.next_seq - 1);
    if (row.inbox_pending < request.applied.length || (request.inboxAtMost !== undefined && row.inbox_pending - request.applied.length > request.inboxAtMost))
      return { kind: "inbox" };
    // All guards hold now: the row changed between the two statements. Try once more.
    return "again";
  }

  /**
   * A claim without events leaves no row by which it could be known again. If its acknowledgement was lost the run may
   * be ours without anyone at work on it, and a live worker's runs are never swept: it goes back to whoever comes next.
   * Should another job of this process hold it after all, that job loses its lease, which is safe.
   */
  async #undoLostClaim(runId: string, token: number): Promise<void> {
    await this.#options.pool.query(
      this.#options.named(`
        with freed as (
          update capstan.runs set worker_id = null, updated_at = capstan.now()
          where id = $1 and fencing_token = $2 and worker_id = $3 and finished_at is null returning id, pool, priority, agent, tenant
        )
        insert into capstan.wishes as w (run_id, at, priority, ready, pool, agent, tenant)
        select f.id, n.now, f.priority, true, f.pool, f.agent, f.tenant from freed f cross join (select capstan.now() as now) n
        on conflict (run_id) do update set at = least(w.at, excluded.at), ready = true`),
      [runId, token, this.#options.workerId()],
    );
  }

  /** Our own rows, known by append id. An append without events leaves none; then its guards alone decide. */
  async #arrived(item: Waiting): Promise<AppendOutcome | undefined> {
    if (item.request.events.length === 0) return undefined;
    const { rows } = await this.#options.pool.query<Omit<ChangedRow, "id" | "taken_over">>(
      this.#options.named(
        `select e.fencing_token, r.inbox_pending, r.paused or exists (select from capstan.pauses p where p.value in ('*', r.tenant)) as paused, r.journal_bytes::float8 from capstan.events e join capstan.runs r on r.id = e.run_id
         where e.run_id = $1 and e.seq = $2 and e.append_id = $3`,
      ),
      [item.request.runId, lastSeqOf(item.request) + 1, item.appendId],
    );
    const row = rows[0];
    return row && appended({ ...row, id: item.request.runId, taken_over: false });
  }
}

function appended(row: ChangedRow): AppendOutcome {
  return { kind: "appended", token: row.fencing_token, inboxPending: row.inbox_pending, paused: row.paused, journalBytes: row.journal_bytes, takenOver: row.taken_over };
}
