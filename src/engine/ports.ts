/** What the engine needs from the edges. Postgres stands behind the store ports (src/store), graphile-worker behind none: the engine does not know of it. */
import type { Spent } from "../domain/budget.ts";
import type { AgentDefinition } from "../domain/definition.ts";
import type { ModelDelta } from "../domain/delta.ts";
import type { CompactionReason, Summarized } from "../domain/compaction/types.ts";
import type { CapstanEvent, EventOf, EventPayload, NewEvent, WaitReason } from "../domain/event.ts";
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
  /** Position of the run's next event (domain/position.ts). */
  readonly nextSeq: number;
  /** Events of the runs before it that its view begins with. */
  readonly seqOffset: number;
  readonly turn: number;
  readonly crashCount: number;
  readonly inboxPending: number;
  readonly journalBytes: number;
  readonly transcriptBytes: number;
  readonly growthLevel: number;
  readonly viewEpoch: number;
  readonly viewMarkerSeq: number | undefined;
  readonly usage: UsageTotals;
  readonly interactive: boolean;
  readonly createdAt: Date;
  /** Not before this. */
  readonly runAt: Date | undefined;
  readonly deadline: Date | undefined;
  readonly traceparent: string | undefined;
  readonly priority: number;
  readonly pool: string;
  /** Under how many parents it was spawned. */
  readonly depth: number;
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
  readonly viewMarker: number | undefined;
  readonly contextTokens: number | undefined;
  readonly contextScale: TokenScale | undefined;
  readonly contextWindow: number | undefined;
  readonly usage: UsageTotals;
  readonly growthLevel: number;
  readonly budgetLevel: number;
  readonly retryCount: number;
  readonly errorCode: string | undefined;
  readonly definitionSha: string | undefined;
  readonly lastSpan: string | undefined;
  /** A turn was finished: crashes before it no longer count. */
  readonly resetCrashes: boolean;
}

export interface AppendRequest {
  readonly runId: string;
  /** Position of the last event that the writer knows. */
  readonly expectedSeq: number;
  /** Of the run's row: the rows are written with seqs of their own. Default 0. */
  readonly seqOffset?: number;
  /** `claim` takes a free run and raises its fencing token; `held` writes under a token already taken. */
  readonly guard: { readonly kind: "claim" } | { readonly kind: "held"; readonly token: number };
  /** Inbox items that these events apply. The append is refused with kind `inbox` if more than `inboxAtMost` others wait. */
  readonly applied: readonly { readonly id: string; readonly seq: number }[];
  /** Undefined: whatever waits. */
  readonly inboxAtMost?: number;
  /** These are the events of a compaction of a run that has ended, which alone it still takes. */
  readonly onEnded?: boolean;
  /** Rows in `waits` whose calls these events answer. */
  readonly settles?: readonly string[];
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
  /** All events; or, when the view begins at a marker, those from its tail's first on. */
  readonly events: readonly CapstanEvent[];
  readonly marked?: {
    /** The first event of the whole line. */
    readonly created: EventOf<"run.created">;
    /** The run's own first event, when its view begins with another run's and the events do not hold it. */
    readonly own?: EventOf<"run.created">;
    readonly marker: EventOf<"context.compacted">;
    /** Of the run that the events begin in. */
    readonly definitionSha: string | undefined;
  };
}

export interface ChildOutcome {
  readonly index: number;
  readonly agent: string;
  readonly runId: string;
  readonly output?: JsonValue;
  readonly error?: { readonly code: string; readonly message: string };
}

