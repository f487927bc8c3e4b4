import { APICallError } from "@ai-sdk/provider";
import { describe, expect, test } from "vitest";
import { classifyFailure } from "../../src/providers/errors.ts";

function apiError(
  statusCode: number | undefined,
  body: object | string,
  over: { responseHeaders?: Record<string, string>; cause?: unknown; isRetryable?: boolean } = {},
): APICallError {
  const responseBody = typeof body === "string" ? body : JSON.stringify(body);
  const message = typeof body === "string" ? body : ((body as { error?: { message?: string } }).error?.message ?? "Bad Request");
  return new APICallError({
    message,
    url: "http://x",
    requestBodyValues: {},
    responseBody,
    ...(statusCode === undefined ? {} : { statusCode }),
    ...over,
  });
}

const classify = (error: unknown, answering = false) => classifyFailure(error, { answering, nowMs: Date.UTC(2027, 0, 1) });
const openAi = (code: string | null, message: string, type = "invalid_request_error") => ({
  error: { message, type, param: "messages", code },
});
const anthropic = (type: string, message: string) => ({ type: "error", error: { type, message } });

describe("context overflow", () => {
  test.each([
    ["Anthropic", apiError(400, anthropic("invalid_request_error", "prompt is too long: 212345 tokens > 200000 maximum"))],
    [
      "Anthropic, input and output together",
      apiError(
        400,
        anthropic("invalid_request_error", "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or `max_tokens` and try again"),
      ),
    ],
    ["Anthropic 413", apiError(413, anthropic("request_too_large", "Request exceeds the maximum size"))],
    ["OpenAI by code", apiError(400, openAi("context_length_exceeded", "Your input exceeds the context window of this model. Please adjust your input and try again."))],
    ["code without a helpful message", apiError(400, openAi("context_length_exceeded", "Bad request"))],
    ["OpenAI Chat Completions", apiError(400, openAi(null, "This model's maximum context length is 128000 tokens. However, your messages resulted in 130001 tokens."))],
    ["code in the text only", apiError(400, "Error code: 400 - code=context_length_exceeded")],
    ["maximum allowed input length", apiError(400, openAi(null, "The input exceeds the maximum allowed input length of 262144 tokens"))],
    ["Ollama", apiError(400, { error: "prompt too long; exceeded max context length by 1234 tokens" })],
    [
      "llama.cpp",
      apiError(400, {
        error: {
          code: 400,
          message: "the request exceeds the available context size (4096 tokens), try increasing it",
          type: "exceed_context_size_error",
        },
      }),
    ],
    ["llama.cpp, older, with status 500", apiError(500, { error: { code: 500, message: "context size has been exceeded", type: "server_error" } })],
    [
      "vLLM",
      apiError(400, {
        object: "error",
        message: "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8000 in the messages, 1000 in the completion).",
        type: "BadRequestError",
        code: 400,
      }),
    ],
    ["vLLM, newer", apiError(400, openAi(null, "The decoder prompt (length 40000) is longer than the maximum model length of 32768."))],
    ["Bedrock", apiError(400, { message: "Input is too long for requested model." })],
    [
      "Gemini",
      apiError(400, {
        error: {
          code: 400,
          message: "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
          status: "INVALID_ARGUMENT",
        },
      }),
    ],
    ["xAI", apiError(400, { error: "This model's maximum prompt length is 131072 but the request contains 150000 tokens." })],
    ["Groq", apiError(400, openAi(null, "Please reduce the length of the messages or completion."))],
    ["Moonshot", apiError(400, openAi(null, "Invalid request: Your request exceeded model token limit: 131072"))],
    [
      "LM Studio",
      apiError(400, {
        error: "Trying to keep the first 9000 tokens when context the overflows. However, the number of tokens to keep is greater than the context length",
      }),
    ],
    ["a proxy's 413", apiError(413, "<html><head><title>413 Request Entity Too Large</title></head></html>")],
    ["413 without words", apiError(413, "")],
    ["inside a stream, as an object", { type: "error", code: "context_length_exceeded", message: "Your input exceeds the context window" }],
    ["inside a stream, by words", { message: "prompt is too long: 3 tokens > 2 maximum", type: "invalid_request_error" }],
  ])("is recognised: %s", (_name, error) => {
    expect(classify(error)).toMatchObject({ code: "CONTEXT_OVERFLOW", retryable: false, countsAsAttempt: true });
  });

  test.each([
    [
      "OpenAI 429, tokens per minute",
      apiError(429, openAi("rate_limit_exceeded", "Request too large for gpt-4.1 in organization org on tokens per min (TPM): Limit 30000, Requested 41000.", "tokens")),
      "PROVIDER_RATE_LIMITED",
    ],
    [
      "Groq 413, tokens per minute",
      apiError(413, openAi("rate_limit_exceeded", "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 7012", "tokens")),
      "PROVIDER_RATE_LIMITED",
    ],
    ["Anthropic 429", apiError(429, anthropic("rate_limit_error", "Number of request tokens has exceeded your per-minute rate limit")), "PROVIDER_RATE_LIMITED"],
    ["Bedrock throttling", apiError(400, { message: "Too many tokens, please wait before trying again. ThrottlingException: rate limit" }), "PROVIDER_RATE_LIMITED"],
    [
      "a tool name that is too long",
      apiError(400, openAi("string_above_max_length_x", "Invalid 'tools[0].function.name': string too long. Expected maximum length 64")),
      "PROVIDER_BAD_REQUEST",
    ],
    [
      "max_tokens above the model's",
      apiError(400, anthropic("invalid_request_error", "max_tokens: 90000 > 64000, which is the maximum allowed number of output tokens for claude")),
      "PROVIDER_BAD_REQUEST",
    ],
    ["overload", apiError(529, anthropic("overloaded_error", "Overloaded")), "PROVIDER_OVERLOADED"],
    ["quota", apiError(429, openAi("insufficient_quota", "You exceeded your current quota, please check your plan and billing details.", "insufficient_quota")), "PROVIDER_AUTH"],
    ["credit", apiError(400, anthropic("invalid_request_error", "Your credit balance is too low to access the Anthropic API.")), "PROVIDER_AUTH"],
  ])("is not seen in: %s", (_name, error, code) => {
    expect(classify(error).code).toBe(code);
  });
});

