/**
 * Advances one run: the whole of what a job does. Every line between two commits is a place where the process may die;
 * what is then found is decided by the phase of the folded journal, never by memory.
 *
 *   claim + request | model call | response (announces its calls) | tools | results + wish
 *
 * Three commits for a turn with tools and one job per turn. While sticky, results and the next request share one.
 */
import { LeaseLostError, RunFinishedError, RunMissingError, SeqConflictError } from "../domain/append-error.ts";
import { CapstanError, recordError } from "../domain/error.ts";
import { callStepKey } from "../domain/event.ts";
import type { TurnPhase } from "../domain/fold.ts";
import { toolOrigin } from "../domain/mcp-name.ts";
import { isTerminal } from "../domain/run.ts";
import { EventInvalidError, EventUnknownError, JournalDamagedError } from "../domain/upcast.ts";
import { atBoundary } from "./boundary.ts";
import { compactEnded } from "./compact-ended.ts";
import type { EngineDeps } from "./deps.ts";
import { hitFailpoint } from "./failpoints.ts";
import { crosses, warnOfGrowth } from "./growth-warning.ts";
import type { CallEnd } from "./execute-call.ts";
import type { HeldRun } from "./in-flight.ts";
import { askModel } from "./model-step.ts";
import { remember, type RunMemory } from "./run-memory.ts";
import { Refused, RunSession } from "./session.ts";
import { runTools } from "./tool-step.ts";
import { TurnSpans } from "./turn-spans.ts";

/** A memory that disagrees with the journal is loaded again; more often than this, somebody else is at work on the run. */
const MAX_LOADS = 4;
/** Results that came quickly may wait for the next request's commit; slow ones are recorded on their own (and input that came meanwhile is seen). */
const MERGE_WITHIN_MS = 25;

/** After a failure inside the engine the run comes round again after this, then after twice as long, and so on, until it is parked. */
const ENGINE_ERROR_PAUSE_MS = 1_000;

/** Thrown inside a turn when its run is cancelled, taken over, or the worker stops. */
export class Interrupted extends Error {
  constructor() {
    super("the turn was interrupted");
  }
}

/** The run changed under every look at it (input that comes faster than it is taken, say). Its job is wished for again. */
class RunContendedError extends CapstanError {
  override readonly name = "RunContendedError";
  readonly code = "RUN_CONTENDED";
  override readonly retryable = true;
  constructor(runId: string) {
    super(`run ${runId} changed each of ${MAX_LOADS} times it was looked at`);
  }
}

export async function advanceRun(deps: EngineDeps, runId: string): Promise<void> {
  hitFailpoint("job.received");
  const held = deps.inFlight.begin(runId, deps.clockMs());
  try {
    for (let load = 1; load <= MAX_LOADS; load++) {
      const memory = deps.cache.take(runId) ?? (await loadMemory(deps, runId));
      if (memory === undefined) return deps.log.warn({ runId }, "a job names a run that does not exist");
      hitFailpoint("run.loaded");
      const turn = new Turn(deps, memory, held);
      if ((await turn.run()) === "done") return;
    }
    throw new RunContendedError(runId);
  } catch (error) {
    // Left alone until the search for lost jobs comes by again: nothing is skipped, and nothing is repeated at once.
    if (error instanceof EventUnknownError) return deps.log.error({ runId, err: error }, "the run needs a newer worker");
    if (error instanceof EventInvalidError || error instanceof JournalDamagedError) return deps.log.error({ runId, err: error }, "the run's journal is damaged");
    throw error;
  } finally {
    deps.inFlight.end(held);
  }
}

async function loadMemory(deps: EngineDeps, runId: string): Promise<RunMemory | undefined> {
  const loaded = await deps.store.load(runId);
  try {
    return loaded && remember(loaded, deps.clockMs());
  } catch (error) {
    throw new JournalDamagedError(runId, { cause: error });
  }
}

/** One job's work on one run. */
export class Turn {
  readonly deps: EngineDeps;
  readonly session: RunSession;
  readonly held: HeldRun;
  readonly spans: TurnSpans;

  constructor(deps: EngineDeps, memory: RunMemory, held: HeldRun) {
    this.deps = deps;
    this.session = new RunSession(deps.store, memory, deps.clockMs, deps.redact);
    this.held = held;
    this.spans = new TurnSpans(deps.tracing, memory.row);
  }

  /** The database's clock, as far as this process can tell: a warm memory may have been loaded many turns ago. */
  get now(): Date {
    const { row, loadedAtMs } = this.session.memory;
    return new Date(row.now.getTime() + (this.deps.clockMs() - loadedAtMs));
  }

