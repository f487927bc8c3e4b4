/**
 * One worker's hold on one run: events are staged (and folded at once), then committed under the run's guards. After a
 * refusal the memory is ahead of the journal and must be dropped; `Refused` says so.
 */
import { budgetLevel } from "../domain/budget.ts";
import type { RunState } from "../domain/fold.ts";
import { evolve } from "../domain/fold.ts";
import { growthLevel } from "../domain/growth.ts";
import { newEvent, type EventEnvelope, type EventPayload, type EventType, type NewEvent, type WaitReason } from "../domain/event.ts";
import type { CallFrame } from "../domain/transcript/render.ts";
import type { EngineDeps } from "./deps.ts";
import type { AppendOutcome, JournalStore } from "./ports.ts";
import { remember, type RunMemory } from "./run-memory.ts";
import { isTerminal } from "../domain/run.ts";
import { RunMissingError, SeqConflictError } from "../domain/append-error.ts";

/** The append was not written though nothing is wrong: somebody was first, or input waits. Look again. */
export class Refused extends Error {
  readonly outcome: Exclude<AppendOutcome, { kind: "appended" }>;
  constructor(outcome: Exclude<AppendOutcome, { kind: "appended" }>) {
    super(`append refused: ${outcome.kind}`);
    this.outcome = outcome;
  }
}

export interface CommitOptions {
  readonly release?: boolean;
  readonly wish?: "now" | Date;
  /** Refused when more items than this wait in the inbox besides those that are applied. */
  readonly inboxAtMost?: number;
  readonly turnDone?: boolean;
}

/** Reasons that time alone may end: their wish says when. */
const timedReasons: ReadonlySet<WaitReason> = new Set(["retry", "quota", "approval", "children", "signal", "timer"]);

type Envelope = Partial<Pick<EventEnvelope, "attempt" | "stepKey" | "origin" | "actor" | "inboxId">> & { readonly turn?: number };

export class RunSession {
  memory: RunMemory;
  readonly #store: JournalStore;
  readonly #clockMs: () => number;
  readonly #redact: EngineDeps["redact"];
  #staged: NewEvent[] = [];
  #applied: { id: string; seq: number }[] = [];
  #settled: string[] = [];
  /** seq of the last committed event. */
  #committedSeq: number;
  #token: number | undefined;
  /** The frame by which the transcript is measured; undefined until the definition is known. */
  frame: CallFrame | undefined;
  windowTokens: number | undefined;
  spanContext: string | undefined;
  takenOver = false;
  /** Of the last commit: which compaction is in flight, and the view's epoch. */
  committed: { compaction: string | undefined; epoch: number };

  constructor(store: JournalStore, memory: RunMemory, clockMs: () => number, redact?: EngineDeps["redact"]) {
    this.#store = store;
    this.#clockMs = clockMs;
    this.#redact = redact;
    this.memory = memory;
    this.#committedSeq = memory.state.seq;
    this.committed = committedOf(memory.state);
  }

  get state(): RunState {
    return this.memory.state;
  }

  /** The fencing token while the run is held. */
  get token(): number | undefined {
    return this.#token;
  }

  get hasStaged(): boolean {
    return this.#staged.length > 0;
  }

  get transcriptBytes(): number {
    return this.frame === undefined ? this.memory.row.transcriptBytes : this.memory.meter.bytes(this.frame, this.state);
  }

  stage<T extends EventType>(type: T, payload: EventPayload<T>, envelope: Envelope = {}): void {
    const { state } = this;
    this.#stageEvent(newEvent(type, this.#redact?.(type, payload) ?? payload, { turn: state.turn, attempt: 0, epoch: state.epoch, ...envelope }));
  }

  /** Takes an item that has nothing to say any more out of the inbox. */
  consume(inboxId: string): void {
    this.#applied.push({ id: inboxId, seq: this.state.seq });
  }

  /** Whether an item of the inbox is taken by what is staged: until the commit the inbox still shows it. */
  hasTaken(inboxId: string): boolean {
    return this.#applied.some(({ id }) => id === inboxId);
  }

  /** What is staged answers the call that waited under this id. */
  settle(waitId: string): void {
    this.#settled.push(waitId);
  }

