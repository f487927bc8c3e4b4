/** A run's handle: everything one can do with a run, from its id alone. */
import type { JsonObject, JsonValue } from "../domain/json.ts";
import { DEFAULT_INLINE_PAYLOAD_BYTES } from "../domain/limits.ts";
import { compactRun, type CompactOptions, type CompactView } from "./compact.ts";
import { inputJson } from "./enqueue.ts";
import { needsOffload, offload } from "./offload.ts";
import { DatabaseUnavailableError, fromPostgres, ResultTimeoutError, UnknownRunError, RunFailedError } from "./errors.ts";
import type { ResultPoller } from "./result-poller.ts";
import { queryTx, type Tx } from "./transaction.ts";

export interface RunStatusView {
  readonly run_id: string;
  readonly agent: string;
  readonly tenant: string;
  readonly state: "queued" | "running" | "waiting" | "completed" | "failed" | "cancelled";
  /** Why a waiting run waits: `input`, `retry`, `agent_missing`… */
  readonly wait_reason?: string;
  readonly wake_at?: string;
  readonly paused: boolean;
  readonly turn: number;
  readonly last_seq: number;
  readonly created_at: string;
  readonly updated_at: string;
  readonly finished_at?: string;
  readonly output?: JsonValue;
  readonly error?: { readonly code: string; readonly message: string; readonly details?: JsonObject };
  readonly usage: {
    readonly input_tokens: number;
    readonly output_tokens: number;
    readonly cache_read_tokens: number;
    readonly cache_write_tokens: number;
    readonly cost_usd_micros: number;
  };
}

/** An event as followers read it. */
export interface RunEvent {
  readonly seq: number;
  readonly type: string;
  readonly version: number;
  readonly turn: number;
  readonly attempt: number;
  readonly at: string;
  readonly actor?: string;
  readonly origin?: string;
  readonly payload: JsonObject;
}

const FOLLOW_MIN_MS = 40;
const FOLLOW_MAX_MS = 500;
const PAGE = 500;

export interface HandleContext {
  readonly db: Tx;
  readonly named: (text: string) => string;
  readonly poller: ResultPoller;
}

export class RunHandle<Output = JsonValue> {
  readonly id: string;
  readonly #context: HandleContext;

  constructor(id: string, context: HandleContext) {
    this.id = id;
    this.#context = context;
  }

  async status(): Promise<RunStatusView> {
    const rows = await this.#query<{ status: RunStatusView }>("select capstan.run_status($1::uuid) as status", [this.id]);
    return (rows[0] as { status: RunStatusView }).status;
  }

  /**
   * The run's output. Throws RunFailedError (with the journal's own code) when it failed or was cancelled,
   * ResultTimeoutError after `timeoutMs`. An interactive run has a result only once it has ended.
   */
  async result({ timeoutMs, signal }: { readonly timeoutMs?: number; readonly signal?: AbortSignal } = {}): Promise<Output> {
    const timeout = timeoutMs === undefined ? undefined : AbortSignal.timeout(timeoutMs);
    const signals = [timeout, signal].filter((s) => s !== undefined);
    const end = await this.#context.poller.wait(this.id, signals.length === 0 ? undefined : AbortSignal.any(signals));
    if (end === undefined) {
      if (signal?.aborted === true) throw signal.reason;
      throw new ResultTimeoutError(`run ${this.id} did not end within ${timeoutMs} ms; it goes on, ask again`);
    }
    if (end.state === "completed") return end.output as Output;
    throw new RunFailedError(this.id, end.state, end.error ?? { code: "RUN_FAILED", message: end.state });
  }