  async run(): Promise<"done" | "load_again"> {
    let isSound = false;
    try {
      await this.#drive();
      isSound = true;
      return "done";
    } catch (error) {
      return await this.#afterError(error);
    } finally {
      this.spans.end();
      this.held.token = undefined;
      const { session } = this;
      // A memory that met a conflict is stale even with nothing staged: kept, it would meet the same one in every try.
      if (isSound && !session.hasStaged && session.state.status === "running") this.deps.cache.keep(session.memory, session.transcriptBytes);
    }
  }

  async #drive(): Promise<void> {
    const { session, deps } = this;
    if (isTerminal(session.state.status)) return await compactEnded(this);
    const startedMs = deps.clockMs();
    let turns = 0;
    let justResponded = false;
    for (;;) {
      if (session.state.phase.kind === "calling") {
        const outcome = await runTools(this, justResponded);
        if (outcome.kind === "rest") return;
        hitFailpoint("results.before_append");
        turns++;
        const goOn = this.#mayStick(turns, startedMs);
        if (!goOn) return await this.#handOver();
        // A crossing is told by its own turn, also when the next request would share its commit (G5).
        if (outcome.tookMs > MERGE_WITHIN_MS || this.#crossesNow()) await this.commit({ turnDone: true });
        justResponded = false;
        continue;
      }
      const move = await atBoundary(this);
      if (move.kind === "rest") return;
      const outcome = await askModel(this, move);
      if (outcome === "rest") return;
      // The model is asked again within its turn, by the worker that has the turn in hand.
      if ((session.state.phase as TurnPhase).kind === "failed") continue;
      justResponded = true;
      // An answer that leads to one more turn (input came, or it was corrected) is a turn of its own too.
      if ((session.state.phase as TurnPhase).kind !== "calling") {
        turns++;
        if (!this.#mayStick(turns, startedMs)) return await this.#handOver();
      }
    }
  }

  #mayStick(turns: number, startedMs: number): boolean {
    const { sticky, inFlight, clockMs, othersWait } = this.deps;
    if (inFlight.stopping || sticky === undefined || this.session.memory.paused) return false;
    return (turns < sticky.turns || !othersWait()) && clockMs() - startedMs < sticky.ms;
  }

