/** A follower as a test looks at it while it reads, and what must be true of all that any follower has read. */
import { expect } from "vitest";
import type { FollowItem } from "../../src/client/follow.ts";
import type { RunHandle } from "../../src/client/handle.ts";
import type { RunDelta } from "../../src/domain/delta.ts";
import { until } from "../engine/harness.ts";

export interface Follower {
  readonly items: readonly FollowItem[];
  /** Resolves when following has ended. */
  readonly ended: Promise<void>;
  stop(): Promise<void>;
  /** The text heard so far. */
  text(kind?: RunDelta["kind"]): string;
  untilText(text: string): Promise<void>;
  untilEvent(type: string): Promise<void>;
}

export function follower(handle: Pick<RunHandle, "follow">, options: { readonly after?: number; readonly deltas?: boolean } = {}): Follower {
  const items: FollowItem[] = [];
  const stop = new AbortController();
  const ended = (async () => {
    for await (const item of handle.follow({ ...options, signal: stop.signal })) items.push(item);
  })();
  const text = (kind: RunDelta["kind"] = "text"): string =>
    deltasOf(items)
      .filter((delta) => delta.kind === kind)
      .map((delta) => delta.text)
      .join("");
  return {
    items,
    ended,
    async stop() {
      stop.abort();
      await ended;
    },
    text,
    untilText: async (wanted) => void (await until(`the text ${JSON.stringify(wanted.slice(-60))}, not ${JSON.stringify(text().slice(-60))}`, () => text().endsWith(wanted))),
    untilEvent: async (type) => void (await until(`event ${type}`, () => items.some((item) => item.type === "event" && item.event.type === type))),
  };
}

export function deltasOf(items: readonly FollowItem[]): RunDelta[] {
  return items.flatMap((item) => (item.type === "delta" ? [item.delta] : []));
}

export function seqsOf(items: readonly FollowItem[]): number[] {
  return items.flatMap((item) => (item.type === "event" ? [item.event.seq] : []));
}

/** Events without gap or double; each delta between its call's request and the event that ends the call; `n` rising. */
export function expectInOrder(items: readonly FollowItem[], after = 0): void {
  const seqs = seqsOf(items);
  expect(seqs).toEqual(seqs.map((_, i) => after + i + 1));
  let open: string | undefined;
  let n = -1;
  for (const item of items) {
    if (item.type === "event") {
      const { type, turn, attempt } = item.event;
      if (type === "model.requested") {
        open = `${turn}.${attempt}`;
        n = -1;
      } else if (["model.responded", "model.failed", "turn.stopped"].includes(type)) open = undefined;
      continue;
    }
    const { turn, attempt } = item.delta;
    expect(`${turn}.${attempt}`).toBe(open);
    expect(item.delta.n).toBeGreaterThan(n);
    ({ n } = item.delta);
  }
}
