/** A run's handle: everything one can do with a run, from its id alone. */
import type { Budget } from "../domain/budget.ts";
import type { ResolvedPolicy } from "../domain/compaction/policy.ts";
import type { JsonObject, JsonValue } from "../domain/json.ts";
import type { CompactOptions, CompactView } from "./compact.ts";
import type { FollowItem } from "./follow.ts";
import { ResultTimeoutError, RunFailedError } from "./errors.ts";
import type { ForkOptions, RetryOptions, RunStateView } from "./lineage.ts";
import { PostgresRuns, type HandleContext } from "./postgres-runs.ts";
import type { ActOptions, RunTransport, SendInputOptions } from "./run-transport.ts";
import type { DecisionOptions, SignalOptions, WaitView } from "./waits.ts";

export type { HandleContext } from "./postgres-runs.ts";

export interface RunStatusView {
  readonly run_id: string;
  readonly agent: string;
  readonly tenant: string;
  readonly state: "queued" | "running" | "waiting" | "completed" | "failed" | "cancelled";
  /** Why a waiting run waits: `input`, `retry`, `agent_missing`… */
  readonly wait_reason?: string;
  readonly wake_at?: string;
  /** What a run stands before that nobody has to answer: a quota that is used up, or a concurrency key. */
  readonly waits_for?: WaitsFor;
  readonly paused: boolean;
  readonly turn: number;
  readonly last_seq: number;
  readonly created_at: string;
  readonly updated_at: string;
  readonly finished_at?: string;
  readonly output?: JsonValue;
  readonly error?: { readonly code: string; readonly message: string; readonly details?: JsonObject };
  /** In force for the run, with defaults. */
  readonly compaction: ResolvedPolicy;
  readonly budget?: Budget;
  /** With a budget: 0 within it, 1 when a soft limit was told, 2 when a hard one was reached. */
  readonly budget_level?: 0 | 1 | 2;
  readonly usage: {
    readonly input_tokens: number;
    readonly output_tokens: number;
    readonly cache_read_tokens: number;
    readonly cache_write_tokens: number;
    readonly cost_usd_micros: number;
  };
}

export type WaitsFor =
  /** `bucket` names the limit (`turn/tokens/minute/tenant/acme`). `needed` and `limit` are there when no call would ever fit. */
  | { readonly kind: "quota"; readonly bucket: string; readonly needed?: number; readonly limit?: number; readonly until?: string }
  | {
      readonly kind: "concurrency_key";
      readonly key: string;
      readonly scope: "agent" | "all";
      readonly limit: number;
      readonly held_by?: readonly string[];
      readonly until?: string;
    };

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

export class RunHandle<Output = JsonValue> {
  readonly id: string;
  readonly #runs: RunTransport;

  /** By statements, or by requests to an API: the handle means the same. */
  constructor(id: string, through: HandleContext | RunTransport) {
    this.id = id;
    this.#runs = "db" in through ? new PostgresRuns(through) : through;
  }

  status(): Promise<RunStatusView> {
    return this.#runs.status(this.id);
  }

  /**
   * The run's output. Throws RunFailedError (with the journal's own code) when it failed or was cancelled,
   * ResultTimeoutError after `timeoutMs`. An interactive run has a result only once it has ended.
   */
  async result({ timeoutMs, signal }: { readonly timeoutMs?: number; readonly signal?: AbortSignal } = {}): Promise<Output> {
    const timeout = timeoutMs === undefined ? undefined : AbortSignal.timeout(timeoutMs);
    const signals = [timeout, signal].filter((s) => s !== undefined);
    const end = await this.#runs.end(this.id, signals.length === 0 ? undefined : AbortSignal.any(signals));
    if (end === undefined) {
      if (signal?.aborted === true) throw signal.reason;
      throw new ResultTimeoutError(`run ${this.id} did not end within ${timeoutMs} ms; it goes on, ask again`);
    }
    if (end.state === "completed") return end.output as Output;
    throw new RunFailedError(this.id, end.state, end.error ?? { code: "RUN_FAILED", message: end.state });
  }

