/** What the engine needs from the edges. Postgres stands behind the store ports (src/store), graphile-worker behind none: the engine does not know of it. */
import type { AgentDefinition } from "../domain/definition.ts";
import type { CapstanEvent, NewEvent, WaitReason } from "../domain/event.ts";
import type { JsonObject, JsonValue } from "../domain/json.ts";
import type { RunStatus } from "../domain/run.ts";
import type { TokenScale, UsageTotals } from "../domain/usage.ts";

/** A run's row as the engine reads it. */
export interface RunRow {
  readonly id: string;
  readonly tenant: string;
  readonly agent: string;
  readonly definitionSha: string | undefined;
  readonly status: RunStatus;
  readonly waitReason: WaitReason | undefined;
  readonly wakeAt: Date | undefined;
  readonly paused: boolean;
  readonly workerId: string | undefined;
  readonly fencingToken: number;
  readonly nextSeq: number;
  readonly turn: number;
  readonly crashCount: number;
  readonly inboxPending: number;
  readonly journalBytes: number;
  readonly transcriptBytes: number;
  readonly growthLevel: number;
  readonly viewEpoch: number;
  readonly viewMarkerSeq: number | undefined;
  readonly interactive: boolean;
  readonly createdAt: Date;
  readonly deadline: Date | undefined;
  readonly traceparent: string | undefined;
  readonly priority: number;
  readonly pool: string;
  /** The database's clock when the row was read. */
  readonly now: Date;
}

export interface InboxItem {
  readonly id: string;
  readonly kind: string;
  readonly payload: JsonValue;
  readonly actor: string | undefined;
  readonly traceparent: string | undefined;
}

/** Absolute values of the run's row after an append; possible since the writer is the only one and its expected seq is checked. */
export interface RunPatch {
  readonly status: RunStatus;
  readonly waitReason: WaitReason | undefined;
  readonly wakeAt: Date | undefined;
  readonly turn: number;
  readonly transcriptBytes: number;
  readonly viewEpoch: number;
  readonly contextTokens: number | undefined;
  readonly contextScale: TokenScale | undefined;
  readonly contextWindow: number | undefined;
  readonly usage: UsageTotals;
  readonly growthLevel: number;
  readonly retryCount: number;
  readonly errorCode: string | undefined;
  readonly definitionSha: string | undefined;
  readonly lastSpan: string | undefined;
  /** A turn was finished: crashes before it no longer count. */
  readonly resetCrashes: boolean;
}

export interface AppendRequest {
  readonly runId: string;
  /** seq of the last event that the writer knows. */
  readonly expectedSeq: number;
  /** `claim` takes a free run and raises its fencing token; `held` writes under a token already taken. */
  readonly guard: { readonly kind: "claim" } | { readonly kind: "held"; readonly token: number };
  /** Inbox items that these events apply. The append is refused with kind `inbox` if others wait and `inboxMustBeEmpty`. */
  readonly applied: readonly { readonly id: string; readonly seq: number }[];
  readonly inboxMustBeEmpty: boolean;
  readonly events: readonly NewEvent[];
  readonly patch: RunPatch;
  /** Give the lease back with this commit. */
  readonly release: boolean;
  /** Want a job: now, or at a time. */
  readonly wish: undefined | "now" | Date;
}

export type AppendOutcome =
  | { readonly kind: "appended"; readonly token: number; readonly inboxPending: number; readonly paused: boolean; readonly journalBytes: number; readonly takenOver: boolean }
  /** Input waits that the writer has not seen: look at the inbox and decide again. Nothing was written. */
  | { readonly kind: "inbox" }
  /** The run may not be claimed: somebody holds it, or it is paused. Nothing was written. */
  | { readonly kind: "unclaimable"; readonly paused: boolean };

export interface LoadedRun {
  readonly row: RunRow;
  readonly events: readonly CapstanEvent[];
}

export interface JournalStore {
  /** Row and events from the view's start; undefined when there is no such run. Throws EventUnknownError, EventInvalidError. */
  load(runId: string): Promise<LoadedRun | undefined>;
  pendingInbox(runId: string, limit: number): Promise<InboxItem[]>;
  /**
   * Throws SeqConflictError, LeaseLostError, RunFinishedError, RunMissingError. Survives a lost connection: it waits
   * for the database and finds out whether its commit arrived.
   */
  append(request: AppendRequest): Promise<AppendOutcome>;
  /** Gives a held run back without writing an event, and wants a job. No error when the lease is gone. */
  giveBack(runId: string, token: number, wishAt: "now" | Date | undefined): Promise<void>;
  /** Which of these runs are no longer held under these tokens. */
  lost(held: readonly { readonly runId: string; readonly token: number }[]): Promise<string[]>;
}

export interface DefinitionStore {
  get(sha: string): Promise<AgentDefinition | undefined>;
  promoted(name: string): Promise<{ sha: string; definition: AgentDefinition } | undefined>;
}

export interface BlobStore {
  /** Stores once per tenant and content; gives the hex sha256. */
  put(tenant: string, runId: string, content: Uint8Array, mediaType: string): Promise<{ sha256: string; sizeBytes: number }>;
  get(tenant: string, sha256: string): Promise<Uint8Array | undefined>;
}

/** Usage of calls that no event tells of. */
export interface UsageLedger {
  record(entry: {
    readonly runId: string;
    readonly tenant: string;
    readonly agent: string;
    readonly model: string;
    readonly kind: "turn" | "tool" | "summary";
    readonly turn: number;
    readonly attempt: number;
    readonly outcome: string;
    readonly usage: UsageTotals;
    readonly estimated: boolean;
  }): Promise<void>;
}

export interface Log {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

export type WarnSink = (message: string, detail: JsonObject) => unknown;

/** A span as the engine sees it; src/telemetry gives OpenTelemetry's. */
export interface EngineSpan {
  /** W3C trace context of this span; undefined while telemetry is off. */
  readonly traceparent: string | undefined;
  set(attributes: { readonly [key: string]: string | number | boolean | readonly string[] | undefined }): void;
  fail(code: string, message: string): void;
  end(): void;
}

export interface Tracing {
  /** A root span when `parent` is absent; `links` are W3C traceparents. */
  start(
    name: string,
    options: {
      readonly kind: "internal" | "client" | "consumer";
      readonly parent?: EngineSpan;
      readonly links?: readonly string[];
      readonly attributes?: Parameters<EngineSpan["set"]>[0];
    },
  ): EngineSpan;
}

/** One effect on the outside world: a model call or a tool execution. */
export interface Effect {
  readonly kind: "model" | "tool";
  readonly name: string;
  readonly runId: string;
  readonly tenant: string;
  readonly agent: string;
  readonly turn: number;
  readonly attempt: number;
}

export interface EffectReport {
  readonly outcome: string;
  readonly durationMs: number;
  readonly inputTokens?: number;
  readonly outputTokens?: number;
  readonly costUsdMicros?: number;
}

/** The one place through which every effect passes: grant, quota and guard come before `execute`, the meter after it. */
export interface EffectRing {
  perform<T>(effect: Effect, execute: () => Promise<T>, report: (result: T) => Omit<EffectReport, "durationMs">): Promise<T>;
}
