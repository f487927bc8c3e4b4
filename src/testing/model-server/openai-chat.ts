/** OpenAI Chat Completions (developers.openai.com/api/reference, 2026-11), as compatible servers speak it too. */
import { list, object, onlyKnown, Refused, string, text, unique, type Json } from "./checks.ts";
import type { Segment } from "./count.ts";
import { pieces, type Plan, type StreamEvent } from "./plan.ts";
import type { ScriptedError } from "./script.ts";
import type { Wire } from "./wire.ts";

const TOP_FIELDS = [
  "model",
  "messages",
  "tools",
  "tool_choice",
  "parallel_tool_calls",
  "stream",
  "stream_options",
  "temperature",
  "top_p",
  "n",
  "stop",
  "max_tokens",
  "max_completion_tokens",
  "seed",
  "response_format",
  "reasoning_effort",
  "store",
  "metadata",
  "user",
  "logprobs",
  "top_logprobs",
  "logit_bias",
  "presence_penalty",
  "frequency_penalty",
  "service_tier",
  "prediction",
  "verbosity",
  "prompt_cache_key",
  "prompt_cache_retention",
  "safety_identifier",
];
const MESSAGE_FIELDS: Readonly<Record<string, readonly string[]>> = {
  system: ["role", "content", "name"],
  developer: ["role", "content", "name"],
  user: ["role", "content", "name"],
  assistant: ["role", "content", "name", "tool_calls", "refusal", "reasoning_content"],
  tool: ["role", "content", "tool_call_id"],
};
const MAX_CALL_ID_CHARS = 40;
const FUNCTION_NAME = /^[a-zA-Z0-9_-]{1,64}$/;

export const openAiChatWire: Wire = {
  check,
  segments,
  streamed: (body) => body["stream"] === true,
  events,
  whole,
  errorBody: openAiErrorBody,
  errorEvent: (error) => ({ data: openAiErrorBody(error) }),
  overflow: openAiOverflow,
  automaticCache: true,
};

function check(body: Json): void {
  onlyKnown(body, TOP_FIELDS, (name) => `Unrecognized request argument supplied: ${name}`);
  text(body["model"], "model");
  checkTools(body["tools"]);
  const messages = list(body["messages"], "messages").map((value, i) => checkMessage(object(value, `messages[${i}]`), i));
  if (messages.length === 0) throw new Refused("Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.");
  checkPairs(messages);
}

function checkTools(tools: unknown): void {
  if (tools === undefined) return;
  const listed = list(tools, "tools");
  if (listed.length === 0) throw new Refused("Invalid 'tools': empty array. Expected an array with minimum length 1, but got an empty array instead.");
  const names = listed.map((value, i) => {
    const tool = object(value, `tools[${i}]`);
    onlyKnown(tool, ["type", "function"], (name) => `Unknown parameter: 'tools[${i}].${name}'.`);
    const fn = object(tool["function"], `tools[${i}].function`);
    onlyKnown(fn, ["name", "description", "parameters", "strict"], (name) => `Unknown parameter: 'tools[${i}].function.${name}'.`);
    const name = string(fn["name"], `tools[${i}].function.name`);
    if (!FUNCTION_NAME.test(name))
      throw new Refused(`Invalid 'tools[${i}].function.name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.`);
    return name;
  });
  unique(names, (name) => `Duplicate function name: ${name}`);
}

function checkMessage(message: Json, i: number): Json {
  const role = String(message["role"]);
  const fields = MESSAGE_FIELDS[role];
  if (fields === undefined) throw new Refused(`Invalid value: '${role}'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and 'developer'.`);
  onlyKnown(message, fields, (name) => `Unknown parameter: 'messages[${i}].${name}'.`);
  const calls = message["tool_calls"];
  const content = message["content"];
  if (content === null || content === undefined) {
    if (role !== "assistant" || calls === undefined) throw new Refused(`Invalid value for 'content': expected a string, got null. (messages[${i}])`);
  } else if (typeof content !== "string") {
    if (list(content, `messages[${i}].content`).length === 0) throw new Refused(`Invalid 'messages[${i}].content': empty array.`);
  }
  if (calls !== undefined) {
    if (list(calls, `messages[${i}].tool_calls`).length === 0)
      throw new Refused(`Invalid 'messages[${i}].tool_calls': empty array. Expected an array with minimum length 1, but got an empty array instead.`);
    (calls as Json[]).forEach((call, j) => {
      onlyKnown(call, ["id", "type", "function", "extra_content"], (name) => `Unknown parameter: 'messages[${i}].tool_calls[${j}].${name}'.`);
      if (text(call["id"], `messages[${i}].tool_calls[${j}].id`).length > MAX_CALL_ID_CHARS)
        throw new Refused(
          `Invalid 'messages[${i}].tool_calls[${j}].id': string too long. Expected a string with maximum length ${MAX_CALL_ID_CHARS}, but got a string with length ${String(call["id"]).length} instead.`,
        );
      const fn = object(call["function"], `messages[${i}].tool_calls[${j}].function`);
      text(fn["name"], `messages[${i}].tool_calls[${j}].function.name`);
      string(fn["arguments"], `messages[${i}].tool_calls[${j}].function.arguments`);
    });
  }
  return message;
}

