/** What of the heard is shown, and when: notifications and events come on two ways, in any order. */
import { describe, expect, it } from "vitest";
import type { LiveMessage } from "../../src/domain/delta.ts";
import type { RunEvent } from "../../src/client/handle.ts";
import { LiveFeed } from "../../src/client/live-feed.ts";
import { collect } from "../engine/harness.ts";

const delta = (turn: number, attempt: number, text: string, n = 0): LiveMessage => ({ is: "delta", run_id: "r", turn, attempt, n, kind: "text", text });
const last = (turn: number, attempt: number): LiveMessage => ({ is: "last", run_id: "r", turn, attempt });
const event = (type: string, turn: number, attempt = 1): RunEvent => ({ seq: 1, type, version: 1, turn, attempt, at: "", payload: {} });
const shown = (feed: LiveFeed): string[] => [...feed.take()].map(({ text }) => text);
const before = async (feed: LiveFeed, type: string, turn: number, attempt = 1): Promise<string[]> =>
  (await collect(feed.before(event(type, turn, attempt), undefined))).map(({ text }) => text);

describe("a delta", () => {
  it("waits for its call's request, then comes at once", async () => {
    const feed = new LiveFeed();
    feed.hear(delta(1, 1, "a"));
    expect(shown(feed)).toEqual([]);
    expect(feed.mustLook).toBe(true);
    expect(await before(feed, "model.requested", 1)).toEqual([]);
    feed.hear(delta(1, 1, "b"));
    expect(shown(feed)).toEqual(["a", "b"]);
    expect(feed.mustLook).toBe(false);
  });

  it("of a call that is over is dropped, also one that was never shown", async () => {
    const feed = new LiveFeed();
    await before(feed, "model.requested", 1);
    await before(feed, "model.failed", 1);
    feed.hear(delta(1, 1, "late"));
    expect(shown(feed)).toEqual([]);
    await before(feed, "model.requested", 1, 2);
    // A worker that was taken for dead goes on speaking.
    feed.hear(delta(1, 1, "zombie"));
    feed.hear(delta(1, 2, "b"));
    feed.hear(delta(1, 1, "zombie"));
    feed.hear(delta(1, 2, "c"));
    expect(shown(feed)).toEqual(["b", "c"]);
    feed.hear(delta(1, 2, "d"));
    expect(await before(feed, "run.cancelled", 1)).toEqual(["d"]);
    feed.hear(delta(1, 2, "e"));
    expect(shown(feed)).toEqual([]);
  });

  it("that the response overtook is waited for, and for no longer than its call's last", async () => {
    const feed = new LiveFeed();
    await before(feed, "model.requested", 1);
    feed.hear(delta(1, 1, "a"));
    expect(shown(feed)).toEqual(["a"]);
    const rest = before(feed, "model.responded", 1);
    setTimeout(() => {
      feed.hear(delta(1, 1, "b"));
      feed.hear(last(1, 1));
    }, 30);
    expect(await rest).toEqual(["b"]);
    // Nobody waits where nothing was shown, nor again after the last.
    const startedMs = performance.now();
    await before(feed, "model.requested", 2);
    expect(await before(feed, "model.responded", 2)).toEqual([]);
    expect(performance.now() - startedMs).toBeLessThan(100);
    // A worker that died never says it: the wait ends.
    await before(feed, "model.requested", 3);
    feed.hear(delta(3, 1, "a"));
    expect(shown(feed)).toEqual(["a"]);
    expect(await before(feed, "model.failed", 3)).toEqual([]);
  });

  it("of a call that the journal does not know after a look is nobody's, and does not keep one looking", () => {
    const feed = new LiveFeed();
    feed.hear(delta(7, 1, "forged"));
    const looked = feed.looking();
    feed.hear(delta(8, 1, "newer than the look"));
    feed.seen(looked);
    expect(feed.mustLook).toBe(true);
    feed.seen(feed.looking());
    expect(feed.mustLook).toBe(false);
    expect(shown(feed)).toEqual([]);
  });

  it("comes again after a stop that let the same turn be asked anew", async () => {
    const feed = new LiveFeed();
    await before(feed, "model.requested", 1);
    await before(feed, "turn.stopped", 1);
    await before(feed, "model.requested", 1);
    feed.hear(delta(1, 1, "again"));
    expect(shown(feed)).toEqual(["again"]);
  });
});

describe("a cursor", () => {
  it("in the middle of a call hears it, behind its end does not", () => {
    const inside = new LiveFeed();
    inside.startAt(event("model.requested", 2, 3));
    inside.hear(delta(2, 3, "a"));
    expect(shown(inside)).toEqual(["a"]);
    const behind = new LiveFeed();
    behind.startAt(event("model.responded", 2, 3));
    behind.hear(delta(2, 3, "a"));
    expect(shown(behind)).toEqual([]);
    expect(behind.mustLook).toBe(false);
  });
});

it("a reader that does not read keeps the newest, and no more than so many", async () => {
  const feed = new LiveFeed();
  await before(feed, "model.requested", 1);
  for (let n = 0; n < 5_000; n++) feed.hear(delta(1, 1, `${n}`, n));
  const texts = shown(feed);
  expect(texts).toHaveLength(2_000);
  expect(texts.at(-1)).toBe("4999");
});

it("a waiting reader wakes for a delta, for a journal that has grown, and for its signal", async () => {
  const feed = new LiveFeed();
  for (const wake of [() => feed.hear(delta(1, 1, "a")), () => feed.hear({ is: "appended", run_id: "r" }), () => feed.look()]) {
    const changed = feed.change(20_000, undefined);
    wake();
    await changed;
    expect(feed.mustLook).toBe(true);
    feed.looking();
  }
  const stop = new AbortController();
  const changed = feed.change(20_000, stop.signal);
  stop.abort();
  await changed;
});
