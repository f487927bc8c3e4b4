/**
 * Sends live text to followers: notifications of one worker process, gathered for a moment and sent in one statement on a
 * connection of their own. A transaction that notifies takes a lock of the whole server until it is written, so nothing
 * is sent unless somebody has said that he follows the run, and nobody's turn waits for it.
 *
 * Followers announce their runs every few seconds (FOLLOW_CHANNEL). That is kept in memory only and runs out by itself: a
 * follower that dies leaves nothing behind, and a database that nobody follows is not written to at all.
 */
import { parseAnnouncement, type LiveMessage, type ModelDelta } from "../domain/delta.ts";
import type { DeltaCall, Deltas, Log } from "../engine/ports.ts";
import { CallDeltas } from "./call-deltas.ts";

/** Three announcements of a follower may be lost before its runs are forgotten (client/delta-listener.ts, RENEW_MS). */
const FOLLOWED_FOR_MS = 15_000;
/**
 * Text is gathered for so long: readable as it comes, and at most some twelve statements a second and process, beside one
 * for each call that begins: its first piece is sent at once, so that followers know before its end that there is more.
 */
const GATHER_MS = 80;
/** Beyond this the oldest announcement is dropped: anybody who may connect may announce. */
const MAX_FOLLOWED = 10_000;

export interface DeltaSenderOptions {
  readonly log: Log;
  readonly clockMs: () => number;
  /** Sends notifications, in order. Rejects when they were not sent. */
  send(messages: readonly LiveMessage[]): Promise<void>;
}

export class DeltaSender implements Deltas {
  readonly #options: DeltaSenderOptions;
  /** Followed runs, and until when; in the order in which they were announced last. */
  readonly #followed = new Map<string, number>();
  readonly #waiting = new Set<CallDeltas>();
  readonly #grown = new Set<string>();
  #timer: NodeJS.Timeout | undefined;
  #isSoon = false;
  #sending: Promise<void> | undefined;

  constructor(options: DeltaSenderOptions) {
    this.#options = options;
  }

  /** An announcement of a follower. */
  announced(payload: string | undefined): void {
    const runs = parseAnnouncement(payload)?.runs ?? [];
    const until = this.#options.clockMs() + FOLLOWED_FOR_MS;
    for (const run of runs) {
      this.#followed.delete(run);
      this.#followed.set(run, until);
    }
    for (const [run, end] of this.#followed) {
      if (end > until - FOLLOWED_FOR_MS && this.#followed.size <= MAX_FOLLOWED) break;
      this.#followed.delete(run);
    }
  }

  /** The run's journal has grown: followers need not wait for their next poll. */
  appended(runId: string): void {
    if (!this.#isFollowed(runId)) return;
    this.#grown.add(runId);
    this.#schedule();
  }

  async during<T>(call: DeltaCall, work: (onDelta: (this: void, delta: ModelDelta) => void) => Promise<T>): Promise<T> {
    const deltas = new CallDeltas(call);
    try {
      return await work((delta) => this.#take(deltas, delta));
    } finally {
      deltas.end();
      this.#want(deltas);
    }
  }

  /** Sends what waits. To be called when no call is in flight any more. */
  async stop(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    await this.#sending;
    await this.#flush();
  }

  /** Whatever a model hands over, or does with it: its call goes on. */
  #take(deltas: CallDeltas, delta: ModelDelta): void {
    if (!this.#isFollowed(deltas.call.runId)) return deltas.skip();
    try {
      const outgoing = outgoingDelta(deltas.call, delta);
      if (outgoing !== undefined) deltas.add(outgoing);
    } catch (error) {
      deltas.skip();
      this.#options.log.debug({ runId: deltas.call.runId, err: error }, "a piece of live text was left out");
    }
    this.#want(deltas);
  }

  #isFollowed(runId: string): boolean {
    const until = this.#followed.get(runId);
    return until !== undefined && until > this.#options.clockMs();
  }

  #want(deltas: CallDeltas): void {
    if (deltas.isEmpty) return;
    this.#waiting.add(deltas);
    this.#schedule(deltas.isFirst);
  }

  /** One statement at a time: a database that is slow gets larger messages, not more of them. */
  #schedule(isSoon = false): void {
    if (this.#sending !== undefined || (this.#timer !== undefined && (this.#isSoon || !isSoon))) return;
    clearTimeout(this.#timer);
    this.#isSoon = isSoon;
    this.#timer = setTimeout(
      () => {
        this.#timer = undefined;
        this.#sending = this.#flush().finally(() => {
          this.#sending = undefined;
          if (this.#waiting.size > 0 || this.#grown.size > 0) this.#schedule();
        });
      },
      isSoon ? 0 : GATHER_MS,
    );
    this.#timer.unref();
  }

  async #flush(): Promise<void> {
    const calls = [...this.#waiting];
    const grown = [...this.#grown];
    this.#waiting.clear();
    this.#grown.clear();
    // The text first: whoever looks into the journal then has it all.
    const messages: LiveMessage[] = [...calls.flatMap((call) => call.drain()), ...grown.map((runId) => ({ is: "appended", run_id: runId }) as const)];
    if (messages.length === 0) return;
    try {
      await this.#options.send(messages);
    } catch (error) {
      // Hints are not sent again: the journal has what they told, and an answer that is late must not come twice.
      for (const call of calls) call.skip();
      this.#options.log.debug({ err: error, messages: messages.length }, "live text could not be sent");
    }
  }
}

/**
 * The one place through which every delta passes on its way out, before pieces are joined and cut. Gives what may be
 * shown of it, or undefined for nothing. What hides secrets belongs here, and has to hold back text that may be the
 * beginning of one: a piece ends anywhere, also in the middle of a word.
 */
function outgoingDelta(_call: DeltaCall, { kind, text, index, name }: ModelDelta): ModelDelta | undefined {
  // From models of the user's own: typed, and anything all the same.
  if (typeof text !== "string" || (kind !== "text" && kind !== "reasoning" && kind !== "tool_arguments")) return undefined;
  if (kind !== "tool_arguments") return { kind, text };
  return { kind, text, ...(Number.isSafeInteger(index) ? { index } : {}), ...(typeof name === "string" ? { name } : {}) };
}
