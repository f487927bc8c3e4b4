/** What a worker sends of live text, to whom and how much of it: no database, a clock and a wire of the test's. */
import fc from "fast-check";
import { expect, it, vi } from "vitest";
import type { LiveMessage, ModelDelta } from "../../src/domain/delta.ts";
import { wellFormedText } from "../../src/domain/json.ts";
import { CallDeltas } from "../../src/queue/call-deltas.ts";
import { DeltaSender } from "../../src/queue/delta-sender.ts";
import { silentLog } from "../../src/telemetry/log.ts";

const call = { runId: "0190c0de-0000-7000-8000-000000000001", tenant: "t", turn: 2, attempt: 1 };
const follow = JSON.stringify({ id: "f", runs: [call.runId] });
const textOf = (messages: readonly LiveMessage[]): string => messages.map((message) => (message.is === "delta" ? message.text : "")).join("");

function bench({ send }: { send?: (messages: readonly LiveMessage[]) => Promise<void> } = {}) {
  const sent: LiveMessage[][] = [];
  let nowMs = 0;
  const sender = new DeltaSender({
    log: silentLog,
    clockMs: () => nowMs,
    async send(messages) {
      await send?.(messages);
      sent.push([...messages]);
    },
  });
  return { sender, sent, all: () => sent.flat(), pass: (ms: number) => void (nowMs += ms) };
}

const say = (onDelta: (delta: ModelDelta) => void, ...texts: readonly string[]): void => {
  for (const text of texts) onDelta({ kind: "text", text });
};

it("whatever is said and however it is cut, the pieces are the text made storable, and each fits into a notification", () => {
  fc.assert(
    fc.property(fc.array(fc.tuple(fc.array(fc.integer({ min: 0, max: 0xffff }), { maxLength: 3_000 }), fc.boolean())), fc.string(), (parts, name) => {
      const deltas = new CallDeltas(call);
      const messages: LiveMessage[] = [];
      const texts = parts.map(([units, isDrained]) => [String.fromCharCode(...units), isDrained] as const);
      for (const [text, isDrained] of texts) {
        deltas.add({ kind: "tool_arguments", text, index: 3, name: name.repeat(200) });
        if (isDrained) messages.push(...deltas.drain());
      }
      deltas.end();
      messages.push(...deltas.drain());
      expect(textOf(messages)).toBe(wellFormedText(texts.map(([text]) => text).join("")));
      expect(messages.flatMap((message) => (message.is === "delta" ? message.n : []))).toEqual(messages.slice(0, -1).map((_, i) => i));
      for (const message of messages) expect(Buffer.byteLength(JSON.stringify(message))).toBeLessThan(8_000);
      if (messages.length > 0) expect(messages.at(-1)?.is).toBe("last");
      expect(deltas.drain()).toEqual([]);
    }),
    { numRuns: 60 },
  );
});

it("sends nothing of runs that nobody follows, and says by n what was left out", async () => {
  const { sender, sent, all, pass } = bench();
  await sender.during(call, async (onDelta) => {
    say(onDelta, "before");
    sender.announced(follow);
    say(onDelta, "a", "b");
    await vi.waitFor(() => expect(textOf(all())).toBe("ab"));
    pass(15_001);
    say(onDelta, "forgotten");
    sender.appended(call.runId);
    sender.announced(follow);
    say(onDelta, "c");
  });
  sender.appended(call.runId);
  sender.appended("another");
  await vi.waitFor(() => expect(all().at(-1)).toEqual({ is: "appended", run_id: call.runId }));
  const place = { run_id: call.runId, turn: 2, attempt: 1 };
  expect(all()).toEqual([
    { is: "delta", ...place, n: 1, kind: "text", text: "ab" },
    { is: "delta", ...place, n: 3, kind: "text", text: "c" },
    { is: "last", ...place },
    { is: "appended", run_id: call.runId },
  ]);
  expect(sent.length).toBeLessThanOrEqual(3);
});

it("gathers: a thousand pieces are a few statements", async () => {
  const { sender, sent, all } = bench();
  sender.announced(follow);
  const texts = Array.from({ length: 1_000 }, (_, i) => `${i} `);
  await sender.during(call, async (onDelta) => {
    for (const text of texts) {
      say(onDelta, text);
      if (text.endsWith("00 ")) await new Promise((resolve) => setTimeout(resolve, 10));
    }
  });
  await sender.stop();
  expect(textOf(all())).toBe(texts.join(""));
  expect(sent.length).toBeLessThan(8);
});

it("never fails or holds up a call: not by a wire that breaks or hangs, nor by a model that hands over rubbish", async () => {
  const gate = Promise.withResolvers<void>();
  const { sender, all } = bench({ send: () => gate.promise });
  sender.announced(follow);
  const rubbish = [undefined, null, {}, { kind: "text" }, { kind: "other", text: "x" }, { kind: "text", text: 7 }] as unknown as ModelDelta[];
  const given = await sender.during(call, async (onDelta) => {
    for (const delta of rubbish) onDelta(delta);
    say(onDelta, "lost");
    await new Promise((resolve) => setTimeout(resolve, 20));
    // The wire is busy: what comes meanwhile is bounded.
    for (let i = 0; i < 100; i++) say(onDelta, "x".repeat(10_000));
    return "the answer";
  });
  expect(given).toBe("the answer");
  gate.reject(new Error("broken"));
  await sender.stop();
  expect(textOf(all()).length).toBeLessThanOrEqual(64 * 1024);
  await expect(sender.during(call, () => Promise.reject(new Error("its own")))).rejects.toThrow("its own");
});

it("remembers a bounded number of followed runs, the newest", async () => {
  const { sender, all } = bench();
  sender.announced(follow);
  for (let i = 0; i < 60; i++) sender.announced(JSON.stringify({ id: "f", runs: Array.from({ length: 200 }, (_, k) => `run ${i} ${k}`) }));
  await sender.during(call, async (onDelta) => say(onDelta, "forgotten"));
  await sender.during({ ...call, runId: "run 59 7" }, async (onDelta) => say(onDelta, "known"));
  await sender.stop();
  expect(textOf(all())).toBe("known");
});
