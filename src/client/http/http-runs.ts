/** What a run's handle does, by requests to an API. */
import { randomUUID } from "node:crypto";
import type { JsonObject, JsonValue } from "../../domain/json.ts";
import type { CompactOptions, CompactView } from "../compact.ts";
import { inputJson } from "../enqueue.ts";
import type { FollowItem } from "../follow.ts";
import type { RunEvent, RunStatusView } from "../handle.ts";
import type { DeriveOptions, ForkOptions, RetryOptions, RunStateView } from "../lineage.ts";
import type { RunEnd } from "../result-poller.ts";
import type { ActOptions, Decision, FollowRunOptions, RunTransport, SendInputOptions } from "../run-transport.ts";
import type { DecisionOptions, SignalOptions, WaitView } from "../waits.ts";
import { waitFor } from "../wait-for.ts";
import { isPassing, pauseMs, type ApiRequests } from "./api-requests.ts";
import { followStream } from "./follow-stream.ts";
import { refuseOverHttp, withoutUndefined } from "./wire.ts";

/** The API answers earlier when the run ends; shorter than the minute after which many proxies give up. */
const WAIT_MS = 25_000;
const MIN_WAIT_MS = 250;
const EVENTS_PAGE = 100;
const COMPACT_WAIT_MS = 30_000;

export class HttpRuns implements RunTransport {
  readonly #api: ApiRequests;

  constructor(api: ApiRequests) {
    this.#api = api;
  }

  status(runId: string): Promise<RunStatusView> {
    return this.#api.json({ method: "GET", path: pathOf(runId) });
  }