  #stageEvent(event: NewEvent): void {
    const seq = this.state.seq + 1;
    this.#staged.push(event);
    evolve(this.state, { ...event, seq });
    if (event.inboxId !== undefined) this.#applied.push({ id: event.inboxId, seq });
  }

  /**
   * Commits what is staged together with the run's end (or rest), which is written only if the inbox is empty: that is
   * checked in the same statement. If input has come, what was staged before the end is committed without it.
   */
  async commitEnd(stageEnd: () => void, wish?: Date, inboxAtMost = 0): Promise<"ended" | "input_waits"> {
    const before = this.#staged;
    const settled = [...this.#settled];
    const consumed = this.#applied.filter(({ id }) => !before.some((event) => event.inboxId === id));
    this.#staged = [...before];
    stageEnd();
    try {
      await this.commit({ release: true, inboxAtMost, turnDone: true, ...(wish === undefined ? {} : { wish }) });
      return "ended";
    } catch (error) {
      if (!(error instanceof Refused) || error.outcome.kind !== "inbox") throw error;
    }
    await this.#reload();
    for (const event of before) this.#stageEvent(event);
    this.#settled = settled;
    this.#applied.push(...consumed);
    if (before.length > 0) await this.commit({ turnDone: true });
    return "input_waits";
  }

  async #reload(): Promise<void> {
    const loaded = await this.#store.load(this.memory.row.id);
    if (loaded === undefined) throw new RunMissingError(this.memory.row.id);
    const { definition } = this.memory;
    this.memory = { ...remember(loaded, this.#clockMs()), definition };
    this.#staged = [];
    this.#applied = [];
    this.#settled = [];
    if (this.state.seq !== this.#committedSeq) throw new SeqConflictError(this.memory.row.id, this.#committedSeq, this.state.seq);
  }

  /** Commits what is staged; takes the run if it is not held yet. Throws Refused and the journal's four errors. */
  async commit({ release = false, wish, inboxAtMost, turnDone = false }: CommitOptions = {}): Promise<void> {
    const { memory, state } = this;
    const transcriptBytes = this.transcriptBytes;
    const numbers = { transcriptBytes, journalBytes: memory.journalBytes, contextTokens: state.contextTokens, windowTokens: this.windowTokens };
    const level = memory.definition === undefined ? memory.growthLevel : growthLevel(memory.definition, numbers);
    const outcome = await this.#store.append({
      runId: memory.row.id,
      expectedSeq: this.#committedSeq,
      seqOffset: memory.row.seqOffset,
      guard: this.#token === undefined ? { kind: "claim" } : { kind: "held", token: this.#token },
      applied: this.#applied,
      ...(inboxAtMost === undefined ? {} : { inboxAtMost }),
      ...(isTerminal(memory.row.status) ? { onEnded: true } : {}),
      ...(this.#settled.length === 0 ? {} : { settles: this.#settled }),
      events: this.#staged,
      patch: {
        status: state.status === "queued" && !release ? "running" : state.status,
        waitReason: state.waitReason,
        wakeAt: wish instanceof Date && state.waitReason !== undefined && timedReasons.has(state.waitReason) ? wish : undefined,
        turn: state.turn,
        transcriptBytes,
        viewEpoch: state.epoch,
        viewMarker: state.marker,
        contextTokens: state.contextTokens,
        contextScale: state.contextScale,
        contextWindow: this.windowTokens,
        usage: state.usage,
        growthLevel: level,
        budgetLevel: budgetLevel(state.budget),
        retryCount: state.modelFailures,
        errorCode: state.error?.code,
        definitionSha: state.definitionSha,
        lastSpan: this.spanContext,
        resetCrashes: turnDone,
      },
      release,
      wish,
    });
    if (outcome.kind !== "appended") throw new Refused(outcome);
    this.#staged = [];
    this.#applied = [];
    this.#settled = [];
    this.#committedSeq = state.seq;
    this.committed = committedOf(state);
    this.#token = release ? undefined : outcome.token;
    this.takenOver ||= outcome.takenOver;
    memory.inboxPending = outcome.inboxPending;
    memory.paused = outcome.paused;
    memory.journalBytes = outcome.journalBytes;
    memory.growthLevel = level;
  }
}

function committedOf({ compaction, epoch }: RunState): RunSession["committed"] {
  return { compaction: compaction.task?.id, epoch };
}