  /** Events after `after` in seq order, without a gap, until the run ends; with `follow: false` those there are now. */
  async *events({ after = 0, follow = true, signal }: { readonly after?: number; readonly follow?: boolean; readonly signal?: AbortSignal } = {}): AsyncGenerator<RunEvent> {
    for await (const item of this.#runs.follow(this.id, { after, follow, signal, deltas: false })) if (item.type === "event") yield item.event;
  }

  /**
   * The same events as they come, and between them the live text of model calls (`deltas: false` leaves it out). Deltas of
   * a call stand between its `model.requested` and the event that ends it; they have no seq, may be missing, and are
   * those since somebody followed: the event `model.responded` has the whole answer. To go on after an interruption, give
   * the seq of the last event.
   */
  follow({ after = 0, deltas = true, signal }: { readonly after?: number; readonly deltas?: boolean; readonly signal?: AbortSignal } = {}): AsyncGenerator<FollowItem> {
    return this.#runs.follow(this.id, { after, follow: true, signal, deltas });
  }

  /** Input for an interactive run, or steering for one at work: applied at the next boundary, exactly once. Gives its inbox id. */
  send(content: unknown, options: SendInputOptions = {}): Promise<string> {
    return this.#runs.send(this.id, content, options);
  }

  /**
   * Stops the turn at hand and keeps the run: its model call and tools are aborted, on whichever worker they run, and it
   * waits for input. For interactive runs. Throws NotInteractiveError, NotMidTurnError, RunEndedError.
   */
  stop(reason?: string, options: ActOptions = {}): Promise<void> {
    return this.#runs.stop(this.id, reason, options);
  }

  /** No worker begins another turn of the run until `resume`, also over restarts; the turn at hand is finished. False when it was paused already. */
  pause(options: ActOptions = {}): Promise<boolean> {
    return this.#runs.pause(this.id, options);
  }

  /** False when it was not paused. */
  resume(options: ActOptions = {}): Promise<boolean> {
    return this.#runs.resume(this.id, options);
  }

  /** See WaitClient.signal. */
  signal(name: string, payload: unknown = null, options: SignalOptions = {}): Promise<string> {
    return this.#runs.signal(this.id, name, payload, options);
  }

  /** What the run waits for now, of every kind. */
  waits(): Promise<WaitView[]> {
    return this.#runs.waits(this.id);
  }

  /**
   * Lets a call of the run be made; `input` are arguments to use instead of the model's own. Exactly one decision counts:
   * throws WaitDecidedError for a second one, WaitExpiredError, WaitUnknownError, InputInvalidError when `input` does not fit.
   */
  approve(callId: string, { input, ...options }: DecisionOptions & { readonly input?: JsonObject } = {}): Promise<void> {
    return this.#runs.decide(this.id, callId, { decision: "approve", ...(input === undefined ? {} : { input }) }, options);
  }

  /** The call is not made; the model reads the reason. Throws as `approve` does. */
  deny(callId: string, options: DecisionOptions = {}): Promise<void> {
    return this.#runs.decide(this.id, callId, { decision: "deny" }, options);
  }

  /** Answers a question of the run, by the id that `waits` gives. Throws InputInvalidError when it does not fit what was asked for, WaitDecidedError, WaitUnknownError. */
  answer(waitId: string, answer: unknown, options: ActOptions = {}): Promise<void> {
    return this.#runs.answer(this.id, waitId, answer, options);
  }

  /** Ends the run and its descendants at once. False when it had ended already. */
  cancel(reason?: string, options: ActOptions = {}): Promise<boolean> {
    return this.#runs.cancel(this.id, reason, options);
  }

  /**
   * Asks for a compaction: the view's older part becomes a summary, its rows stay. Throws RunBusyError while the run is in
   * the middle of a turn (unless `when: "boundary"`), RunEndedError when it has ended.
   */
  compact(options: CompactOptions = {}): Promise<CompactView> {
    return this.#runs.compact(this.id, options);
  }

  /**
   * A new run whose view begins with this one's, up to event `at`; what it does behind that is its own. Tools may do again
   * what they did here behind that event. Throws ForkPointError where a run cannot go on from.
   */
  async fork(options: ForkOptions = {}): Promise<RunHandle<Output>> {
    return new RunHandle(await this.#runs.fork(this.id, options), this.#runs);
  }

  /**
   * Starts this failed or cancelled run again from its last good place, as a run of its own. While that one has not ended,
   * asking again gives it again. Throws RunNotFailedError.
   */
  async retry(options: RetryOptions = {}): Promise<RunHandle<Output>> {
    return new RunHandle(await this.#runs.retry(this.id, options), this.#runs);
  }

  /** The run as it was right after its event `seq`: its state, and the messages that a model saw. */
  at(seq: number): Promise<RunStateView> {
    return this.#runs.at(this.id, seq);
  }
}
