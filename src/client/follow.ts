/** Follows one run: its events in seq order without gap or double, and between them the live text of its model calls. */
import type { RunDelta } from "../domain/delta.ts";
import type { DeltaListener } from "./delta-listener.ts";
import type { RunEvent, RunStatusView } from "./handle.ts";
import { callEvents, LiveFeed } from "./live-feed.ts";

export type FollowItem = { readonly type: "event"; readonly event: RunEvent } | { readonly type: "delta"; readonly delta: RunDelta };

export interface FollowSource {
  readonly runId: string;
  /** The newest event of these types at or before a seq. */
  newest(types: readonly string[], upTo: number): Promise<Pick<RunEvent, "type" | "turn" | "attempt"> | undefined>;
  /** The next events after a seq, at most `pageSize`; undefined when the follower's signal fired. */
  events(after: number): Promise<readonly RunEvent[] | undefined>;
  readonly pageSize: number;
  status(): Promise<Pick<RunStatusView, "state" | "last_seq"> | undefined>;
  /** Absent: no live text, events by polling alone. */
  readonly listener: DeltaListener | undefined;
}

const MIN_PAUSE_MS = 40;
const MAX_PAUSE_MS = 500;

/** Ends with the run; with `follow: false` when what is there now has been given. */
export async function* followRun(source: FollowSource, { after, follow, signal }: { after: number; follow: boolean; signal: AbortSignal | undefined }): AsyncGenerator<FollowItem> {
  const feed = new LiveFeed();
  const leave = source.listener?.join(source.runId, feed);
  let last = after;
  let pauseMs = MIN_PAUSE_MS;
  const isStopped = (): boolean => signal?.aborted === true;
  try {
    const begun = leave === undefined || after <= 0 ? undefined : await source.newest(callEvents, after);
    if (begun !== undefined) feed.startAt(begun);
    while (!isStopped()) {
      const looked = feed.looking();
      const rows = await source.events(last);
      if (rows === undefined) return;
      for (const event of rows) {
        for await (const delta of feed.before(event, signal)) yield { type: "delta", delta };
        yield { type: "event", event };
        last = event.seq;
      }
      if (rows.length === source.pageSize) continue;
      feed.seen(looked);
      const status = await source.status();
      if (status === undefined) return;
      if (status.last_seq > last) continue;
      if (!follow || ["completed", "failed", "cancelled"].includes(status.state)) return;
      pauseMs = rows.length > 0 ? MIN_PAUSE_MS : Math.min(MAX_PAUSE_MS, pauseMs * 1.5);
      const until = performance.now() + pauseMs;
      for (;;) {
        for (const delta of feed.take()) yield { type: "delta", delta };
        const leftMs = until - performance.now();
        if (feed.mustLook || leftMs <= 0 || isStopped()) break;
        await feed.change(leftMs, signal);
      }
    }
  } finally {
    await leave?.();
  }
}
