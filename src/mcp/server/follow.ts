/** A look at a run that waits, but not for ever: until it has ended, waits for somebody, or the time is over. */
import { setTimeout as sleep } from "node:timers/promises";
import type { RunEvent, RunStatusView } from "../../client/handle.ts";
import { isTerminal } from "../../domain/run.ts";

/** What goes on by itself is not worth waking an assistant for. */
const passing: ReadonlySet<string> = new Set(["retry", "quota", "compaction", "timer", "children"]);
const FIRST_PAUSE_MS = 50;
const MAX_PAUSE_MS = 500;

interface Followed {
  /** Something was sent to it that no worker has taken yet: it waits no longer. */
  hasNews(): Promise<boolean>;
  status(): Promise<RunStatusView>;
  events(options: { readonly after: number; readonly follow: false }): AsyncIterable<RunEvent>;
}

export interface Look {
  readonly events: readonly RunEvent[];
  readonly status: RunStatusView;
  /** There are more events than were asked for. */
  readonly hasMore: boolean;
}

export async function lookUntil(
  run: Followed,
  { after, limit, waitMs, signal }: { readonly after: number; readonly limit: number; readonly waitMs: number; readonly signal: AbortSignal },
): Promise<Look> {
  const deadline = performance.now() + waitMs;
  const events: RunEvent[] = [];
  let pauseMs = FIRST_PAUSE_MS;
  for (;;) {
    // In this order: news that is taken meanwhile shows in the status, and events that come meanwhile are only more than it says.
    const hasNews = await run.hasNews();
    const status = await run.status();
    const last = events.at(-1)?.seq ?? after;
    if (status.last_seq > last) {
      for await (const event of run.events({ after: last, follow: false })) {
        if (events.length === limit) return { events, status, hasMore: true };
        events.push(event);
      }
      pauseMs = FIRST_PAUSE_MS;
    }
    const leftMs = deadline - performance.now();
    const waits = status.state === "waiting" && !passing.has(status.wait_reason ?? "");
    if (isTerminal(status.state) || (waits && !hasNews) || leftMs <= 0 || signal.aborted) return { events, status, hasMore: false };
    await sleep(Math.min(pauseMs, leftMs), undefined, { signal }).catch(() => {});
    pauseMs = Math.min(MAX_PAUSE_MS, pauseMs * 1.5);
  }
}