  /** Events after `after` in seq order, without a gap, until the run ends; with `follow: false` those there are now. */
  async *events({ after = 0, follow = true, signal }: { readonly after?: number; readonly follow?: boolean; readonly signal?: AbortSignal } = {}): AsyncGenerator<RunEvent> {
    let last = after;
    let pauseMs = FOLLOW_MIN_MS;
    while (signal?.aborted !== true) {
      const page = (): Promise<RunEvent[]> =>
        this.#query<RunEvent>(
          `select e.seq, e.type, e.version, e.turn, e.attempt, to_jsonb(e.at) #>> '{}' as at, e.actor, e.origin, e.payload
           from capstan.events e where e.run_id = $1 and e.seq > $2::int order by e.seq limit ${PAGE}`,
          [this.id, last],
        );
      const rows = await this.#untilBack(follow, signal, page);
      if (rows === undefined) return;
      for (const row of rows) {
        yield row;
        last = row.seq;
      }
      if (rows.length === PAGE) continue;
      const status = await this.#untilBack(follow, signal, () => this.status());
      if (status === undefined) return;
      const { state, last_seq: lastSeq } = status;
      if (lastSeq > last) continue;
      if (!follow || ["completed", "failed", "cancelled"].includes(state)) return;
      pauseMs = rows.length > 0 ? FOLLOW_MIN_MS : Math.min(FOLLOW_MAX_MS, pauseMs * 1.5);
      await new Promise((resolve) => setTimeout(resolve, pauseMs));
    }
  }

  /** Input for an interactive run, or steering for one at work: applied at the next boundary, exactly once. Gives its inbox id. */
  async send(content: unknown, { dedupeKey, actor, tx }: { readonly dedupeKey?: string; readonly actor?: string; readonly tx?: Tx } = {}): Promise<string> {
    const kept = needsOffload(content, DEFAULT_INLINE_PAYLOAD_BYTES - 4_096) ? await this.#offload(content, tx) : content;
    const json = inputJson(this.id, kept);
    const rows = await this.#query<{ id: string }>(
      "select capstan.send(run_id => $1::uuid, payload => $2::jsonb, dedupe_key => $3, actor => $4) as id",
      [this.id, JSON.stringify(json), dedupeKey ?? null, actor ?? null],
      tx,
    );
    return (rows[0] as { id: string }).id;
  }

  /** Ends the run and its descendants at once. False when it had ended already. */
  async cancel(reason?: string, { actor, tx }: { readonly actor?: string; readonly tx?: Tx } = {}): Promise<boolean> {
    const rows = await this.#query<{ ended: boolean }>("select capstan.cancel_run($1::uuid, $2, $3) as ended", [this.id, reason ?? null, actor ?? null], tx);
    return (rows[0] as { ended: boolean }).ended;
  }

  /**
   * Asks for a compaction: the view's older part becomes a summary, its rows stay. Throws RunBusyError while the run is in
   * the middle of a turn (unless `when: "boundary"`), RunEndedError when it has ended.
   */
  compact(options: CompactOptions = {}): Promise<CompactView> {
    return compactRun(this.id, this.#context, options);
  }

  async #offload(content: unknown, tx: Tx | undefined): Promise<unknown> {
    const { db, named } = this.#context;
    // Through the caller's transaction: the run may have been enqueued in it.
    const rows = await this.#query<{ tenant: string }>("select tenant from capstan.runs where id = $1::uuid", [this.id], tx);
    if (rows[0] === undefined) throw new UnknownRunError(`no run ${this.id}`);
    return offload(content, { db: tx ?? db, named, tenant: rows[0].tenant, runId: this.id, limitBytes: DEFAULT_INLINE_PAYLOAD_BYTES });
  }

  /** A follower waits for a database that is away; undefined when its signal fires meanwhile. */
  async #untilBack<T>(follow: boolean, signal: AbortSignal | undefined, ask: () => Promise<T>): Promise<T | undefined> {
    while (signal?.aborted !== true) {
      try {
        return await ask();
      } catch (error) {
        if (!follow || !(error instanceof DatabaseUnavailableError)) throw error;
        await new Promise((resolve) => setTimeout(resolve, FOLLOW_MAX_MS));
      }
    }
    return undefined;
  }

  async #query<Row extends Record<string, unknown> | object>(text: string, values: readonly unknown[], tx?: Tx): Promise<Row[]> {
    try {
      return await queryTx<Row & Record<string, unknown>>(tx ?? this.#context.db, this.#context.named(text), values);
    } catch (error) {
      throw fromPostgres(error);
    }
  }
}
