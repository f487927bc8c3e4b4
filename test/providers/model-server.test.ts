import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startModelServer, type ModelServer } from "../../src/testing/model-server/index.ts";

let server: ModelServer;
beforeAll(async () => {
  server = await startModelServer({ respond: () => ({ reasoning: "hm", text: "hello", toolCalls: [{ name: "f", arguments: { a: 1 } }] }) });
});
afterAll(() => server.close());

async function post(path: string, body: object | string): Promise<{ status: number; body: { error?: { message?: string; type?: string } } & Record<string, unknown> }> {
  const response = await fetch(server.url + path, { method: "POST", body: typeof body === "string" ? body : JSON.stringify(body) });
  return { status: response.status, body: (await response.json()) as never };
}

const use = (id: string) => ({ type: "tool_use", id, name: "f", input: {} });
const answer = (id: string) => ({ type: "tool_result", tool_use_id: id, content: "ok" });
const u = (content: unknown) => ({ role: "user", content });
const a = (content: unknown) => ({ role: "assistant", content });
const text = (said: string) => ({ type: "text", text: said });
const marked = { ...text("x"), cache_control: { type: "ephemeral" } };

describe("Anthropic Messages", () => {
  const ask = (over: object) => post("/v1/messages", { model: "m", max_tokens: 10, messages: [u("hi")], ...over });

  test("answers without streaming", async () => {
    expect((await ask({})).body).toMatchObject({
      type: "message",
      content: [
        { type: "thinking", thinking: "hm" },
        { type: "text", text: "hello" },
        { type: "tool_use", name: "f", input: { a: 1 } },
      ],
      stop_reason: "tool_use",
    });
  });

  test("accepts what the vendor accepts", async () => {
    const tools = [{ name: "f", description: "d", input_schema: { type: "object" }, eager_input_streaming: true, cache_control: { type: "ephemeral" } }];
    expect((await ask({ tools, messages: [u([text("hi")]), a([text("x"), use("1"), use("2")]), u([answer("2"), answer("1"), text("and?")])] })).status).toBe(200);
  });

  test.each([
    ["unknown field", { surprise: 1 }, /surprise: Extra inputs are not permitted/],
    ["no max_tokens", { max_tokens: undefined }, /max_tokens: Field required/],
    ["no messages", { messages: [] }, /at least one message/],
    ["unknown field of a block", { messages: [u([{ ...text("x"), id: 1 }])] }, /messages\.0\.content\.0\.text\.id: Extra inputs/],
    ["unknown field of a tool", { tools: [{ name: "f", input_schema: { type: "object" }, parameters: {} }] }, /tools\.0\.custom\.parameters: Extra inputs/],
    ["two tools of one name", { tools: [1, 2].map(() => ({ name: "f", input_schema: { type: "object" } })) }, /Tool names must be unique/],
    ["a call without its result", { messages: [u("a"), a([use("1")]), u("b")] }, /without `tool_result` blocks immediately after: 1/],
    ["one of two results", { messages: [u("a"), a([use("1"), use("2")]), u([answer("1")])] }, /immediately after: 2/],
    ["a result behind text", { messages: [u("a"), a([use("1")]), u([text("b"), answer("1")])] }, /immediately after: 1/],
    ["a call at the end", { messages: [u("a"), a([use("1")])] }, /immediately after: 1/],
    ["a result without its call", { messages: [u("a"), a("b"), u([answer("1")])] }, /unexpected `tool_use_id` found in `tool_result` blocks: 1/],
    ["two results for a call", { messages: [u("a"), a([use("1")]), u([answer("1"), answer("1")])] }, /multiple `tool_result` blocks with id: 1/],
    ["repeated call ids", { messages: [u("a"), a([use("1")]), u([answer("1")]), a([use("1")]), u([answer("1")])] }, /ids must be unique/],
    ["a strange call id", { messages: [u("a"), a([use("a:b")]), u([answer("a:b")])] }, /should match pattern/],
    ["empty text", { messages: [u([text("")])] }, /must be non-empty/],
    ["blank text", { messages: [u([text(" \n")])] }, /non-whitespace/],
    ["empty content", { messages: [u([]), a("b")] }, /must have non-empty content/],
    ["the assistant first", { messages: [a("b"), u("a")] }, /first message must use the "user" role/],
    ["a role twice", { messages: [u("a"), u("b")] }, /roles must alternate/],
    ["a system message", { messages: [{ role: "system", content: "x" }, u("a")] }, /Unexpected role "system"/],
    ["changed thinking", { messages: [u("a"), a([{ type: "thinking", thinking: "other", signature: "sig_x" }, text("b")]), u("c")] }, /Invalid `signature` in `thinking` block/],
    ["five cache marks", { messages: [u(Array.from({ length: 5 }, () => marked))] }, /A maximum of 4 blocks with cache_control may be provided. Found 5/],
  ])("refuses %s", async (_name, over, message) => {
    const { status, body } = await ask(over);
    expect(status).toBe(400);
    expect(body).toMatchObject({
      type: "error",
      error: { type: "invalid_request_error", message: expect.stringMatching(message) as string },
    });
  });
});