function checkPairs(messages: readonly Json[]): void {
  const all: string[] = [];
  let open: string[] = [];
  messages.forEach((message) => {
    if (message["role"] === "tool") {
      const id = String(message["tool_call_id"]);
      if (!open.includes(id)) throw new Refused("Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.");
      open = open.filter((other) => other !== id);
      return;
    }
    refuseOpen(open);
    open = ((message["tool_calls"] ?? []) as Json[]).map((call) => String(call["id"]));
    all.push(...open);
  });
  refuseOpen(open);
  unique(all, (id) => `Duplicate tool call id: ${id}`);
}

function refuseOpen(open: readonly string[]): void {
  if (open.length > 0)
    throw new Refused(
      `An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: ${open.join(", ")}`,
    );
}

function segments(body: Json): Segment[] {
  const all = [...((body["tools"] ?? []) as unknown[]), ...(body["messages"] as unknown[])];
  return all.map((value) => ({ text: JSON.stringify(value), marked: false }));
}

export function openAiUsage(plan: Plan): object {
  const { input, output, cacheRead, reasoning } = plan.usage;
  return {
    prompt_tokens: input,
    completion_tokens: output,
    total_tokens: input + output,
    prompt_tokens_details: { cached_tokens: cacheRead },
    completion_tokens_details: { reasoning_tokens: reasoning },
  };
}

function events(plan: Plan, body: Json): StreamEvent[] {
  const head = { id: `chatcmpl_${plan.index}`, object: "chat.completion.chunk", created: 0, model: plan.model };
  const out: StreamEvent[] = [];
  const add = (delta: object, finish: string | null = null) => out.push({ data: { ...head, choices: [{ index: 0, delta, finish_reason: finish }] } });
  add({ role: "assistant", content: "" });
  let call = 0;
  for (const block of plan.blocks) {
    switch (block.kind) {
      case "reasoning":
        for (const piece of pieces(block.text, plan.chunkChars)) add({ reasoning_content: piece });
        break;
      case "redacted":
        break;
      case "text":
        for (const piece of pieces(block.text, plan.chunkChars)) add({ content: piece });
        break;
      case "call": {
        const index = call++;
        add({ tool_calls: [{ index, id: block.id, type: "function", function: { name: block.name, arguments: "" } }] });
        for (const piece of pieces(block.arguments, plan.chunkChars)) add({ tool_calls: [{ index, function: { arguments: piece } }] });
        break;
      }
    }
  }
  add({}, plan.finish);
  const wantsUsage = (body["stream_options"] as Json | undefined)?.["include_usage"] === true;
  if (wantsUsage) out.push({ data: { ...head, choices: [], usage: openAiUsage(plan) } });
  out.push({ data: "[DONE]" });
  return out;
}

function whole(plan: Plan): object {
  const calls = plan.blocks
    .filter((block) => block.kind === "call")
    .map((block) => ({ id: block.id, type: "function", function: { name: block.name, arguments: block.arguments } }));
  const content = plan.blocks
    .filter((block) => block.kind === "text")
    .map((block) => block.text)
    .join("");
  const message = {
    role: "assistant",
    content: content === "" && calls.length > 0 ? null : content,
    ...(calls.length > 0 ? { tool_calls: calls } : {}),
  };
  return {
    id: `chatcmpl_${plan.index}`,
    object: "chat.completion",
    created: 0,
    model: plan.model,
    choices: [{ index: 0, message, finish_reason: plan.finish }],
    usage: openAiUsage(plan),
  };
}

const ERROR_TYPES: Readonly<Record<number, string>> = {
  400: "invalid_request_error",
  401: "invalid_request_error",
  404: "invalid_request_error",
  429: "requests",
  500: "server_error",
  503: "server_error",
};
const ERROR_CODES: Readonly<Record<number, string>> = {
  401: "invalid_api_key",
  404: "model_not_found",
  429: "rate_limit_exceeded",
  503: "server_overloaded",
};

export function openAiErrorBody(error: ScriptedError): object {
  if (typeof error.body === "object") return error.body;
  const status = error.status ?? 500;
  return {
    error: {
      message: error.message ?? `The server had an error (${status})`,
      type: ERROR_TYPES[status] ?? "server_error",
      param: null,
      code: error.code ?? ERROR_CODES[status] ?? null,
    },
  };
}

export function openAiOverflow(input: number, window: number): ScriptedError {
  return {
    status: 400,
    code: "context_length_exceeded",
    message: `This model's maximum context length is ${window} tokens. However, your messages resulted in ${input} tokens. Please reduce the length of the messages.`,
  };
}