export interface JournalStore {
  /** Row and events from the view's start; undefined when there is no such run. Throws EventUnknownError, EventInvalidError. */
  load(runId: string): Promise<LoadedRun | undefined>;
  /** The run's line from its first event to the one before position `below`, page by page. */
  eventsBelow(runId: string, below: number): AsyncIterable<CapstanEvent>;
  pendingInbox(runId: string, limit: number): Promise<InboxItem[]>;
  /**
   * Throws SeqConflictError, LeaseLostError, RunFinishedError, RunMissingError. Survives a lost connection: it waits
   * for the database and finds out whether its commit arrived.
   */
  append(request: AppendRequest): Promise<AppendOutcome>;
  /** Gives a held run back without writing an event, and wants a job. No error when the lease is gone. */
  giveBack(runId: string, token: number, wishAt: "now" | Date | undefined): Promise<void>;
  /** Which of these runs are no longer held under these tokens, and which are and were asked to stop. */
  called(held: readonly { readonly runId: string; readonly token: number }[]): Promise<{ readonly runId: string; readonly why: "lost" | "stopped" }[]>;
  /** How the runs ended that a call had started, in the call's order. */
  childOutcomes(runId: string, call: string): Promise<ChildOutcome[]>;
  /** What those runs took, with all that they started. */
  childSpending(runId: string, call: string): Promise<Spent>;
}

export interface PromotedDefinition {
  readonly sha: string;
  readonly definition: AgentDefinition;
  /** No run is started by its name any more. */
  readonly isRetired: boolean;
}

export interface DefinitionStore {
  get(sha: string): Promise<AgentDefinition | undefined>;
  /** Also of a retired agent: runs that were enqueued before it retired are served. */
  promoted(name: string): Promise<PromotedDefinition | undefined>;
}

export interface BlobStore {
  /** Stores once per tenant and content; gives the hex sha256. */
  put(tenant: string, runId: string, content: Uint8Array, mediaType: string): Promise<{ sha256: string; sizeBytes: number }>;
  get(tenant: string, sha256: string): Promise<Uint8Array | undefined>;
  /** Some bytes of a blob that this run refers to; undefined for another run's or tenant's, as for one that does not exist. */
  page(blob: { readonly tenant: string; readonly runId: string; readonly sha256: string }, from: number, limit: number): Promise<BlobPage | undefined>;
}

