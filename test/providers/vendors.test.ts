import { describe, expect, test } from "vitest";
import { createModelCatalogue } from "../../src/providers/catalogue.ts";
import { assistant, bench, callFor, contextOf, failed, responded, result, user } from "./support.ts";

const reasoningText = 'I think:\n  "ünïcode" \u2028 and trailing space ';

describe("Anthropic", () => {
  test("keeps thinking and its signature byte for byte and sends both back", async () => {
    await using b = await bench([
      {
        reasoning: [reasoningText, { redacted: "EncryptedStuff==" }],
        text: "So.",
        toolCalls: [{ id: "c", name: "weather", arguments: { city: "Oslo" } }],
        chunkChars: 5,
      },
      { text: "end" },
    ]);
    const first = responded(await b.ask("anthropic", { settings: { reasoningEffort: "high" } }));
    expect(first.content.map((part) => part.type)).toEqual(["reasoning", "reasoning", "text", "tool_call"]);
    expect(first.content[0]).toMatchObject({
      text: reasoningText,
      metadata: { anthropic: { signature: expect.stringMatching(/^sig_/) as string } },
    });
    expect(first.content[1]).toEqual({ type: "reasoning", text: "", metadata: { anthropic: { redactedData: "EncryptedStuff==" } } });
    // Through jsonb and back.
    const stored = JSON.parse(JSON.stringify(first.content)) as typeof first.content;
    responded(await b.ask("anthropic", { messages: [user("a"), assistant(...stored), result("c", "cold")], settings: { reasoningEffort: "high" } }));
    expect(b.server.refused).toEqual([]);
    const sent = (b.server.requests[1]?.body as { messages: { content: unknown[] }[] } | undefined)?.messages[1]?.content;
    expect(sent?.slice(0, 2)).toMatchObject([
      { type: "thinking", thinking: reasoningText },
      { type: "redacted_thinking", data: "EncryptedStuff==" },
    ]);
  });

  test("leaves out other vendors' reasoning, and reasoning that nothing follows", async () => {
    await using b = await bench([{ text: "ok" }]);
    const foreign = { type: "reasoning", text: "hm", metadata: { openai: { itemId: "rs_1", reasoningEncryptedContent: "x" } } } as const;
    responded(
      await b.ask("anthropic", {
        messages: [
          user("a"),
          assistant(foreign, { type: "text", text: "b" }),
          user("c"),
          assistant({ type: "reasoning", text: "cut", metadata: { anthropic: { signature: "s" } } }),
          user("d"),
        ],
      }),
    );
    expect(b.server.refused).toEqual([]);
    expect(b.server.requests[0]?.raw).not.toContain("thinking");
  });

  test("marks system and the given messages for caching, four places at most", async () => {
    await using b = await bench([{ text: "ok" }]);
    const messages = Array.from({ length: 9 }, (_, i) => (i % 2 === 0 ? user(`u${i}`) : assistant({ type: "text", text: `a${i}` })));
    responded(await b.ask("anthropic", { messages, breakpoints: [0, 2, 4, 7, 8] }));
    const body = b.server.requests[0]?.body as { system: object[]; tools: object[]; messages: { content: object[] }[] };
    expect(body.system[0]).toHaveProperty("cache_control");
    expect(body.tools[0]).not.toHaveProperty("cache_control");
    expect(body.messages.flatMap((message, i) => (message.content.some((block) => "cache_control" in block) ? [i] : []))).toEqual([0, 7, 8]);
    responded(await b.ask("anthropic", { system: "", messages, breakpoints: [8] }));
    expect((b.server.requests[1]?.body as { tools: object[] } | undefined)?.tools[0]).toHaveProperty("cache_control");
    expect(b.server.refused).toEqual([]);
  });

  test("always sends max_tokens", async () => {
    await using b = await bench([{ text: "ok" }]);
    responded(await b.ask("anthropic"));
    expect(b.server.requests[0]?.body["max_tokens"]).toBe(32_000);
  });

  test("reports tokens that were counted before a stream broke", async () => {
    await using b = await bench([{ text: "a long text that breaks", cutAfterEvents: 5, usage: { input: 1000, cacheRead: 600, cacheWrite: 100 } }]);
    expect(failed(await b.ask("anthropic")).usage).toEqual({
      input: 1000,
      cache_read: 600,
      cache_write: 100,
      output: 1,
      scale: "provider",
    });
  });

  test("does not hang on to things kept by the vendor", async () => {
    await using b = await bench([{ text: "ok" }]);
    const failure = failed(await b.ask("anthropic", { settings: { providerOptions: { container: { id: "c" } } } }));
    expect(failure).toMatchObject({ code: "PROVIDER_BAD_REQUEST", retryable: false });
    expect(failure.message).toContain('"container"');
    expect(b.server.requests.length).toBe(0);
  });
});

