import { MockLanguageModelV4, simulateReadableStream } from "ai/test";
import { expect, test } from "vitest";
import type { Model } from "../../src/engine/model-port.ts";
import { createModelCatalogue, ModelConfigError } from "../../src/providers/catalogue.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { bench, callFor, contextOf, failed, responded, user } from "./support.ts";

const keys = { ANTHROPIC_API_KEY: "a", OPENAI_API_KEY: "o" };

function problem(resolve: () => Model): ModelConfigError {
  try {
    resolve();
  } catch (error) {
    if (error instanceof ModelConfigError) return error;
    throw error;
  }
  throw new Error("expected a ModelConfigError");
}

test.each(["nope:x", "claude-sonnet-4-5", "anthropic:", ":x", "constructor:x"])("refuses the name %s and lists the providers", (name) => {
  const error = problem(() => createModelCatalogue({ env: keys, servers: { vllm: { baseUrl: "http://v/v1" } } }).resolve(name, "t"));
  expect(error.code).toBe("MODEL_UNKNOWN");
  expect(error.message).toContain("anthropic, openai, openai-chat, ollama, vllm");
});

test.each([
  ["anthropic:claude-sonnet-4-5", "ANTHROPIC_API_KEY"],
  ["openai:gpt-5", "OPENAI_API_KEY"],
  ["openai-chat:gpt-5", "OPENAI_API_KEY"],
])("names the missing key of %s when the model is looked up", (name, variable) => {
  for (const env of [{}, { [variable]: "" }]) {
    const error = problem(() => createModelCatalogue({ env }).resolve(name, "t"));
    expect(error.code).toBe("MODEL_KEY_MISSING");
    expect(error.message).toContain(variable);
  }
});

test("refuses a base URL that is none", () => {
  expect(problem(() => createModelCatalogue({ env: { ...keys, ANTHROPIC_BASE_URL: "localhost:1" } }).resolve("anthropic:x", "t")).code).toBe("MODEL_CONFIG_INVALID");
});

test("uses a tenant's own key, and base URLs from the environment with or without version", async () => {
  await using b = await bench([{ text: "ok" }]);
  const catalogue = createModelCatalogue({
    env: { ANTHROPIC_API_KEY: "shared", ANTHROPIC_BASE_URL: `${b.server.url}/` },
    keysByTenant: { acme: { anthropic: "acme-key" } },
  });
  for (const tenant of ["acme", "other"]) responded(await catalogue.resolve("anthropic:claude-sonnet-4-5", tenant).call(callFor("anthropic"), contextOf({ tenant })));
  expect(b.server.requests.map((request) => request.headers["x-api-key"])).toEqual(["acme-key", "shared"]);
});

test("opens offline models, by the given function or its own, and lists them for a name that is none", () => {
  expect(createModelCatalogue().resolve("offline:auditor", "t").name).toBe("offline:auditor");
  const error = problem(() => createModelCatalogue().resolve("offline:x", "t"));
  expect(error.code).toBe("MODEL_UNKNOWN");
  expect(error.message).toContain("offline:auditor");
  const offline = scriptedModel(["hi"]);
  expect(createModelCatalogue({ offline: () => offline }).resolve("offline:any", "t")).toBe(offline);
});

test("takes any model of the ecosystem, and fails it in our codes", async () => {
  const usage = {
    inputTokens: { total: 10, noCache: 4, cacheRead: 6, cacheWrite: undefined },
    outputTokens: { total: 3, text: 3, reasoning: undefined },
  };
  const chunks = [
    { type: "stream-start", warnings: [] },
    { type: "source", sourceType: "url", id: "s", url: "http://x" },
    { type: "text-start", id: "1" },
    { type: "text-delta", id: "1", delta: "hi" },
    { type: "text-end", id: "1" },
    { type: "something-new" },
    { type: "finish", finishReason: { unified: "stop", raw: "done" }, usage },
  ];
  const good = new MockLanguageModelV4({
    doStream: () => Promise.resolve({ stream: simulateReadableStream({ chunks: chunks as never[] }) }),
  });
  const bad = new MockLanguageModelV4({ doStream: () => Promise.reject(new Error("no")) });
  const catalogue = createModelCatalogue({
    models: { "mine:good": good, "mine:bad": bad, "mine:model": scriptedModel(["x"]) },
    windows: { "mine:good": 1234 },
  });
  const model = catalogue.resolve("mine:good", "t");
  expect(model.window).toEqual({ tokens: 1234, source: "setting" });
  expect(responded(await model.call(callFor("anthropic"), contextOf()))).toEqual({
    kind: "responded",
    content: [{ type: "text", text: "hi" }],
    finish: { reason: "stop", raw: "done" },
    usage: { input: 10, output: 3, cache_read: 6, scale: "provider" },
  });
  expect(failed(await catalogue.resolve("mine:bad", "t").call(callFor("anthropic"), contextOf())).code).toBe("PROVIDER_BAD_RESPONSE");
  expect(problem(() => catalogue.resolve("mine:other", "t")).message).toContain("mine:good, mine:bad, mine:model");
});

test("ends a call of a model that does not heed its signal", async () => {
  const deaf = new MockLanguageModelV4({ doStream: () => new Promise(() => {}) });
  const controller = new AbortController();
  const outcome = createModelCatalogue({ models: { "mine:deaf": deaf } })
    .resolve("mine:deaf", "t")
    .call(callFor("anthropic"), contextOf({ signal: controller.signal }));
  setImmediate(() => controller.abort());
  expect(await outcome).toEqual({ kind: "aborted" });
});

test("cancels the stream of a model that does not heed its signal", async () => {
  const controller = new AbortController();
  const { promise: cancelled, resolve } = Promise.withResolvers<void>();
  const stream = new ReadableStream<never>({ cancel: () => resolve() });
  const endless = new MockLanguageModelV4({ doStream: () => Promise.resolve({ stream }) });
  const outcome = createModelCatalogue({ models: { "mine:endless": endless } })
    .resolve("mine:endless", "t")
    .call(callFor("anthropic"), contextOf({ signal: controller.signal }));
  setImmediate(() => controller.abort());
  expect(await outcome).toEqual({ kind: "aborted" });
  await cancelled;
});

test("loads media by digest for the tenant, and fails in words when it is gone", async () => {
  await using b = await bench([{ text: "a cat" }]);
  const file = (sha256: string) =>
    ({
      role: "user",
      content: [
        { type: "file", media_type: "image/png", sha256, size_bytes: 3 },
        { type: "text", text: "what is it?" },
      ],
    }) as const;
  const asked: string[] = [];
  const catalogue = createModelCatalogue({
    env: keys,
    baseUrls: { anthropic: b.server.anthropicBaseUrl },
    loadMedia: ({ sha256 }, tenant) => {
      asked.push(`${tenant}/${sha256}`);
      return Promise.resolve(sha256 === "gone" ? undefined : new Uint8Array([137, 80, 78]));
    },
  });
  const model = catalogue.resolve("anthropic:claude-sonnet-4-5", "acme");
  responded(await model.call(callFor("anthropic", { messages: [file("abc")] }), contextOf()));
  expect(b.server.requests[0]?.raw).toContain('"data":"iVBO"');
  const failure = failed(await model.call(callFor("anthropic", { messages: [file("gone"), user("x")] }), contextOf()));
  expect(failure).toMatchObject({
    code: "PROVIDER_BAD_REQUEST",
    retryable: false,
    message: expect.stringContaining("media not available") as string,
  });
  expect(asked).toEqual(["acme/abc", "acme/gone"]);
});