  /** An API that is away is waited for, as long as the caller does. */
  async end(runId: string, signal: AbortSignal | undefined): Promise<RunEnd | undefined> {
    const isStopped = (): boolean => signal?.aborted === true;
    for (let failed = 0; !isStopped();) {
      const askedMs = performance.now();
      try {
        const path = pathOf(runId, "/result");
        const {
          state,
          output = null,
          error,
          last_seq: last,
        } = await this.#api.json<RunStatusView>({ method: "GET", path, query: { wait_ms: WAIT_MS }, timeoutMs: WAIT_MS + 10_000, signal });
        if (state === "cancelled") return { state, output, error: error ?? (await this.#whyCancelled(runId, last, signal)) };
        if (state === "completed" || state === "failed") return { state, output, error };
        failed = 0;
        // One that is about to stop answers at once.
        if (performance.now() - askedMs < MIN_WAIT_MS) await waitFor(undefined, MIN_WAIT_MS, signal);
      } catch (error) {
        if (isStopped()) return undefined;
        if (!isPassing(error)) throw error;
        await waitFor(undefined, pauseMs(failed++), signal);
      }
    }
    return undefined;
  }

  async *follow(runId: string, { after, follow, deltas, signal }: FollowRunOptions): AsyncGenerator<FollowItem> {
    if (follow) return yield* followStream(this.#api, runId, { after, deltas, signal });
    for (let from = after; signal?.aborted !== true;) {
      const path = pathOf(runId, "/events");
      const { items } = await this.#api.json<{ items: readonly RunEvent[] }>({ method: "GET", path, query: { after: from, limit: EVENTS_PAGE }, signal });
      for (const event of items) yield { type: "event", event };
      if (items.length === 0) return;
      from = items.at(-1)?.seq ?? from;
    }
  }

  async send(runId: string, content: unknown, { dedupeKey, ...options }: SendInputOptions): Promise<string> {
    refuseOverHttp("send", options);
    const body = { content: inputJson(runId, content) };
    return (await this.#api.json<{ input_id: string }>({ method: "POST", path: pathOf(runId, "/input"), body, idempotencyKey: dedupeKey ?? randomUUID() })).input_id;
  }

  async stop(runId: string, reason: string | undefined, options: ActOptions): Promise<void> {
    refuseOverHttp("stop", options);
    await this.#api.json({ method: "POST", path: pathOf(runId, "/stop"), body: withoutUndefined({ reason }) });
  }

  pause(runId: string, options: ActOptions): Promise<boolean> {
    return this.#done(runId, "pause", "paused", options);
  }

  resume(runId: string, options: ActOptions): Promise<boolean> {
    return this.#done(runId, "resume", "resumed", options);
  }

  cancel(runId: string, reason: string | undefined, options: ActOptions): Promise<boolean> {
    return this.#done(runId, "cancel", "cancelled", options, withoutUndefined({ reason }));
  }

  async signal(runId: string, name: string, payload: unknown, { dedupeKey, ...options }: SignalOptions): Promise<string> {
    refuseOverHttp("signal", options);
    const path = pathOf(runId, `/signals/${encodeURIComponent(name)}`);
    const body = { payload: inputJson(name, payload) };
    return (await this.#api.json<{ signal_id: string }>({ method: "POST", path, body, idempotencyKey: dedupeKey ?? randomUUID() })).signal_id;
  }

  async waits(runId: string): Promise<WaitView[]> {
    return (await this.#api.json<{ items: WaitView[] }>({ method: "GET", path: pathOf(runId, "/waits") })).items;
  }

  async decide(runId: string, callId: string, decision: Decision, { reason, ...options }: DecisionOptions): Promise<void> {
    refuseOverHttp(decision.decision, options);
    await this.#api.json({ method: "POST", path: pathOf(runId, `/approvals/${encodeURIComponent(callId)}`), body: withoutUndefined({ ...decision, reason }) });
  }

  async answer(runId: string, waitId: string, answer: unknown, options: ActOptions): Promise<void> {
    refuseOverHttp("answer", options);
    await this.#api.json({ method: "POST", path: pathOf(runId, `/waits/${encodeURIComponent(waitId)}/answer`), body: { answer: inputJson(waitId, answer) } });
  }

  compact(runId: string, { when = "now", timeoutMs, ...options }: CompactOptions): Promise<CompactView> {
    refuseOverHttp("compact", options);
    const waitMs = timeoutMs ?? (when === "now" ? COMPACT_WAIT_MS : 0);
    return this.#api.json({ method: "POST", path: pathOf(runId, "/compact"), query: { when, wait_ms: timeoutMs }, body: {}, timeoutMs: waitMs + 10_000 });
  }

  async fork(runId: string, options: ForkOptions): Promise<string> {
    const { at, input, overlay, compaction, budget, interactive, idempotencyKey } = options;
    const body = {
      at,
      input: input === undefined ? undefined : inputJson(runId, input),
      overlay: overlay as JsonObject | undefined,
      compaction: compaction as JsonObject | undefined,
      budget: budget as JsonObject | undefined,
      interactive,
      ...derived("fork", options),
    };
    return await this.#started(runId, "fork", body, idempotencyKey ?? randomUUID());
  }

  async retry(runId: string, options: RetryOptions): Promise<string> {
    const { once, overlay, compaction, budget } = options;
    const settings = { overlay: overlay as JsonObject | undefined, compaction: compaction as JsonObject | undefined, budget: budget as JsonObject | undefined };
    return await this.#started(runId, "retry", { once, ...settings, ...derived("retry", options) }, undefined);
  }

  at(runId: string, seq: number): Promise<RunStateView> {
    return this.#api.json({ method: "GET", path: pathOf(runId, "/state"), query: { seq } });
  }

  async #started(runId: string, act: "fork" | "retry", body: Record<string, JsonValue | undefined>, idempotencyKey: string | undefined): Promise<string> {
    const key = idempotencyKey === undefined ? {} : { idempotencyKey };
    return (await this.#api.json<{ run_id: string }>({ method: "POST", path: pathOf(runId, `/${act}`), body: withoutUndefined(body), ...key })).run_id;
  }

  /** The run's status does not say it; its last event does, or one of the last, if markers have come behind it. */
  async #whyCancelled(runId: string, lastSeq: number, signal: AbortSignal | undefined): Promise<NonNullable<RunEnd["error"]>> {
    const query = { after: Math.max(0, lastSeq - 20) };
    const { items } = await this.#api.json<{ items: readonly RunEvent[] }>({ method: "GET", path: pathOf(runId, "/events"), query, signal });
    const reason = items.findLast(({ type }) => type === "run.cancelled")?.payload["reason"];
    return { code: "RUN_CANCELLED", message: typeof reason === "string" ? reason : "cancelled" };
  }

  /** Done again it changes nothing, though the second answer says so. */
  async #done(runId: string, act: string, field: string, options: ActOptions, body: JsonObject = {}): Promise<boolean> {
    refuseOverHttp(act, options);
    return (await this.#api.json<Record<string, unknown>>({ method: "POST", path: pathOf(runId, `/${act}`), body, repeatable: true }))[field] === true;
  }
}

function derived(act: string, { priority, pool, labels, metadata, runAt, deadline, traceparent, tracestate, ...others }: DeriveOptions): Record<string, JsonValue | undefined> {
  refuseOverHttp(act, { tx: others.tx, actor: others.actor, traceparent, tracestate });
  return { priority, pool, labels: labels && [...labels], metadata, run_at: runAt?.toISOString(), deadline: deadline?.toISOString() };
}

function pathOf(runId: string, rest = ""): string {
  return `/runs/${encodeURIComponent(runId)}${rest}`;
}