export interface BlobPage {
  readonly sizeBytes: number;
  readonly mediaType: string;
  readonly bytes: Uint8Array;
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

/** A compaction's task as its claimant has it: everything it needs is in the request that the journal holds. */
export interface CompactionTask {
  readonly id: string;
  readonly runId: string;
  readonly tenant: string;
  readonly agent: string;
  readonly viewEpoch: number;
  /** Of the task, not of the run: raised by each claim. */
  readonly fencingToken: number;
  /** Claims so far, this one included. */
  readonly attempts: number;
  readonly request: EventPayload<"compaction.requested">;
  readonly runEnded: boolean;
  /** It has come to its hard line since, and stands still for this. */
  readonly runWaits: boolean;
  readonly turn: number;
  /** Since it was requested, by the database's clock. */
  readonly ageMs: number;
}

export type CompactionResult =
  | { readonly kind: "ready"; readonly summarized: Summarized }
  | { readonly kind: "failed"; readonly reason: CompactionReason; readonly detail: JsonObject };

/** The tasks between a request and its marker. All writes of a claimant are under the task's own fence. */
export interface CompactionTasks {
  /** What came of a task that is `ready`; undefined while it is not. */
  result(taskId: string): Promise<{ readonly viewEpoch: number; readonly result: CompactionResult } | undefined>;
  claim(taskId: string): Promise<CompactionTask | undefined>;
  /** False when the task is no longer the claimant's. Puts the outcome into the run's inbox. */
  finish(task: CompactionTask, result: CompactionResult): Promise<boolean>;
  /** Back to `requested`, not before `inMs` from now. */
  again(task: CompactionTask, inMs: number, waitReason: "retry" | "quota"): Promise<boolean>;
  /** Those of the claims that are not ours any more, or whose run has ended. */
  lost(held: readonly { readonly id: string; readonly token: number }[]): Promise<string[]>;
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
  event(name: string, attributes: { readonly [key: string]: string | number | boolean }): void;
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

/** One effect on the outside world: a model call, a summary or a tool execution. */
export interface Effect {
  readonly kind: "model" | "tool" | "summary";
  /** The model's full name, or the tool's; of a summary the model that writes it, or the registered summarizer's name where no model does. */
  readonly name: string;
  readonly runId: string;
  readonly tenant: string;
  readonly agent: string;
  readonly turn: number;
  readonly attempt: number;
  /** Patterns of what the agent may use (domain/grants.ts). */
  readonly grants: readonly string[];
  /** Resources that must all be granted. Default: `model:<name>`, `tool:<name>`, `summarizer:<name>`. */
  readonly needs?: readonly string[];
  /** What a guard judges, and may rewrite for tools and summaries: a CanonicalCall, a tool's arguments, a summarizer's input. */
  readonly request?: unknown;
  /** The operator's own system prompt: a model request with another is refused. */
  readonly system?: string;
  /** Origins of tainted content in the request (domain/taint-origins.ts). */
  readonly taint?: readonly string[];
  /** The most that the call can take: reserved before it where a quota applies. */
  readonly estimate?: EffectEstimate;
}

export interface EffectEstimate {
  readonly inputTokens: number;
  readonly maxOutputTokens: number;
  readonly costUsdMicros: number;
}

/** How a compaction ended in the journal, for counters. */
export interface CompactionReport {
  readonly runId: string;
  readonly agent: string;
  readonly tenant: string;
  readonly trigger: string;
  /** `applied`, `requested`, `prepared`, or the reason why nothing was changed. */
  readonly outcome: string;
  readonly tokensSaved?: number;
  readonly calls?: number;
  readonly costUsdMicros?: number;
  /** From the request to the marker, by this worker's clock where it knows both. */
  readonly durationMs?: number;
}

export interface EffectReport {
  readonly outcome: string;
  readonly durationMs: number;
  readonly inputTokens?: number;
  readonly outputTokens?: number;
  readonly costUsdMicros?: number;
  /** Nobody said what the call cost: it counts as its reservation. */
  readonly possiblyBilled?: boolean;
}

/** A call that has passed grant, quota and guard. Exactly one of the two is called, once. */
export interface Admission {
  /** What is to be executed: `effect.request`, or what the guard made of it. */
  readonly request: unknown;
  /** Executes, settles, meters. */
  run<T>(execute: () => Promise<T>, report: (result: T) => Omit<EffectReport, "durationMs">): Promise<T>;
  /** The call is not made after all: nothing is charged. */
  abandon(): Promise<void>;
}

/**
 * The one place through which every effect passes, in this order: grant, quota, guard, execute, meter. Throws
 * CapabilityRefusedError when the call may not be made (domain/capability-error.ts); then nothing was executed.
 */
export interface EffectRing {
  /** For who must write something between the decision and the call. */
  admit(effect: Effect): Promise<Admission>;
  /** `execute` is given what is to be executed, which a guard may have rewritten. */
  perform<T>(effect: Effect, execute: (request: unknown) => Promise<T>, report: (result: T) => Omit<EffectReport, "durationMs">): Promise<T>;
}

/** Opaque to all but the gate that gave it. */
export interface QuotaReservation {
  readonly id: string;
}

export type QuotaGrant =
  /** `reservation` is undefined when no quota applies: then there is nothing to settle. */
  | { readonly kind: "granted"; readonly reservation: QuotaReservation | undefined }
  | { readonly kind: "exhausted"; readonly bucket: string; readonly retryAfterMs: number; readonly neverFits?: { readonly needed: number; readonly limit: number } };

export interface QuotaGate {
  reserve(effect: Effect, estimate: EffectEstimate): Promise<QuotaGrant>;
  /** `reserved` when nobody knows what the call took. Never throws: a result must not be lost for its bill. */
  settle(reservation: QuotaReservation, actual: { readonly calls: number; readonly tokens: number; readonly costUsdMicros: number } | "reserved"): Promise<void>;
}

/** Where live text of model calls goes: to whoever follows the run, and nowhere when nobody does. */
export interface Deltas {
  /** Makes a call with a listener for its deltas, which never throws, waits or fails the call. */
  during<T>(call: DeltaCall, work: (onDelta: (this: void, delta: ModelDelta) => void) => Promise<T>): Promise<T>;
}

export interface DeltaCall {
  readonly runId: string;
  readonly tenant: string;
  readonly turn: number;
  readonly attempt: number;
}