describe("failures without a status", () => {
  test.each([
    [
      "refused connection",
      apiError(undefined, "Cannot connect to API: connect ECONNREFUSED", {
        isRetryable: true,
        cause: Object.assign(new Error("connect"), { code: "ECONNREFUSED" }),
      }),
      false,
      "PROVIDER_UNAVAILABLE",
    ],
    ["reset before an answer", Object.assign(new Error("read ECONNRESET"), { code: "ECONNRESET" }), false, "PROVIDER_UNAVAILABLE"],
    ["reset within an answer", new TypeError("terminated", { cause: Object.assign(new Error("other side closed"), { code: "UND_ERR_SOCKET" }) }), true, "PROVIDER_STREAM_CUT"],
    ["silence", Object.assign(new Error("Body Timeout Error"), { code: "UND_ERR_BODY_TIMEOUT" }), true, "MODEL_TIMEOUT"],
    ["a streamed server error", { type: "server_error", message: "The server had an error" }, true, "PROVIDER_UNAVAILABLE"],
    ["something unheard of", { strange: true }, true, "PROVIDER_UNAVAILABLE"],
    ["a string", "boom", true, "PROVIDER_UNAVAILABLE"],
    ["nothing", undefined, true, "PROVIDER_UNAVAILABLE"],
    ["a fault of the client", new RangeError("oops"), true, "PROVIDER_BAD_RESPONSE"],
  ] as const)("%s", (_name, error, answering, code) => {
    const failure = classify(error, answering);
    expect(failure).toMatchObject({ code, retryable: true });
    expect(failure.message).not.toBe("");
  });
});

test("a missing model is told from a wrong address", () => {
  expect(classify(apiError(404, anthropic("not_found_error", "model: claude-nope"))).code).toBe("MODEL_UNKNOWN");
  expect(classify(apiError(404, openAi("model_not_found", "The model `x` does not exist"))).code).toBe("MODEL_UNKNOWN");
  expect(classify(apiError(404, "<html>Not Found</html>")).code).toBe("PROVIDER_BAD_REQUEST");
});

test("a wish to wait that stands only in the message is read", () => {
  expect(classify(apiError(429, openAi("rate_limit_exceeded", "Rate limit reached. Please try again in 1.24s."))).retryAfterMs).toBe(1240);
  expect(classify(apiError(429, openAi("rate_limit_exceeded", "Rate limit reached. Please try again in 6m0s."))).retryAfterMs).toBe(360_000);
  expect(
    classify(
      apiError(429, openAi("rate_limit_exceeded", "Rate limit reached."), {
        responseHeaders: { "Retry-After": "Fri, 01 Jan 2027 00:00:05 GMT" },
      }),
    ).retryAfterMs,
  ).toBe(5000);
  expect(classify(apiError(429, "x", { responseHeaders: { "retry-after": "soon" } })).retryAfterMs).toBeUndefined();
});
