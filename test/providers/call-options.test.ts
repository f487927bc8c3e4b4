import fc from "fast-check";
import { expect, test } from "vitest";
import type { CanonicalCall } from "../../src/domain/call.ts";
import { canonicalJson, toJsonValue, type JsonObject, type JsonValue } from "../../src/domain/json.ts";
import type { AssistantPart, Message } from "../../src/domain/transcript/message.ts";
import { anthropicVendor } from "../../src/providers/anthropic.ts";
import { toCallOptions } from "../../src/providers/call-options.ts";
import { openAiChatVendor, openAiResponsesVendor } from "../../src/providers/openai.ts";
import { openAiCompatibleVendor } from "../../src/providers/openai-compatible.ts";
import { createModelCatalogue } from "../../src/providers/catalogue.ts";
import { startModelServer } from "../../src/testing/model-server/index.ts";
import { contextOf, MODELS, PROTOCOLS, responded } from "./support.ts";

const settings = { model: "m", apiKey: "k", baseUrl: "http://x/v1" };
const shapes = [anthropicVendor(settings), openAiChatVendor(settings), openAiResponsesVendor(settings), openAiCompatibleVendor({ ...settings, provider: "p" })].map(
  (vendor) => vendor.shape,
);

const text = fc.string({ unit: "grapheme", maxLength: 12 }).map((s) => s.replaceAll("\u0000", "\uFFFD").toWellFormed());
const json = fc.jsonValue({ maxDepth: 2 }).map((value) => {
  const result = toJsonValue(value);
  return result.ok ? result.value : null;
});
const jsonObject = fc.dictionary(text, json, { maxKeys: 3 }).map((value) => JSON.parse(JSON.stringify(value)) as JsonObject);
/** Few ids, so that they repeat. */
const callId = fc.constantFrom("a", "b", "a_2", "call:1", "x".repeat(70));

const exchange: fc.Arbitrary<Message[]> = fc
  .record({
    user: fc.array(text, { minLength: 1, maxLength: 2 }),
    said: text,
    calls: fc.array(fc.record({ id: callId, input: fc.option(jsonObject, { nil: undefined }), output: json, isError: fc.boolean() }), {
      maxLength: 3,
    }),
    after: text,
  })
  .map(({ user, said, calls, after }): Message[] => [
    { role: "user", content: user.map((part) => ({ type: "text", text: part })) },
    {
      role: "assistant",
      content: [
        { type: "text", text: said },
        ...calls.map((call): AssistantPart =>
          call.input === undefined
            ? { type: "tool_call", call_id: call.id, name: "weather", arguments: "{", invalid: "cut" }
            : { type: "tool_call", call_id: call.id, name: "weather", input: call.input },
        ),
      ],
    },
    ...(calls.length === 0
      ? []
      : [
          {
            role: "tool" as const,
            content: calls.map((call) => ({
              type: "tool_result" as const,
              call_id: call.id,
              name: "weather",
              output: call.output,
              ...(call.isError ? { is_error: true } : {}),
            })),
          },
          { role: "assistant" as const, content: [{ type: "text" as const, text: after }] },
        ]),
  ]);

const call: fc.Arbitrary<CanonicalCall> = fc
  .record({
    system: text,
    exchanges: fc.array(exchange, { maxLength: 4 }),
    last: text,
    schema: jsonObject,
    breakpoints: fc.array(fc.nat(12), { maxLength: 5 }),
  })
  .map(({ system, exchanges, last, schema, breakpoints }) => ({
    renderVersion: 1,
    model: "x:m",
    system: system.trim() === "" ? "" : system,
    tools: [{ name: "weather", description: "d", inputSchema: { ...schema, type: "object", properties: {} } }],
    messages: [...exchanges.flat(), { role: "user", content: [{ type: "text", text: last }] }],
    settings: {},
    breakpoints,
  }));

const only = (messages: readonly Message[]): CanonicalCall => ({
  renderVersion: 1,
  model: "x:m",
  system: "",
  tools: [],
  messages,
  settings: {},
  breakpoints: [],
});

test("an answer belongs to the message before it, whatever was left unanswered earlier", () => {
  const asks: Message = { role: "assistant", content: [{ type: "tool_call", call_id: "a", name: "weather", input: {} }] };
  const answer: Message = { role: "tool", content: [{ type: "tool_result", call_id: "a", name: "weather", output: "x" }] };
  const { prompt } = toCallOptions(only([asks, asks, answer]), shapes[0] as (typeof shapes)[number]);
  expect(prompt[2]).toMatchObject({ content: [{ toolCallId: "a_2" }] });
});

