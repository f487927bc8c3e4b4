/** What a run's handle does, by statements. */
import { DEFAULT_INLINE_PAYLOAD_BYTES } from "../domain/limits.ts";
import { compactRun, type CompactOptions, type CompactView } from "./compact.ts";
import type { Redactor } from "../domain/redact/redactor.ts";
import type { DeltaListener } from "./delta-listener.ts";
import { inputJson } from "./enqueue.ts";
import { DatabaseUnavailableError, fromPostgres, UnknownRunError, WaitUnknownError } from "./errors.ts";
import { followRun, type FollowItem } from "./follow.ts";
import type { RunEvent, RunStatusView } from "./handle.ts";
import { forkRun, retryRun, stateAt, type ForkOptions, type RetryOptions, type RunStateView } from "./lineage.ts";
import { needsOffload, offload } from "./offload.ts";
import type { ResultPoller, RunEnd } from "./result-poller.ts";
import type { ActOptions, Decision, FollowRunOptions, RunTransport, SendInputOptions } from "./run-transport.ts";
import { redactInput } from "./redact-input.ts";
import { queryTx, type Tx } from "./transaction.ts";
import { WaitClient, type DecisionOptions, type SignalOptions, type WaitView } from "./waits.ts";

export interface HandleContext {
  readonly db: Tx;
  readonly named: (text: string) => string;
  readonly poller: ResultPoller;
  /** Hears live text for `follow`; without one a follower sees events only. */
  readonly listener?: DeltaListener;
  /** Keeps secrets out of what is sent to runs. */
  readonly redactor?: Redactor | undefined;
}

const OUTAGE_PAUSE_MS = 500;
const PAGE = 500;
const EVENT = "e.seq, e.type, e.version, e.turn, e.attempt, to_jsonb(e.at) #>> '{}' as at, e.actor, e.origin, e.payload";
export type EventRow = Omit<RunEvent, "actor" | "origin"> & { readonly actor: string | null; readonly origin: string | null };
const ALL_WAITS = ["approval", "question", "signal", "timer", "children", "completion"] as const;
/** The newest: a call of the same id is asked for again after a stop. */
const APPROVAL =
  "select w.id from capstan.waits w where w.run_id = $1::uuid and w.call_id = $2 and w.kind = 'approval' order by w.settled_at is null desc, w.requested_at desc limit 1";

/** What is not known of an event is left out, in every way in which it is read. */
export function runEvent({ actor, origin, ...event }: EventRow): RunEvent {
  return { ...event, ...(actor === null ? {} : { actor }), ...(origin === null ? {} : { origin }) };
}

export class PostgresRuns implements RunTransport {
  readonly #context: HandleContext;

  constructor(context: HandleContext) {
    this.#context = context;
  }

  async status(runId: string): Promise<RunStatusView> {
    const rows = await this.#query<{ status: RunStatusView }>("select capstan.run_status($1::uuid) as status", [runId]);
    return (rows[0] as { status: RunStatusView }).status;
  }

  end(runId: string, signal: AbortSignal | undefined): Promise<RunEnd | undefined> {
    return this.#context.poller.wait(runId, signal);
  }

