/**
 * What a follower has heard of a run's model calls, and which of it may be shown: deltas of a call come after its
 * `model.requested` and before the event that ends it, whatever the order in which notifications and events are read.
 */
import type { LiveMessage, RunDelta } from "../domain/delta.ts";
import type { Ear } from "./delta-listener.ts";
import type { RunEvent } from "./handle.ts";
import { waitFor } from "./wait-for.ts";

/** A reader that is slower than the model: what it has not taken is dropped, the oldest first, and it sees a gap in `n`. */
const MAX_HEARD = 2_000;
/**
 * An event that ends a call waits so long for the rest of the call's deltas, which come on another way. Only where some of
 * them were shown, so it is the busy server or the lost connection that takes the time; too little would lose the tail.
 */
const REST_WITHIN_MS = 1_000;

/** The types that begin and end a call. */
export const callEvents: readonly string[] = ["model.requested", "model.responded", "model.failed", "turn.stopped"];

interface Call {
  readonly turn: number;
  readonly attempt: number;
}

type Heard = { readonly at: number } & Extract<LiveMessage, { is: "delta" | "last" }>;

const endings: ReadonlySet<string> = new Set(["model.responded", "model.failed", "turn.stopped", "run.parked", "run.completed", "run.failed", "run.cancelled"]);

export class LiveFeed implements Ear {
  #heard: Heard[] = [];
  #count = 0;
  /** The newest call that is known: its deltas may be shown unless it is over. Those of earlier calls may not. */
  #call: Call = { turn: 0, attempt: 0 };
  #isOver = true;
  /** Deltas of the call were shown, and their end was not heard. */
  #isAwaited = false;
  #mustLook = false;
  #wake: () => void = () => {};

  hear(message: LiveMessage): void {
    if (message.is === "appended") return this.look();
    if (message.is === "who") return;
    if (this.#heard.length >= MAX_HEARD) this.#heard.shift();
    this.#heard.push({ ...message, at: ++this.#count });
    this.#wake();
  }

  look(): void {
    this.#mustLook = true;
    this.#wake();
  }

  /** The newest of `callEvents` before the cursor with which following begins. */
  startAt({ type, turn, attempt }: Pick<RunEvent, "type" | "turn" | "attempt">): void {
    if (type === "model.requested") this.#begin({ turn, attempt });
    // The next call, of this turn or another, comes with its own request.
    else this.#call = { turn, attempt: Number.POSITIVE_INFINITY };
  }

  /** To be called before the journal is read. Gives what `seen` wants to know. */
  looking(): number {
    this.#mustLook = false;
    return this.#count;
  }

  /** The journal should be read now: it has grown, or a delta belongs to a call of which nothing is known. */
  get mustLook(): boolean {
    const [next] = this.#heard;
    return this.#mustLook || (next !== undefined && compare(next, this.#call) > 0);
  }

  /** Deltas that come before this event. */
  async *before(event: RunEvent, signal: AbortSignal | undefined): AsyncGenerator<RunDelta> {
    if (event.type === "model.requested") {
      this.#begin(event);
      return;
    }
    if (!endings.has(event.type)) return;
    if (event.type.startsWith("model.") && compare(event, this.#call) > 0) this.#begin(event);
    yield* this.take();
    const until = performance.now() + REST_WITHIN_MS;
    for (let leftMs = REST_WITHIN_MS; this.#isAwaited && leftMs > 0 && signal?.aborted !== true; leftMs = until - performance.now()) {
      await this.change(leftMs, signal);
      yield* this.take();
    }
    this.#isOver = true;
    this.#isAwaited = false;
  }

  /**
   * The journal was read to its end, from `looking` on. A request is committed before its call is made: what was heard
   * before, and is of a call that the journal does not know, came from nobody who works on this run.
   */
  seen(looked: number): void {
    this.#heard = this.#heard.filter((heard) => heard.at > looked || compare(heard, this.#call) <= 0);
  }

  /** What may be shown now. */
  *take(): Generator<RunDelta> {
    for (;;) {
      this.#dropPast();
      const [next] = this.#heard;
      if (next === undefined || compare(next, this.#call) > 0) return;
      this.#heard.shift();
      this.#isAwaited = next.is === "delta";
      if (next.is !== "delta") continue;
      const { is: _is, at: _at, ...delta } = next;
      yield delta;
    }
  }

  /** Resolves when something is heard, the time is over, or the signal fires. */
  async change(ms: number, signal: AbortSignal | undefined): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#wake = resolve;
    await waitFor(promise, ms, signal);
  }

  #begin({ turn, attempt }: Call): void {
    this.#call = { turn, attempt };
    this.#isOver = false;
    this.#isAwaited = false;
  }

  #dropPast(): void {
    for (;;) {
      const [next] = this.#heard;
      if (next === undefined) return;
      const order = compare(next, this.#call);
      if (order > 0 || (order === 0 && !this.#isOver)) return;
      this.#heard.shift();
    }
  }
}

function compare(a: Call, b: Call): number {
  return a.turn - b.turn || a.attempt - b.attempt;
}
