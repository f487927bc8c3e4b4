import { createHash } from "node:crypto";
import { describe, expect, test } from "vitest";
import type { ModelDelta } from "../../src/domain/delta.ts";
import type { Message } from "../../src/domain/transcript/message.ts";
import { assistant, bench, callFor, contextOf, failed, PROTOCOLS, responded, result, user } from "./support.ts";

describe.each(PROTOCOLS)("over %s", (protocol) => {
  test("gives the text, its deltas, the finish reason, who answered and the hash of what was sent", async () => {
    await using b = await bench([{ text: "Hello, wörld 👋 – all well." }]);
    const deltas: string[] = [];
    const answer = responded(await b.ask(protocol, {}, { onDelta: (delta) => deltas.push(delta.text) }));
    expect(answer.content.map(({ type, ...part }) => [type, "text" in part ? part.text : ""])).toEqual([["text", "Hello, wörld 👋 – all well."]]);
    expect(deltas.length).toBeGreaterThan(1);
    expect(deltas.join("")).toBe("Hello, wörld 👋 – all well.");
    expect(answer.finish.reason).toBe("stop");
    expect(answer.servedModel).toBe(callFor(protocol).model.split(":")[1]);
    expect(answer.responseId).toMatch(/_0$/);
    expect(answer.usage).toMatchObject({ scale: "provider" });
    expect(answer.usage.input).toBeGreaterThan(0);
    expect(answer.wire?.sha256).toBe(
      createHash("sha256")
        .update(b.server.requests[0]?.raw ?? "")
        .digest("hex"),
    );
    expect(answer.wire?.client).toMatch(/^@ai-sdk\/[a-z-]+@\d+\.\d+\.\d+$/);
  });

  test("parses streamed arguments of parallel calls and takes their results back", async () => {
    await using b = await bench([
      {
        text: "Looking.",
        toolCalls: [
          { id: "c1", name: "weather", arguments: { city: "Oslo" } },
          { id: "c2", name: "weather", arguments: '{ "city":  "Paris" }' },
        ],
        chunkChars: 3,
      },
      { text: "Cold and mild." },
    ]);
    const deltas: ModelDelta[] = [];
    const first = responded(await b.ask(protocol, {}, { onDelta: (delta) => deltas.push(delta) }));
    const streamed = (kind: ModelDelta["kind"], index?: number) => deltas.filter((delta) => delta.kind === kind && delta.index === index);
    expect(
      streamed("text")
        .map(({ text }) => text)
        .join(""),
    ).toBe("Looking.");
    for (const [index, text] of ['{"city":"Oslo"}', '{ "city":  "Paris" }'].entries()) {
      const pieces = streamed("tool_arguments", index);
      expect(pieces.length).toBeGreaterThan(1);
      expect(new Set(pieces.map(({ name }) => name))).toEqual(new Set(["weather"]));
      expect(pieces.map((delta) => delta.text).join("")).toBe(text);
    }
    expect(first.finish.reason).toBe("tool_calls");
    const calls = first.content.filter((part) => part.type === "tool_call").map(({ call_id, name, input, arguments: written }) => [call_id, name, input, written]);
    expect(calls).toEqual([
      ["c1", "weather", { city: "Oslo" }, undefined],
      ["c2", "weather", { city: "Paris" }, '{ "city":  "Paris" }'],
    ]);
    const messages: Message[] = [
      user("hello"),
      assistant(...first.content),
      {
        role: "tool",
        content: [
          { type: "tool_result", call_id: "c1", name: "weather", output: { celsius: -3, sky: "clear" } },
          { type: "tool_result", call_id: "c2", name: "weather", output: "no data", is_error: true },
        ],
      },
    ];
    expect(responded(await b.ask(protocol, { messages })).content).toMatchObject([{ type: "text", text: "Cold and mild." }]);
    expect(b.server.refused).toEqual([]);
    expect(b.server.requests[1]?.raw).toContain("celsius");
    // Arguments go out in canonical form, however the model had written them.
    expect(b.server.requests[1]?.raw).not.toContain('{ \\"city');
  });

  test("counts cached tokens within the input, and never twice", async () => {
    await using b = await bench([{ text: "one" }, { text: "two" }]);
    const long = "many words ".repeat(400);
    const first = responded(await b.ask(protocol, { system: long, messages: [user("a")], breakpoints: [0] }));
    const messages = [user("a"), assistant({ type: "text", text: "one" }), user("b")];
    const second = responded(await b.ask(protocol, { system: long, messages, breakpoints: [0, 2] }));
    expect(first.usage.cache_read ?? 0).toBe(0);
    expect(second.usage.cache_read).toBeGreaterThan(1000);
    expect(second.usage.input).toBeGreaterThan(second.usage.cache_read as number);
    expect(second.usage.input).toBeLessThan((second.usage.cache_read as number) + 100);
    if (protocol === "anthropic") {
      expect(first.usage.cache_write).toBeGreaterThan(1000);
      expect(first.usage.input).toBe(first.usage.cache_write);
    }
    expect(second.rawUsage).toBeDefined();
  });

  test("sends the same bytes for the same call, and can say which without sending", async () => {
    await using b = await bench([{ text: "x" }]);
    const messages = [user("a"), assistant({ type: "tool_call", call_id: "k", name: "weather", input: { z: 1, city: "Å", "2": [1.5, null] } }), result("k", "ok")];
    const model = b.model(protocol);
    const promised = await model.wireSha256?.(callFor(protocol, { messages, breakpoints: [0, 2] }));
    expect(b.server.requests.length).toBe(0);
    const reordered = [user("a"), assistant({ type: "tool_call", call_id: "k", name: "weather", input: { "2": [1.5, null], city: "Å", z: 1 } }), result("k", "ok")];
    const one = responded(await b.ask(protocol, { messages, breakpoints: [0, 2] }));
    const two = responded(await b.ask(protocol, { messages: reordered, breakpoints: [0, 2] }));
    expect(b.server.requests[1]?.raw).toBe(b.server.requests[0]?.raw);
    expect(one.wire).toEqual(promised);
    expect(two.wire).toEqual(promised);
  });

  test("renders repeated call ids so that the vendor accepts them", async () => {
    await using b = await bench([{ text: "done" }]);
    const call = (city: string) => ({ type: "tool_call", call_id: "same", name: "weather", input: { city } }) as const;
    const messages: Message[] = [
      user("a"),
      assistant(call("one")),
      result("same", "first"),
      assistant(call("two"), call("three")),
      {
        role: "tool",
        content: [
          { type: "tool_result", call_id: "same", name: "weather", output: "second" },
          { type: "tool_result", call_id: "same", name: "weather", output: "third" },
        ],
      },
    ];
    responded(await b.ask(protocol, { messages }));
    expect(b.server.refused).toEqual([]);
    const { raw } = b.server.requests[0] as { raw: string };
    for (const id of ["same", "same_2", "same_3"]) expect(raw.split(`"${id}"`).length).toBe(3);
  });

  test("brings foreign call ids into the vendor's alphabet", async () => {
    await using b = await bench([{ text: "done" }]);
    const id = `functions.weather:0|${"x".repeat(80)}`;
    responded(
      await b.ask(protocol, {
        messages: [user("a"), assistant({ type: "tool_call", call_id: id, name: "weather", input: {} }), result(id, "ok")],
      }),
    );
    expect(b.server.refused).toEqual([]);
  });

  test.each([
    ["not JSON", '{"city": "Oslo', /not valid JSON/],
    ["a number without end", '{"n":1e400}', /Infinity is not a JSON number at \$\.n/],
    ["a list", "[1,2]", /must be a JSON object, not an array/],
  ])("keeps arguments that are %s as invalid, and can go on", async (_name, written, why) => {
    await using b = await bench([{ toolCalls: [{ id: "c1", name: "weather", arguments: written }] }, { text: "sorry" }]);
    const first = responded(await b.ask(protocol));
    const [call] = first.content;
    expect(call).toMatchObject({ type: "tool_call", call_id: "c1", arguments: written, invalid: expect.stringMatching(why) as string });
    expect(call).not.toHaveProperty("input");
    responded(await b.ask(protocol, { messages: [user("a"), assistant(...first.content), result("c1", "arguments do not parse", true)] }));
    expect(b.server.refused).toEqual([]);
  });

  test("passes on a call of an unknown tool and an empty answer", async () => {
    await using b = await bench([{ toolCalls: [{ name: "no_such_tool", arguments: {} }] }, {}, { text: "after" }]);
    expect(responded(await b.ask(protocol)).content).toMatchObject([{ type: "tool_call", name: "no_such_tool", input: {} }]);
    const empty = responded(await b.ask(protocol));
    expect(empty.content).toEqual([]);
    responded(await b.ask(protocol, { messages: [user("a"), assistant(), user("say something")] }));
    expect(b.server.refused).toEqual([]);
  });

  test("reports an answer cut at the token limit", async () => {
    await using b = await bench([{ text: "half an", finish: "length" }]);
    expect(responded(await b.ask(protocol)).finish.reason).toBe("length");
  });

  test("makes strings storable", async () => {
    await using b = await bench([{ text: "a\u0000b", toolCalls: [{ id: "c", name: "weather", arguments: '{"city":"\\ud800"}' }] }]);
    const { content } = responded(await b.ask(protocol));
    expect(content).toMatchObject([{ text: "a\uFFFDb" }, { input: { city: "\uFFFD" } }]);
  });

  test.each(["reset", "end"] as const)("calls a stream that stops early (%s) cut, and retryable", async (cutBy) => {
    await using b = await bench([{ text: "a long text that is never finished", cutAfterEvents: 3, cutBy }]);
    expect(failed(await b.ask(protocol))).toMatchObject({
      code: "PROVIDER_STREAM_CUT",
      retryable: true,
      countsAsAttempt: true,
      wire: { client: expect.any(String) as string },
    });
  });

  test("classifies an error inside the stream", async () => {
    await using b = await bench([{ text: "half of it", error: { status: protocol === "anthropic" ? 529 : 503, message: "Overloaded", afterEvents: 5 } }]);
    const failure = failed(await b.ask(protocol));
    expect(failure).toMatchObject({ code: "PROVIDER_OVERLOADED", retryable: true });
    expect(failure.message).toContain("Overloaded");
  });

  test("recognises an overflow that is told inside the stream", async () => {
    const message = protocol === "anthropic" ? "prompt is too long: 9 tokens > 8 maximum" : "Your input exceeds the context window of this model.";
    await using b = await bench([
      {
        text: "x",
        error: { status: 400, message, ...(protocol === "anthropic" ? {} : { code: "context_length_exceeded" }), afterEvents: 2 },
      },
    ]);
    expect(failed(await b.ask(protocol))).toMatchObject({ code: "CONTEXT_OVERFLOW", retryable: false });
  });

  test.each([
    [{ "retry-after": "7" }, 7000],
    [{ "retry-after-ms": "1500", "retry-after": "7" }, 1500],
    [{ "retry-after": "Fri, 01 Jan 2027 00:00:30 GMT", date: "Fri, 01 Jan 2027 00:00:00 GMT" }, 30_000],
  ])("waits as the vendor wishes after a 429 with %o", async (headers, retryAfterMs) => {
    await using b = await bench([{ error: { status: 429, message: "slow down", headers } }]);
    expect(failed(await b.ask(protocol))).toMatchObject({
      code: "PROVIDER_RATE_LIMITED",
      retryable: true,
      countsAsAttempt: false,
      httpStatus: 429,
      retryAfterMs,
    });
  });

  test.each([
    [500, "PROVIDER_UNAVAILABLE", true],
    [502, "PROVIDER_UNAVAILABLE", true],
    [529, "PROVIDER_OVERLOADED", true],
    [408, "MODEL_TIMEOUT", true],
    [400, "PROVIDER_BAD_REQUEST", false],
    [401, "PROVIDER_AUTH", false],
    [403, "PROVIDER_AUTH", false],
  ])("classifies status %i as %s", async (status, code, retryable) => {
    await using b = await bench([{ error: { status, message: "no" } }]);
    expect(failed(await b.ask(protocol))).toMatchObject({ code, retryable, httpStatus: status, countsAsAttempt: true });
  });

  test("recognises that the input does not fit the window", async () => {
    await using b = await bench([{ text: "never" }], { windowTokens: 50 });
    expect(failed(await b.ask(protocol, { messages: [user("word ".repeat(200))] }))).toMatchObject({
      code: "CONTEXT_OVERFLOW",
      retryable: false,
    });
  });

  test("reports a request that the vendor refuses, with the vendor's words", async () => {
    await using b = await bench([{ text: "never" }]);
    const failure = failed(
      await b.ask(protocol, {
        messages: [user("a"), assistant({ type: "tool_call", call_id: "open", name: "weather", input: {} }), user("b")],
      }),
    );
    expect(failure).toMatchObject({ code: "PROVIDER_BAD_REQUEST", retryable: false });
    expect(failure.message).toBe(b.server.refused[0]?.message);
  });

  test("calls a server that is not there unavailable", async () => {
    const b = await bench([{ text: "never" }]);
    await b.server.close();
    expect(failed(await b.ask(protocol))).toMatchObject({ code: "PROVIDER_UNAVAILABLE", retryable: true });
  });

  test("ends at once when aborted in the middle, and the vendor sees it", async () => {
    await using b = await bench([{ text: "a long text that takes for ever to come", hang: 6 }]);
    const controller = new AbortController();
    const outcome = await b.ask(protocol, {}, { signal: controller.signal, onDelta: () => controller.abort() });
    expect(outcome).toEqual({ kind: "aborted" });
    expect(await b.server.requests[0]?.closed).toBe("aborted");
    expect(b.server.requests[0]?.sawAbort).toBe(true);
  });

  test("ends at once when aborted before anything came, and sends nothing when aborted before", async () => {
    const controller = new AbortController();
    await using b = await bench((request) => {
      setImmediate(() => controller.abort());
      return { hang: true, text: String(request.index) };
    });
    expect(await b.ask(protocol, {}, { signal: controller.signal })).toEqual({ kind: "aborted" });
    expect(await b.server.requests[0]?.closed).toBe("aborted");
    expect(await b.ask(protocol, {}, contextOf({ signal: controller.signal }))).toEqual({ kind: "aborted" });
    expect(b.server.requests.length).toBe(1);
  });

  test("asks for structured output in the vendor's way", async () => {
    await using b = await bench([{ text: '{"ok":true}' }]);
    const schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"], additionalProperties: false };
    expect(b.model(protocol).structuredOutput).toBe(true);
    responded(await b.ask(protocol, { output: { name: "answer", schema } }));
    expect(b.server.requests[0]?.raw).toContain('"json_schema"');
  });

  test("sends settings", async () => {
    await using b = await bench([{ text: "ok" }]);
    responded(
      await b.ask(protocol, {
        settings: {
          maxOutputTokens: 77,
          reasoningEffort: "low",
          providerOptions: protocol === "anthropic" ? { disableParallelToolUse: true } : { parallelToolCalls: false },
        },
      }),
    );
    expect(b.server.requests[0]?.raw).toMatch(/"(?:max_tokens|max_completion_tokens|max_output_tokens)":/);
    expect(b.server.requests[0]?.raw).toMatch(/"(?:parallel_tool_calls":false|disable_parallel_tool_use":true)/);
  });
});