describe("OpenAI Responses", () => {
  test("stores nothing at the vendor and refers to nothing there", async () => {
    await using b = await bench([{ reasoning: reasoningText, text: "So.", toolCalls: [{ id: "c", name: "weather", arguments: { city: "Oslo" } }] }, { text: "end" }]);
    const first = responded(await b.ask("openai-responses"));
    expect(first.content[0]).toMatchObject({
      type: "reasoning",
      text: reasoningText,
      metadata: { openai: { reasoningEncryptedContent: expect.stringMatching(/^sig_/) as string } },
    });
    const stored = JSON.parse(JSON.stringify(first.content)) as typeof first.content;
    responded(await b.ask("openai-responses", { messages: [user("a"), assistant(...stored), result("c", "cold")] }));
    expect(b.server.refused).toEqual([]);
    for (const { body, raw } of b.server.requests) {
      expect(body["store"]).toBe(false);
      expect(body["include"]).toContain("reasoning.encrypted_content");
      expect(raw).not.toContain("previous_response_id");
      expect(raw).not.toContain("item_reference");
    }
    const sent = b.server.requests[1]?.body["input"] as { type?: string; encrypted_content?: string; summary?: { text: string }[] }[];
    const reasoning = sent.find((item) => item.type === "reasoning");
    expect(reasoning?.summary?.[0]?.text).toBe(reasoningText);
    expect(reasoning?.encrypted_content).toMatch(/^sig_/);
  });

  test.each([{ previousResponseId: "resp_1" }, { conversation: "conv_1" }])("refuses %o", async (providerOptions) => {
    await using b = await bench([{ text: "ok" }]);
    expect(failed(await b.ask("openai-responses", { settings: { providerOptions } })).code).toBe("PROVIDER_BAD_REQUEST");
    expect(b.server.requests.length).toBe(0);
  });

  test("classifies the bare error event too", async () => {
    await using b = await bench([
      {
        text: "half of it",
        error: {
          body: { type: "error", code: "server_error", message: "The server had an error", param: null, sequence_number: 9 },
          afterEvents: 6,
        },
      },
    ]);
    expect(failed(await b.ask("openai-responses"))).toMatchObject({
      code: "PROVIDER_UNAVAILABLE",
      retryable: true,
      message: "The server had an error",
    });
  });

  test("does not let a definition store", async () => {
    await using b = await bench([{ text: "ok" }]);
    responded(await b.ask("openai-responses", { settings: { providerOptions: { store: true } } }));
    expect(b.server.requests[0]?.body["store"]).toBe(false);
  });

  test("leaves out reasoning that came without its encrypted content", async () => {
    await using b = await bench([{ text: "ok" }]);
    const bare = { type: "reasoning", text: "hm", metadata: { openai: { itemId: "rs_1", reasoningEncryptedContent: null } } } as const;
    responded(await b.ask("openai-responses", { messages: [user("a"), assistant(bare, { type: "text", text: "b" }), user("c")] }));
    expect(b.server.refused).toEqual([]);
    expect(b.server.requests[0]?.raw).not.toContain("rs_1");
  });

  test("sends a schema with optional members as not strict", async () => {
    await using b = await bench([{ text: "{}" }]);
    responded(
      await b.ask("openai-responses", {
        output: { name: "o", schema: { type: "object", properties: { a: { type: "string" } }, additionalProperties: false } },
      }),
    );
    expect(b.server.requests[0]?.body["text"]).toMatchObject({ format: { type: "json_schema", strict: false } });
  });
});

describe("OpenAI-compatible servers", () => {
  test("that count nothing get an estimate, marked as one", async () => {
    await using b = await bench([{ text: "hello", cutAfterEvents: 3, cutBy: "end" }]);
    expect(responded(await b.ask("openai-chat")).usage).toMatchObject({ scale: "estimate", input: expect.any(Number) as number });
  });

  test("work by name, without a key, and report usage", async () => {
    await using b = await bench([{ reasoning: "hmm", text: "hi", toolCalls: [{ id: "c", name: "weather", arguments: { city: "Oslo" } }] }]);
    const catalogue = createModelCatalogue({
      baseUrls: { ollama: b.server.openaiBaseUrl },
      servers: { local: { baseUrl: b.server.openaiBaseUrl, apiKey: "k", headers: { "x-team": "blue" } } },
    });
    const model = catalogue.resolve("ollama:qwen3:8b", "t1");
    const answer = responded(await model.call({ ...callFor("openai-chat"), model: "ollama:qwen3:8b" }, contextOf()));
    expect(answer.content.map((part) => part.type)).toEqual(["reasoning", "text", "tool_call"]);
    expect(answer.usage.input).toBeGreaterThan(0);
    expect(answer.servedModel).toBe("qwen3:8b");
    expect(b.server.requests[0]?.headers["authorization"]).toBeUndefined();
    responded(await catalogue.resolve("local:m", "t1").call(callFor("openai-chat"), contextOf()));
    expect(b.server.requests[1]?.headers).toMatchObject({ authorization: "Bearer k", "x-team": "blue" });
  });
});
