import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import type { Message } from "../../src/domain/transcript/message.ts";
import { chainConversations, parseConversations, replayScript, type Protocol, type ReplayScript } from "../../src/testing/model-server/index.ts";
import { bench, PROTOCOLS, responded, type Bench } from "./support.ts";

const read = (name: string) => parseConversations(readFileSync(new URL(`../fixtures/conversations/${name}.jsonl`, import.meta.url), "utf8"));
const airline = read("tau-airline");
const coding = read("swe-agent");

/** Conversations in which the model used a call id twice. */
const repeating = airline.filter(({ messages }) => {
  const ids = messages.flatMap((message) => (message.tool_calls ?? []).map((call) => call.id));
  return new Set(ids).size < ids.length;
});

/** Plays a conversation as a worker would: user, answers and results until the recording is over. */
async function play(b: Bench, protocol: Protocol, script: ReplayScript): Promise<Message[]> {
  const tools = script.tools.map((tool) => ({ name: tool.name, description: tool.name, inputSchema: tool.inputSchema }));
  const messages: Message[] = [];
  const inputs = [...script.userInputs];
  for (let k = 0; k < script.answers; k++) {
    if (messages.at(-1)?.role !== "tool") messages.push({ role: "user", content: [{ type: "text", text: inputs.shift() ?? "" }] });
    const { content } = responded(await b.ask(protocol, { system: script.system, tools, messages, breakpoints: [0, messages.length - 1] }));
    messages.push({ role: "assistant", content });
    const calls = content.filter((part) => part.type === "tool_call");
    if (calls.length > 0)
      messages.push({
        role: "tool",
        content: calls.map((call, i) => ({
          type: "tool_result",
          call_id: call.call_id,
          name: call.name,
          output: script.resultOf(k, i) ?? "?",
        })),
      });
  }
  return messages;
}

test("there are recordings with repeated call ids to try", () => {
  expect(repeating.length).toBeGreaterThan(10);
});

test.each(PROTOCOLS)("recorded conversations pass through %s unchanged and unrefused", async (protocol) => {
  for (const conversation of [...coding, ...repeating.slice(0, 5), ...airline.slice(0, 2)]) {
    const script = replayScript(conversation);
    await using b = await bench(script.respond);
    const messages = await play(b, protocol, script);
    expect(b.server.refused).toEqual([]);
    const said = messages
      .filter((message) => message.role === "assistant")
      .map(({ content }) => ({
        text: content.flatMap((part) => (part.type === "text" ? [part.text] : [])).join(""),
        calls: content.flatMap((part) => (part.type === "tool_call" ? [[part.call_id, part.name, part.input]] : [])),
      }));
    const recorded = conversation.messages
      .filter((message) => message.role === "assistant")
      .map((message) => ({
        text: message.content ?? "",
        calls: (message.tool_calls ?? []).map((call) => [call.id, call.function.name, JSON.parse(call.function.arguments) as unknown]),
      }));
    expect(said).toEqual(recorded);
  }
});

test.each(PROTOCOLS)("answers by transcript over %s, so that a repeated request gets the same answer", async (protocol) => {
  const script = replayScript(coding[0] as (typeof coding)[number]);
  await using b = await bench((request) => (request.index % 2 === 0 ? { error: { status: 500 } } : script.respondByTranscript(request)));
  const again: Bench = {
    ...b,
    ask: async (...args) => (await b.ask(...args), b.ask(...args)),
    [Symbol.asyncDispose]: () => Promise.resolve(),
  };
  expect((await play(again, protocol, script)).filter((message) => message.role === "assistant").length).toBe(script.answers);
});

test("results are found by their place, also where one answer uses an id twice", () => {
  const call = (id: string) => ({ id, function: { name: "f", arguments: '{"x":1}' } });
  const script = replayScript({
    id: "made",
    messages: [
      { role: "user", content: "go" },
      { role: "assistant", content: null, tool_calls: [call("a"), call("b"), call("a")] },
      { role: "tool", tool_call_id: "b", content: "second" },
      { role: "tool", tool_call_id: "a", content: "first" },
      { role: "tool", tool_call_id: "a", content: "third" },
      { role: "assistant", content: null, tool_calls: [call("a")] },
    ],
  });
  expect([0, 1, 2, 3].map((k) => script.resultOf(0, k))).toEqual(["first", "second", "third", undefined]);
  expect(script.resultOf(1, 0)).toBeUndefined();
  expect(script.tools).toEqual([{ name: "f", argumentNames: ["x"], inputSchema: { type: "object", properties: { x: {} } } }]);
});

test("a chain is one conversation of hundreds of turns", async () => {
  const script = replayScript(chainConversations(airline.slice(0, 20)));
  expect(script.answers).toBeGreaterThan(200);
  expect(script.tools.length).toBeGreaterThan(5);
  await using b = await bench(script.respond);
  await play(b, "openai-chat", { ...script, answers: 60 });
  expect(b.server.refused).toEqual([]);
});