test("reasoning is sent only to the vendor that can check it", () => {
  const reasoning = (metadata: JsonObject): AssistantPart => ({ type: "reasoning", text: "r", metadata });
  const kinds = {
    signed: reasoning({ anthropic: { signature: "s" } }),
    redacted: reasoning({ anthropic: { redactedData: "d" } }),
    unsigned: reasoning({ anthropic: {} }),
    // Two parts of one item: the content stands on the last.
    begun: reasoning({ openai: { itemId: "i", reasoningEncryptedContent: null } }),
    ended: reasoning({ openai: { itemId: "i", reasoningEncryptedContent: "e" } }),
    bare: reasoning({ openai: { itemId: "j", reasoningEncryptedContent: null } }),
    none: { type: "reasoning", text: "r" } as AssistantPart,
  };
  const sent = shapes.slice(0, 3).map((shape) => {
    const { prompt } = toCallOptions(only([{ role: "assistant", content: [...Object.values(kinds), { type: "text", text: "t" }] }]), shape);
    return ((prompt[0]?.content ?? []) as { type: string; providerOptions?: unknown }[]).filter((part) => part.type === "reasoning").map((part) => part.providerOptions);
  });
  expect(sent).toEqual([[kinds.signed, kinds.redacted].map((part) => part.metadata), [], [kinds.begun, kinds.ended].map((part) => part.metadata)]);
});

/** The same value with the members of every object in another order, as jsonb may return it. */
function reordered<T>(value: T): T {
  if (Array.isArray(value)) return value.map(reordered) as T;
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      .toReversed()
      .map(([key, member]) => [key, reordered(member) as unknown]),
  ) as T;
}

function frozen<T>(value: T): T {
  if (typeof value === "object" && value !== null) {
    for (const member of Object.values(value)) frozen(member as unknown);
    Object.freeze(value);
  }
  return value;
}

test("the same call gives the same options, byte for byte, and is not touched", () => {
  fc.assert(
    fc.property(call, fc.constantFrom(...shapes), (given, shape) => {
      const before = canonicalJson(given as unknown as JsonValue);
      const first = toCallOptions(frozen(given), shape);
      const second = toCallOptions(reordered(given), shape);
      expect(JSON.stringify(second)).toBe(JSON.stringify(first));
      expect(canonicalJson(given as unknown as JsonValue)).toBe(before);
    }),
    { numRuns: 200 },
  );
});

test("call ids are unique in a request and every answer finds its call, in order", () => {
  fc.assert(
    fc.property(call, fc.constantFrom(...shapes), (given, shape) => {
      const { prompt } = toCallOptions(given, shape);
      const seen = new Set<string>();
      let open: string[] = [];
      for (const message of prompt) {
        if (message.role === "tool") {
          expect(message.content.map((part) => (part.type === "tool-result" ? part.toolCallId : ""))).toEqual(open);
          continue;
        }
        if (message.role !== "assistant") continue;
        open = message.content.flatMap((part) => (part.type === "tool-call" ? [part.toolCallId] : []));
        for (const id of open) {
          expect(seen.has(id)).toBe(false);
          seen.add(id);
        }
      }
    }),
    { numRuns: 200 },
  );
});

test("a transcript that grows keeps its prompt as a prefix", () => {
  fc.assert(
    fc.property(call, exchange, fc.constantFrom(...shapes), (given, more, shape) => {
      const bare = { ...given, breakpoints: [] };
      const before = toCallOptions(bare, shape).prompt;
      const after = toCallOptions({ ...bare, messages: [...bare.messages, { role: "assistant", content: [{ type: "text", text: "so" }] }, ...more] }, shape).prompt;
      expect(JSON.stringify(after.slice(0, before.length))).toBe(JSON.stringify(before));
    }),
    { numRuns: 100 },
  );
});

test.each(PROTOCOLS)("whatever is in the transcript, %s accepts the request", async (protocol) => {
  await using server = await startModelServer({ respond: () => ({ text: "ok" }) });
  const catalogue = createModelCatalogue({
    env: { ANTHROPIC_API_KEY: "k", OPENAI_API_KEY: "k" },
    baseUrls: { anthropic: server.anthropicBaseUrl, openai: server.openaiBaseUrl },
  });
  const model = catalogue.resolve(MODELS[protocol], "t");
  await fc.assert(
    fc.asyncProperty(call, async (given) => {
      const { wire } = responded(await model.call({ ...given, model: MODELS[protocol] }, contextOf()));
      expect(await model.wireSha256?.(reordered(given))).toEqual(wire);
    }),
    { numRuns: 40 },
  );
  expect(server.refused).toEqual([]);
});
