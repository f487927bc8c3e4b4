/**
 * One followed run: a place in its journal that is read on as it grows, and the followers. Those who have all events up
 * to that place are live: they get each further event when it is read, and live text. The others are behind, because
 * they have just come or take slowly: they are given pages from where they are, until they are live.
 *
 *   behind --page reaches the feed's seq--> live --no room when an event comes--> behind
 */
import type { Ear } from "../../client/delta-listener.ts";
import type { RunEvent } from "../../client/handle.ts";
import { LiveFeed } from "../../client/live-feed.ts";
import type { JsonObject } from "../../domain/json.ts";
import type { LiveMessage, RunDelta } from "../../domain/delta.ts";
import type { Follower } from "./follower.ts";
import { deltaFrames, endFrame, eventFrame, problemFrame } from "./frames.ts";
import type { Head, StartedHead } from "./read-pages.ts";

export class RunFeed implements Ear {
  readonly runId: string;
  readonly followers = new Set<Follower>();
  /** The last event that was told to those who are live; undefined until the run was looked up. */
  seq: number | undefined;
  readonly #live = new LiveFeed();
  readonly #onWish: () => void;
  readonly #left = new AbortController();
  #mustRead = false;
  #isTelling = false;
  /** Set once the run has ended and all its events were told. */
  #endState: string | undefined;

  constructor(runId: string, onWish: () => void) {
    this.runId = runId;
    this.#onWish = onWish;
  }

  hear(message: LiveMessage): void {
    this.#live.hear(message);
    if (message.is === "appended") this.mustRead();
    else if (!this.#isTelling) this.#tellDeltas();
  }

  look(): void {
    this.mustRead();
  }

  /** The run has ended, and those who are live were told so: what is left are some who are behind. */
  get isOver(): boolean {
    return this.#endState !== undefined;
  }

  /** The journal has grown, or may have. */
  mustRead(): void {
    this.#mustRead = true;
    this.#onWish();
  }

  add(follower: Follower): void {
    this.followers.add(follower);
    // A marker may have come behind the end since it was last looked at.
    this.#endState = undefined;
    this.mustRead();
  }

  started({ head, call }: StartedHead): void {
    if (head.missing) return;
    if (call !== undefined) this.#live.startAt(call);
    this.seq = head.lastSeq;
  }

  /** Where pages are wanted from: behind the last event told, and behind the one who is furthest back and can take something. */
  wishes(): { readonly after: number; readonly isLive: boolean }[] {
    const { seq } = this;
    if (seq === undefined) return [];
    let back = seq;
    for (const follower of this.followers) if (follower.cursor < back && follower.hasRoom) back = follower.cursor;
    return [...(this.#mustRead && !this.#isTelling ? [{ after: seq, isLive: true }] : []), ...(back < seq ? [{ after: back, isLive: false }] : [])];
  }

  /** To be called before a live page is read; what it gives belongs to `tell`. */
  reading(): number {
    this.#mustRead = false;
    return this.#live.looking();
  }

  /** The next events of the journal, for those who are live. */
  tell(events: readonly RunEvent[], head: Head, looked: number): void {
    if (head.missing) return;
    if (events.length === 0) this.#told(head, looked);
    else {
      this.#isTelling = true;
      void this.#tell(events).then(() => {
        this.#isTelling = false;
        this.#told(head, looked);
      });
    }
  }

  /** Events behind `after`, for those who are behind. */
  catchUp(after: number, events: readonly RunEvent[]): void {
    const { seq: upTo = 0 } = this;
    const frames = events.filter(({ seq }) => seq <= upTo).map((event) => ({ seq: event.seq, frame: eventFrame(event) }));
    for (const follower of this.followers) {
      if (follower.cursor < after || follower.cursor >= upTo) continue;
      for (const { seq, frame } of frames) {
        if (seq <= follower.cursor) continue;
        if (!follower.offer(frame)) break;
        follower.cursor = seq;
      }
      // Retention has taken what was between.
      if (frames.length === 0 && follower.hasRoom) follower.cursor = upTo;
    }
    this.#endThoseWhoHaveAll();
    this.#onWish();
  }

  fail(problem: JsonObject): void {
    const frame = problemFrame(problem);
    for (const follower of this.followers) follower.finish(frame);
  }

  /** Nobody follows any more. */
  leave(): void {
    this.#left.abort();
  }

  /** Waits, in between, for live text that an event has overtaken; hence not in the hub's own loop. */
  async #tell(events: readonly RunEvent[]): Promise<void> {
    for (const event of events) {
      for await (const delta of this.#live.before(event, this.#left.signal)) this.#giveDeltas([delta]);
      const frame = eventFrame(event);
      for (const follower of this.followers) {
        if (follower.cursor !== this.seq || !follower.offer(frame)) continue;
        follower.cursor = event.seq;
      }
      this.seq = event.seq;
    }
  }

  #told(head: Head & { readonly missing: false }, looked: number): void {
    if (this.seq === head.lastSeq) {
      this.#live.seen(looked);
      this.#endState = head.ended ? head.state : undefined;
      this.#endThoseWhoHaveAll();
    } else this.#mustRead = true;
    this.#tellDeltas();
    this.#onWish();
  }

  #endThoseWhoHaveAll(): void {
    if (this.#endState === undefined || this.#mustRead || this.#isTelling) return;
    const frame = endFrame(this.#endState);
    for (const follower of this.followers) if (follower.cursor >= (this.seq ?? 0)) follower.finish(frame);
  }

  #tellDeltas(): void {
    this.#giveDeltas([...this.#live.take()]);
    if (this.#live.mustLook && !this.#mustRead) this.mustRead();
  }

  #giveDeltas(deltas: readonly RunDelta[]): void {
    if (deltas.length === 0) return;
    const frame = deltaFrames(deltas);
    for (const follower of this.followers) if (follower.deltas && follower.cursor === this.seq) follower.offer(frame);
  }
}