  follow(runId: string, { after, follow, deltas, signal }: FollowRunOptions): AsyncGenerator<FollowItem> {
    const source = {
      runId,
      pageSize: PAGE,
      listener: deltas ? this.#context.listener : undefined,
      events: async (from: number) => {
        const rows = await this.#untilBack(follow, signal, () =>
          this.#query<EventRow>(`select ${EVENT} from capstan.events e where e.run_id = $1 and e.seq > $2::int order by e.seq limit ${PAGE}`, [runId, from]),
        );
        return rows?.map(runEvent);
      },
      newest: async (types: readonly string[], upTo: number) => {
        const rows = await this.#untilBack(follow, signal, () =>
          this.#query<EventRow>(`select ${EVENT} from capstan.events e where e.run_id = $1 and e.seq <= $2::int and e.type = any($3::text[]) order by e.seq desc limit 1`, [
            runId,
            upTo,
            types,
          ]),
        );
        return rows?.[0];
      },
      status: () => this.#untilBack(follow, signal, () => this.status(runId)),
    };
    return followRun(source, { after, follow, signal });
  }

  async send(runId: string, content: unknown, { dedupeKey, actor, tx }: SendInputOptions): Promise<string> {
    const { redactor } = this.#context;
    const shown = redactor === undefined ? content : await redactInput(content, redactor, { place: "input", runId });
    const kept = needsOffload(shown, DEFAULT_INLINE_PAYLOAD_BYTES - 4_096) ? await this.#offload(runId, shown, tx) : shown;
    const json = inputJson(runId, kept);
    const rows = await this.#query<{ id: string }>(
      "select capstan.send(run_id => $1::uuid, payload => $2::jsonb, dedupe_key => $3, actor => $4) as id",
      [runId, JSON.stringify(json), dedupeKey ?? null, actor ?? null],
      tx,
    );
    return (rows[0] as { id: string }).id;
  }

  async stop(runId: string, reason: string | undefined, { actor, tx }: ActOptions): Promise<void> {
    await this.#query("select capstan.stop_run($1::uuid, $2, $3)", [runId, reason ?? null, actor ?? null], tx);
  }

  async pause(runId: string, { actor, tx }: ActOptions): Promise<boolean> {
    const rows = await this.#query<{ paused: boolean }>("select capstan.pause_run($1::uuid, $2) as paused", [runId, actor ?? null], tx);
    return (rows[0] as { paused: boolean }).paused;
  }

  async resume(runId: string, { actor, tx }: ActOptions): Promise<boolean> {
    const rows = await this.#query<{ resumed: boolean }>("select capstan.resume_run($1::uuid, $2) as resumed", [runId, actor ?? null], tx);
    return (rows[0] as { resumed: boolean }).resumed;
  }

  async cancel(runId: string, reason: string | undefined, { actor, tx }: ActOptions): Promise<boolean> {
    const rows = await this.#query<{ ended: boolean }>("select capstan.cancel_run($1::uuid, $2, $3) as ended", [runId, reason ?? null, actor ?? null], tx);
    return (rows[0] as { ended: boolean }).ended;
  }

  signal(runId: string, name: string, payload: unknown, options: SignalOptions): Promise<string> {
    return this.#waits().signal(runId, name, payload, options);
  }

  waits(runId: string): Promise<WaitView[]> {
    return this.#waits().list({ runId, kinds: ALL_WAITS, limit: 1_000 });
  }

  async decide(runId: string, callId: string, decision: Decision, options: DecisionOptions): Promise<void> {
    const [wait] = await this.#query<{ id: string }>(APPROVAL, [runId, callId], options.tx);
    if (wait === undefined) throw new WaitUnknownError(`run ${runId} asks for no approval of call ${callId}; waits() lists what it waits for`);
    if (decision.decision === "deny") return await this.#waits().deny(wait.id, options);
    await this.#waits().approve(wait.id, { ...options, ...(decision.input === undefined ? {} : { input: decision.input }) });
  }

  async answer(runId: string, waitId: string, answer: unknown, options: ActOptions): Promise<void> {
    const waits = this.#waits();
    const { run_id: owner } = await waits.get(waitId, { tx: options.tx });
    if (owner !== runId.toLowerCase()) throw new WaitUnknownError(`run ${runId} does not wait under ${waitId}; waits() lists what it waits for`);
    await waits.answer(waitId, answer, options);
  }

  compact(runId: string, options: CompactOptions): Promise<CompactView> {
    return compactRun(runId, this.#context, options);
  }

  fork(runId: string, options: ForkOptions): Promise<string> {
    return forkRun(runId, this.#context, options);
  }

  retry(runId: string, options: RetryOptions): Promise<string> {
    return retryRun(runId, this.#context, options);
  }

  at(runId: string, seq: number): Promise<RunStateView> {
    return stateAt(runId, seq, this.#context);
  }

  #waits(): WaitClient {
    return new WaitClient(this.#context.db, this.#context.named, this.#context.redactor);
  }

  async #offload(runId: string, content: unknown, tx: Tx | undefined): Promise<unknown> {
    const { db, named } = this.#context;
    // Through the caller's transaction: the run may have been enqueued in it.
    const rows = await this.#query<{ tenant: string }>("select tenant from capstan.runs where id = $1::uuid", [runId], tx);
    if (rows[0] === undefined) throw new UnknownRunError(`no run ${runId}`);
    return offload(content, { db: tx ?? db, named, tenant: rows[0].tenant, runId, limitBytes: DEFAULT_INLINE_PAYLOAD_BYTES });
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