describe("Chat Completions", () => {
  const ask = (over: object) => post("/v1/chat/completions", { model: "m", messages: [u("hi")], ...over });
  const calling = (...ids: string[]) => ({
    role: "assistant",
    content: null,
    tool_calls: ids.map((id) => ({ id, type: "function", function: { name: "f", arguments: "{}" } })),
  });
  const tool = (tool_call_id: string) => ({ role: "tool", tool_call_id, content: "ok" });

  test("answers without streaming", async () => {
    expect((await ask({})).body).toMatchObject({
      object: "chat.completion",
      choices: [
        {
          message: { role: "assistant", content: "hello", tool_calls: [{ function: { name: "f", arguments: '{"a":1}' } }] },
          finish_reason: "tool_calls",
        },
      ],
    });
  });

  test.each([
    ["unknown field", { surprise: 1 }, /Unrecognized request argument supplied: surprise/],
    ["unknown field of a message", { messages: [{ ...u("a"), cache_control: {} }] }, /Unknown parameter: 'messages\[0\]\.cache_control'/],
    ["a call without its result", { messages: [u("a"), calling("1", "2"), tool("1"), u("b")] }, /did not have response messages: 2/],
    ["a result without its call", { messages: [u("a"), tool("1")] }, /must be a response to a preceeding message/],
    ["repeated call ids", { messages: [u("a"), calling("1"), tool("1"), calling("1"), tool("1")] }, /Duplicate tool call id: 1/],
    ["a long call id", { messages: [u("a"), calling("x".repeat(41)), tool("x".repeat(41))] }, /maximum length 40/],
    ["no content", { messages: [{ role: "user", content: null }] }, /expected a string, got null/],
  ])("refuses %s", async (_name, over, message) => {
    expect(await ask(over)).toMatchObject({
      status: 400,
      body: { error: { type: "invalid_request_error", message: expect.stringMatching(message) as string } },
    });
  });
});

describe("Responses", () => {
  const ask = (over: object) => post("/v1/responses", { model: "m", input: [u("hi")], store: false, ...over });
  const call = (call_id: string) => ({ type: "function_call", call_id, name: "f", arguments: "{}" });
  const output = (call_id: string) => ({ type: "function_call_output", call_id, output: "ok" });

  test("answers without streaming, and encrypts reasoning only when asked", async () => {
    const plain = (await ask({})).body["output"] as object[];
    expect(plain).toMatchObject([{ type: "reasoning" }, { type: "message" }, { type: "function_call", arguments: '{"a":1}' }]);
    expect(plain[0]).not.toHaveProperty("encrypted_content");
    expect(((await ask({ include: ["reasoning.encrypted_content"] })).body["output"] as object[])[0]).toHaveProperty("encrypted_content");
  });

  test.each([
    ["unknown field", { surprise: 1 }, 400, /Unknown parameter: 'surprise'/],
    ["a call without its output", { input: [u("a"), call("1")] }, 400, /No tool output found for function call 1/],
    ["an output without its call", { input: [u("a"), output("1")] }, 400, /No tool call found for function call output with call_id 1/],
    ["repeated call ids", { input: [u("a"), call("1"), output("1"), call("1"), output("1")] }, 400, /Duplicate function call/],
    ["a reference to a stored item", { input: [{ type: "item_reference", id: "rs_1" }] }, 404, /Items are not persisted/],
    ["reasoning by id only", { input: [u("a"), { type: "reasoning", id: "rs_1", summary: [] }, a("b")] }, 404, /not found/],
    ["changed reasoning", { input: [u("a"), { type: "reasoning", id: "rs_1", summary: [], encrypted_content: "x" }, a("b")] }, 400, /could not be verified/],
  ])("refuses %s", async (_name, over, status, message) => {
    expect(await ask(over)).toMatchObject({ status, body: { error: { message: expect.stringMatching(message) as string } } });
  });
});

test("does not know other routes, and says when the script itself fails", async () => {
  expect((await post("/v1/nope", {})).status).toBe(404);
  expect((await post("/v1/messages", "{")).body.error?.message).toContain("not valid JSON");
  await using broken = await startModelServer({
    respond: () => {
      throw new Error("my mistake");
    },
  });
  const response = await fetch(`${broken.url}/v1/messages`, {
    method: "POST",
    body: JSON.stringify({ model: "m", max_tokens: 1, messages: [u("a")] }),
  });
  expect(await response.text()).toContain("my mistake");
});
