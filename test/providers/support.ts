import type { CanonicalCall } from "../../src/domain/call.ts";
import type { AssistantPart, Message } from "../../src/domain/transcript/message.ts";
import type { Model, ModelCallContext, ModelFailure, ModelOutcome, ModelResponse } from "../../src/engine/model-port.ts";
import { createModelCatalogue } from "../../src/providers/catalogue.ts";
import { startModelServer, type ModelServer, type ModelServerOptions, type Protocol, type ScriptedReply } from "../../src/testing/model-server/index.ts";

export const MODELS: Readonly<Record<Protocol, string>> = {
  anthropic: "anthropic:claude-sonnet-4-5",
  "openai-chat": "openai-chat:gpt-4.1",
  "openai-responses": "openai:gpt-5",
};
export const PROTOCOLS = Object.keys(MODELS) as Protocol[];

export const weatherTool = {
  name: "weather",
  description: "The weather in a city",
  inputSchema: { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false },
} as const;

export function callFor(protocol: Protocol, over: Partial<CanonicalCall> = {}): CanonicalCall {
  return {
    renderVersion: 1,
    model: MODELS[protocol],
    system: "You are terse.",
    tools: [weatherTool],
    messages: [user("hello")],
    settings: {},
    breakpoints: [],
    ...over,
  };
}

export function user(text: string): Message {
  return { role: "user", content: [{ type: "text", text }] };
}

export function assistant(...content: AssistantPart[]): Message {
  return { role: "assistant", content };
}

export function result(call_id: string, output: string, is_error?: true): Message {
  return { role: "tool", content: [{ type: "tool_result", call_id, name: "weather", output, ...(is_error ? { is_error } : {}) }] };
}

export interface Bench extends AsyncDisposable {
  readonly server: ModelServer;
  readonly model: (protocol: Protocol) => Model;
  readonly ask: (protocol: Protocol, over?: Partial<CanonicalCall>, context?: Partial<ModelCallContext>) => Promise<ModelOutcome>;
}

/** A server that gives the replies in order (the last one again and again), and models that talk to it. */
export async function bench(replies: readonly ScriptedReply[] | ModelServerOptions["respond"], options: Omit<ModelServerOptions, "respond"> = {}): Promise<Bench> {
  const respond: ModelServerOptions["respond"] = typeof replies === "function" ? replies : (request) => replies[Math.min(request.index, replies.length - 1)] as ScriptedReply;
  const server = await startModelServer({ respond, ...options });
  const catalogue = createModelCatalogue({
    env: { ANTHROPIC_API_KEY: "key-a", OPENAI_API_KEY: "key-o" },
    baseUrls: { anthropic: server.anthropicBaseUrl, openai: server.openaiBaseUrl, ollama: server.openaiBaseUrl },
  });
  const model = (protocol: Protocol) => catalogue.resolve(MODELS[protocol], "t1");
  return {
    server,
    model,
    ask: (protocol, over, context) => model(protocol).call(callFor(protocol, over), contextOf(context)),
    [Symbol.asyncDispose]: () => server.close(),
  };
}

export function contextOf(over: Partial<ModelCallContext> = {}): ModelCallContext {
  return { signal: new AbortController().signal, tenant: "t1", runId: "run", turn: 1, ...over };
}

export function responded(outcome: ModelOutcome): ModelResponse {
  if (outcome.kind !== "responded") throw new Error(`expected an answer, got ${JSON.stringify(outcome)}`);
  return outcome;
}

export function failed(outcome: ModelOutcome): ModelFailure {
  if (outcome.kind !== "failed") throw new Error(`expected a failure, got ${JSON.stringify(outcome)}`);
  return outcome;
}
