import { expect, test } from "vitest";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { assistant, callFor, contextOf, failed, responded, user } from "./support.ts";

const call = callFor("anthropic");

test("answers in order, records the calls and streams the text", async () => {
  const model = scriptedModel([
    "one",
    {
      text: "two",
      toolCalls: [
        { name: "weather", input: { city: "Oslo" } },
        { name: "weather", arguments: "{" },
      ],
      usage: { input: 5, output: 6 },
    },
    (request) => ({ text: request.system }),
  ]);
  const deltas: string[] = [];
  const context = contextOf({ onDelta: (delta) => deltas.push(delta.text) });
  expect(responded(await model.call(call, context))).toMatchObject({
    content: [{ type: "text", text: "one" }],
    finish: { reason: "stop" },
    usage: { scale: "estimate" },
  });
  expect(responded(await model.call(call, context))).toMatchObject({
    content: [{ text: "two" }, { type: "tool_call", call_id: "call_2_1", input: { city: "Oslo" } }, { call_id: "call_2_2", arguments: "{", invalid: expect.any(String) as string }],
    finish: { reason: "tool_calls" },
    usage: { input: 5, output: 6, scale: "provider" },
  });
  expect(() => model.assertDone()).toThrow("steps never used: 3");
  expect(responded(await model.call(call, context)).content).toMatchObject([{ text: "You are terse." }]);
  expect(deltas).toEqual(["one", "two", '{"city":"Oslo"}', "{", "You are terse."]);
  expect(model.calls).toEqual([call, call, call]);
  model.assertDone();
});

test("fails as told", async () => {
  const model = scriptedModel([{ failure: { code: "PROVIDER_RATE_LIMITED", retryAfterMs: 3 } }, { failure: { code: "CONTEXT_OVERFLOW" } }]);
  expect(failed(await model.call(call, contextOf()))).toMatchObject({ retryable: true, countsAsAttempt: false, retryAfterMs: 3 });
  expect(failed(await model.call(call, contextOf()))).toMatchObject({ code: "CONTEXT_OVERFLOW", retryable: false, countsAsAttempt: true });
});

test("ends a delay or a hang when aborted", async () => {
  for (const step of [{ text: "late", delayMs: 60_000 }, { hang: true }]) {
    const controller = new AbortController();
    const outcome = scriptedModel([step]).call(call, contextOf({ signal: controller.signal }));
    setImmediate(() => controller.abort());
    expect(await outcome).toEqual({ kind: "aborted" });
  }
});

test("tells of failed expectations and of calls without a step", async () => {
  const model = scriptedModel([{ text: "x", expect: (request) => expect(request.messages.length).toBe(7) }]);
  expect(failed(await model.call(call, contextOf()))).toMatchObject({
    retryable: false,
    message: expect.stringContaining("step 1 refused the request") as string,
  });
  expect(failed(await model.call(call, contextOf())).message).toContain("no step for call 2");
  expect(() => model.assertDone()).toThrow(/step 1 refused[\s\S]*no step for call 2/);
});

test("by turn, a repeated call gets the same step", async () => {
  const model = scriptedModel(["one", "two"], { by: "turn" });
  expect(responded(await model.call(call, contextOf())).content).toMatchObject([{ text: "one" }]);
  expect(responded(await model.call(call, contextOf())).content).toMatchObject([{ text: "one" }]);
  const next = { ...call, messages: [user("hello"), assistant({ type: "text", text: "one" }), user("on")] };
  expect(responded(await model.call(next, contextOf())).content).toMatchObject([{ text: "two" }]);
});
