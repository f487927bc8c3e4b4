/** A run's handle: everything one can do with a run, from its id alone. */
import type { JsonObject, JsonValue } from "../domain/json.ts";
import { DEFAULT_INLINE_PAYLOAD_BYTES } from "../domain/limits.ts";
import type { DeltaListener } from "./delta-listener.ts";
import { compactRun, type CompactOptions, type CompactView } from "./compact.ts";
import { inputJson } from "./enqueue.ts";
import { followRun, type FollowItem } from "./follow.ts";
import { needsOffload, offload } from "./offload.ts";
import { DatabaseUnavailableError, fromPostgres, ResultTimeoutError, UnknownRunError, RunFailedError } from "./errors.ts";
import { forkRun, retryRun, stateAt, type ForkOptions, type RetryOptions, type RunStateView } from "./lineage.ts";
import type { ResultPoller } from "./result-poller.ts";
import { queryTx, type Tx } from "./transaction.ts";
import { WaitClient, type SignalOptions, type WaitView } from "./waits.ts";

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

const OUTAGE_PAUSE_MS = 500;
const PAGE = 500;
const EVENT = "e.seq, e.type, e.version, e.turn, e.attempt, to_jsonb(e.at) #>> '{}' as at, e.actor, e.origin, e.payload";

export interface HandleContext {
  readonly db: Tx;
  readonly named: (text: string) => string;
  readonly poller: ResultPoller;
  /** Hears live text for `follow`; without one a follower sees events only. */
  readonly listener?: DeltaListener;
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
    for await (const item of this.#follow({ after, follow, signal, listener: undefined })) if (item.type === "event") yield item.event;
  }

  /**
   * The same events as they come, and between them the live text of model calls (`deltas: false` leaves it out). Deltas of
   * a call stand between its `model.requested` and the event that ends it; they have no seq, may be missing, and are
   * those since somebody followed: the event `model.responded` has the whole answer. To go on after an interruption, give
   * the seq of the last event.
   */
  follow({ after = 0, deltas = true, signal }: { readonly after?: number; readonly deltas?: boolean; readonly signal?: AbortSignal } = {}): AsyncGenerator<FollowItem> {
    return this.#follow({ after, follow: true, signal, listener: deltas ? this.#context.listener : undefined });
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

  /**
   * Stops the turn at hand and keeps the run: its model call and tools are aborted, on whichever worker they run, and it
   * waits for input. For interactive runs. Throws NotInteractiveError, NotMidTurnError, RunEndedError.
   */
  async stop(reason?: string, { actor, tx }: { readonly actor?: string; readonly tx?: Tx } = {}): Promise<void> {
    await this.#query("select capstan.stop_run($1::uuid, $2, $3)", [this.id, reason ?? null, actor ?? null], tx);
  }

  /** No worker begins another turn of the run until `resume`, also over restarts; the turn at hand is finished. False when it was paused already. */
  async pause({ actor, tx }: { readonly actor?: string; readonly tx?: Tx } = {}): Promise<boolean> {
    const rows = await this.#query<{ paused: boolean }>("select capstan.pause_run($1::uuid, $2) as paused", [this.id, actor ?? null], tx);
    return (rows[0] as { paused: boolean }).paused;
  }

  /** False when it was not paused. */
  async resume({ actor, tx }: { readonly actor?: string; readonly tx?: Tx } = {}): Promise<boolean> {
    const rows = await this.#query<{ resumed: boolean }>("select capstan.resume_run($1::uuid, $2) as resumed", [this.id, actor ?? null], tx);
    return (rows[0] as { resumed: boolean }).resumed;
  }

  /** See WaitClient.signal. */
  signal(name: string, payload: unknown = null, options: SignalOptions = {}): Promise<string> {
    return new WaitClient(this.#context.db, this.#context.named).signal(this.id, name, payload, options);
  }

  /** What the run waits for now, of every kind. */
  waits(): Promise<WaitView[]> {
    const kinds = ["approval", "question", "signal", "timer", "children", "completion"] as const;
    return new WaitClient(this.#context.db, this.#context.named).list({ runId: this.id, kinds, limit: 1_000 });
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

  /**
   * A new run whose view begins with this one's, up to event `at`; what it does behind that is its own. Tools may do again
   * what they did here behind that event. Throws ForkPointError where a run cannot go on from.
   */
  async fork(options: ForkOptions = {}): Promise<RunHandle<Output>> {
    return new RunHandle(await forkRun(this.id, this.#context, options), this.#context);
  }

  /**
   * Starts this failed or cancelled run again from its last good place, as a run of its own. While that one has not ended,
   * asking again gives it again. Throws RunNotFailedError.
   */
  async retry(options: RetryOptions = {}): Promise<RunHandle<Output>> {
    return new RunHandle(await retryRun(this.id, this.#context, options), this.#context);
  }

  /** The run as it was right after its event `seq`: its state, and the messages that a model saw. */
  at(seq: number): Promise<RunStateView> {
    return stateAt(this.id, seq, this.#context);
  }

  async #offload(content: unknown, tx: Tx | undefined): Promise<unknown> {
    const { db, named } = this.#context;
    // Through the caller's transaction: the run may have been enqueued in it.
    const rows = await this.#query<{ tenant: string }>("select tenant from capstan.runs where id = $1::uuid", [this.id], tx);
    if (rows[0] === undefined) throw new UnknownRunError(`no run ${this.id}`);
    return offload(content, { db: tx ?? db, named, tenant: rows[0].tenant, runId: this.id, limitBytes: DEFAULT_INLINE_PAYLOAD_BYTES });
  }

  #follow(options: { after: number; follow: boolean; signal: AbortSignal | undefined; listener: DeltaListener | undefined }): AsyncGenerator<FollowItem> {
    const { follow, signal } = options;
    const source = {
      runId: this.id,
      pageSize: PAGE,
      listener: options.listener,
      events: (after: number) =>
        this.#untilBack(follow, signal, () =>
          this.#query<RunEvent>(`select ${EVENT} from capstan.events e where e.run_id = $1 and e.seq > $2::int order by e.seq limit ${PAGE}`, [this.id, after]),
        ),
      newest: async (types: readonly string[], upTo: number) => {
        const rows = await this.#untilBack(follow, signal, () =>
          this.#query<RunEvent>(`select ${EVENT} from capstan.events e where e.run_id = $1 and e.seq <= $2::int and e.type = any($3::text[]) order by e.seq desc limit 1`, [
            this.id,
            upTo,
            types,
          ]),
        );
        return rows?.[0];
      },
      status: () => this.#untilBack(follow, signal, () => this.status()),
    };
    return followRun(source, options);
  }

  /** A follower waits for a database that is away; undefined when its signal fires meanwhile. */
  async #untilBack<T>(follow: boolean, signal: AbortSignal | undefined, ask: () => Promise<T>): Promise<T | undefined> {
    while (signal?.aborted !== true) {
      try {
        return await ask();
      } catch (error) {
        if (!follow || !(error instanceof DatabaseUnavailableError)) throw error;
        await new Promise((resolve) => setTimeout(resolve, OUTAGE_PAUSE_MS));
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