  /** The end of this job's part: the turn's last commit gives the lease back and wants the next job. */
  async #handOver(): Promise<void> {
    const { session, deps } = this;
    // The crossing turn speaks before it lets go: if this worker dies in between, the lease is still its own, and the
    // worker that takes over speaks (G6). Once per run this costs a commit of its own.
    if (this.#crossesNow()) {
      await this.commit({ turnDone: true });
      hitFailpoint("results.committed");
      const token = session.token as number;
      await deps.store.giveBack(session.memory.row.id, token, "now");
      return;
    }
    if (session.hasStaged || session.token !== undefined) await this.commit({ release: true, wish: "now", turnDone: true });
    hitFailpoint("results.committed");
  }

  #measured = { transcriptBytes: 0, journalBytes: 0, contextTokens: undefined as number | undefined, windowTokens: undefined as number | undefined };
  #spokeForTakeover = false;

  /** Whether what is staged makes the counter pass the warning's threshold. */
  #crossesNow(): boolean {
    const { definition } = this.session.memory;
    return definition !== undefined && crosses(definition, this.#measured.transcriptBytes, this.session.transcriptBytes);
  }

  /** To be called once the transcript can be measured, before anything new is staged. */
  startMeasuring(): void {
    if (this.session.token === undefined) this.#measured = this.#measure();
  }

  #measure() {
    const { session } = this;
    return {
      transcriptBytes: session.transcriptBytes,
      journalBytes: session.memory.journalBytes,
      contextTokens: session.state.contextTokens,
      windowTokens: session.windowTokens,
    };
  }

  async commit(options: Parameters<RunSession["commit"]>[0] = {}): Promise<void> {
    // Dropped before it was claimed (this worker was taken for dead): a claim now would hold a run that nobody works on.
    if (this.session.token === undefined && this.held.reason === "lost") throw new Interrupted();
    this.session.spanContext = this.spans.traceparent;
    const { compaction: before, epoch } = this.session.committed;
    if (this.session.state.compaction.task?.id !== before && this.session.state.compaction.task !== undefined) hitFailpoint("compaction.before_append");
    await this.session.commit(options);
    const { compaction: after, epoch: now } = this.session.committed;
    if (after !== undefined && after !== before) hitFailpoint("compaction.committed");
    if (now !== epoch) hitFailpoint("marker.committed");
    this.#committed();
  }

  /** Records how a call ended; `by` says who answered one that waited. */
  stageEnd(end: Exclude<CallEnd, { type: "call.waiting" }>, by: { readonly inboxId?: string; readonly actor?: string; readonly origin?: string } = {}): void {
    const { session } = this;
    const { index, call } = end.call;
    const base = { call_id: call.call_id, index, name: call.name };
    const envelope = { attempt: end.attempt ?? 1, stepKey: callStepKey(session.state.turn, index), origin: toolOrigin(call.name), ...by };
    switch (end.type) {
      case "tool.completed":
        return session.stage("tool.completed", { ...base, ...end.payload }, envelope);
      case "tool.failed":
        return session.stage("tool.failed", { ...base, ...end.payload }, envelope);
      case "tool.interrupted":
        return session.stage("tool.interrupted", { ...base, ...end.payload }, envelope);
    }
  }

  async commitEnd(stageEnd: () => void, wish?: Date, inboxAtMost = 0): Promise<"ended" | "input_waits"> {
    hitFailpoint("end.before_append");
    this.session.spanContext = this.spans.traceparent;
    const outcome = await this.session.commitEnd(stageEnd, wish, inboxAtMost);
    hitFailpoint("end.committed");
    this.#committed();
    return outcome;
  }

  #afterCommit: (() => void)[] = [];

  /** For what may be said only of what was written: counters, lines of the log. Dropped with a turn whose append is refused. */
  onceCommitted(say: () => void): void {
    this.#afterCommit.push(say);
  }

  #committed(): void {
    const { session, deps } = this;
    for (const say of this.#afterCommit.splice(0)) say();
    this.held.token = session.token;
    const { definition, row } = session.memory;
    // A turn that got this far is not the one that fails.
    if (session.token === undefined) deps.inFlight.forgetEngineError(row.id);
    if (definition === undefined) return;
    const before = this.#measured;
    const after = this.#measure();
    this.#measured = after;
    const takenOver = session.takenOver && !this.#spokeForTakeover;
    this.#spokeForTakeover ||= session.takenOver;
    hitFailpointAtCrossing(definition, before.transcriptBytes, after.transcriptBytes);
    warnOfGrowth({
      runId: row.id,
      agent: row.agent,
      turn: session.state.turn,
      definition,
      before,
      after,
      takenOver,
      agentSink: deps.agents.get(session.state.agent)?.onWarn,
      appSink: deps.onWarn,
      log: deps.log,
    });
  }

  async #afterError(error: unknown): Promise<"done" | "load_again"> {
    const { session, deps, held } = this;
    const runId = session.memory.row.id;
    if (error instanceof Refused) {
      if (error.outcome.kind === "inbox") {
        if (session.token === undefined) return "load_again";
        // A run that is held is not claimed again: given back, it comes round with its input at once.
        await deps.store.giveBack(runId, session.token, "now");
        return "done";
      }
      return "done"; // held by another worker, which wishes for the next job itself; or paused, and resuming wishes
    }
    if (error instanceof SeqConflictError && session.token === undefined) return "load_again";
    // A memory from before its end: what the job came for may be a compaction, which an ended run takes too.
    if (error instanceof RunFinishedError && session.token === undefined) return "load_again";
    // A claim by a worker that was buried: the run is free, and this job was all that it had.
    if (error instanceof LeaseLostError && session.token === undefined) throw error;
    if (error instanceof LeaseLostError || error instanceof RunFinishedError || error instanceof RunMissingError) {
      held.abort("lost");
      deps.log.info({ runId, turn: session.state.turn, code: error.code, ...error.details }, "left a run that is no longer ours");
      return "done";
    }
    if (error instanceof Interrupted && held.reason === "lost") return "done";
    // A defect of ours, or a database that refuses: nothing of this turn is lost, the run is tried again a little later.
    deps.log.error({ runId, turn: session.state.turn, err: error, error: recordError(error, "ENGINE_ERROR") }, "a turn failed inside the engine");
    // Tools still at work must not go on beside the worker that tries next.
    held.abort("lost");
    const times = deps.inFlight.noteEngineError(runId, recordError(error, "ENGINE_ERROR").message);
    const againAt = new Date(this.now.getTime() + ENGINE_ERROR_PAUSE_MS * times);
    if (session.token !== undefined) await deps.store.giveBack(runId, session.token, againAt);
    else throw error;
    return "done";
  }
}

function hitFailpointAtCrossing(definition: Parameters<typeof crosses>[0], before: number, after: number): void {
  if (crosses(definition, before, after)) hitFailpoint("growth.before_warning");
}
