/** Anthropic Messages: what it refuses, how it counts, and what it sends (platform.claude.com/docs/en/api/messages, 2026-11). */
import { list, object, onlyKnown, Refused, string, text, unique, type Json } from "./checks.ts";
import type { Segment } from "./count.ts";
import { pieces, signatureOf, type Plan, type PlannedBlock, type StreamEvent } from "./plan.ts";
import type { ScriptedError } from "./script.ts";
import type { Wire } from "./wire.ts";

const TOP_FIELDS = [
  "model",
  "messages",
  "max_tokens",
  "system",
  "tools",
  "tool_choice",
  "stream",
  "temperature",
  "top_p",
  "top_k",
  "stop_sequences",
  "thinking",
  "metadata",
  "output_config",
  "service_tier",
  "cache_control",
  "context_management",
  "mcp_servers",
  "container",
  "speed",
  "inference_geo",
];
const TOOL_FIELDS = ["type", "name", "description", "input_schema", "cache_control", "eager_input_streaming", "strict", "input_examples", "defer_loading", "allowed_callers"];
const BLOCK_FIELDS: Readonly<Record<string, readonly string[]>> = {
  text: ["type", "text", "cache_control", "citations"],
  image: ["type", "source", "cache_control"],
  document: ["type", "source", "cache_control", "title", "context", "citations"],
  tool_use: ["type", "id", "name", "input", "cache_control", "caller"],
  tool_result: ["type", "tool_use_id", "content", "is_error", "cache_control"],
  thinking: ["type", "thinking", "signature"],
  redacted_thinking: ["type", "data"],
};
const ROLE_BLOCKS: Readonly<Record<string, readonly string[]>> = {
  user: ["text", "image", "document", "tool_result"],
  assistant: ["text", "tool_use", "thinking", "redacted_thinking"],
};
const ID = /^[a-zA-Z0-9_-]+$/;
const TOOL_NAME = /^[a-zA-Z0-9_-]{1,128}$/;
const MAX_CACHE_MARKS = 4;

export const anthropicWire: Wire = {
  check,
  segments,
  streamed: (body) => body["stream"] === true,
  events,
  whole,
  errorBody,
  errorEvent,
  overflow,
  automaticCache: false,
};

function check(body: Json, issued: ReadonlyMap<string, string>): void {
  onlyKnown(body, TOP_FIELDS, (name) => `${name}: Extra inputs are not permitted`);
  text(body["model"], "model");
  const max = body["max_tokens"];
  if (typeof max !== "number") throw new Refused("max_tokens: Field required");
  if (!Number.isInteger(max) || max < 1) throw new Refused("max_tokens: Input should be greater than or equal to 1");
  if (body["temperature"] !== undefined && !((body["temperature"] as number) >= 0 && (body["temperature"] as number) <= 1)) throw new Refused("temperature: range: 0..1");
  checkSystem(body["system"]);
  checkTools(body["tools"]);
  checkMessages(list(body["messages"], "messages"), issued);
  const marks = JSON.stringify(body).split('"cache_control":{').length - 1;
  if (marks > MAX_CACHE_MARKS) throw new Refused(`A maximum of ${MAX_CACHE_MARKS} blocks with cache_control may be provided. Found ${marks}.`);
}

function checkSystem(system: unknown): void {
  if (system === undefined || typeof system === "string") return;
  list(system, "system").forEach((value, i) => {
    const block = object(value, `system.${i}`);
    if (block["type"] !== "text") throw new Refused(`system.${i}.type: Input should be 'text'`);
    checkText(block, `system.${i}`, "system");
  });
}

function checkTools(tools: unknown): void {
  if (tools === undefined) return;
  const names = list(tools, "tools").map((value, i) => {
    const tool = object(value, `tools.${i}`);
    onlyKnown(tool, TOOL_FIELDS, (name) => `tools.${i}.custom.${name}: Extra inputs are not permitted`);
    const name = string(tool["name"], `tools.${i}.custom.name`);
    if (!TOOL_NAME.test(name)) throw new Refused(`tools.${i}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'`);
    if (object(tool["input_schema"], `tools.${i}.custom.input_schema`)["type"] !== "object") throw new Refused(`tools.${i}.custom.input_schema.type: Input should be 'object'`);
    return name;
  });
  unique(names, () => "tools: Tool names must be unique.");
}

function checkMessages(messages: readonly unknown[], issued: ReadonlyMap<string, string>): void {
  if (messages.length === 0) throw new Refused("messages: at least one message is required");
  const parsed = messages.map((value, i) => {
    const message = object(value, `messages.${i}`);
    onlyKnown(message, ["role", "content"], (name) => `messages.${i}.${name}: Extra inputs are not permitted`);
    const role = string(message["role"], `messages.${i}.role`);
    const kinds = ROLE_BLOCKS[role];
    if (kinds === undefined)
      throw new Refused(`messages: Unexpected role "${role}". The Messages API accepts a top-level \`system\` parameter, not "system" as an input message role.`);
    const content = typeof message["content"] === "string" ? [{ type: "text", text: message["content"] }] : list(message["content"], `messages.${i}.content`);
    const last = i === messages.length - 1;
    if (content.length === 0 && !(role === "assistant" && last))
      throw new Refused(`messages.${i}: all messages must have non-empty content except for the optional final assistant message`);
    const blocks = content.map((block, j) => checkBlock(object(block, `messages.${i}.content.${j}`), kinds, `messages.${i}.content.${j}`, issued));
    const end = blocks.at(-1);
    if (end?.["type"] === "thinking" || end?.["type"] === "redacted_thinking") throw new Refused(`messages.${i}: The final block in an assistant message cannot be \`thinking\`.`);
    if (last && role === "assistant" && end?.["type"] === "text" && String(end["text"]).trimEnd() !== end["text"])
      throw new Refused("messages: final assistant content cannot end with trailing whitespace");
    return { role, blocks };
  });
  if (parsed[0]?.role !== "user") throw new Refused('messages: first message must use the "user" role');
  const ids = parsed.flatMap(({ blocks }) => blocks.filter((block) => block["type"] === "tool_use").map((block) => String(block["id"])));
  unique(ids, () => "messages: `tool_use` ids must be unique");
  parsed.forEach(({ blocks }, i) => checkPairs(blocks, parsed[i - 1]?.blocks ?? [], parsed[i + 1]?.blocks ?? [], i));
  parsed.forEach(({ role }, i) => {
    if (parsed[i + 1]?.role === role) throw new Refused(`messages: roles must alternate between "user" and "assistant", but found multiple "${role}" roles in a row`);
  });
}

function checkBlock(block: Json, kinds: readonly string[], where: string, issued: ReadonlyMap<string, string>): Json {
  const kind = String(block["type"]);
  const fields = BLOCK_FIELDS[kind];
  if (fields === undefined || !kinds.includes(kind))
    throw new Refused(`${where}: Input tag '${kind}' found using 'type' does not match any of the expected tags: ${kinds.map((name) => `'${name}'`).join(", ")}`);
  onlyKnown(block, fields, (name) => `${where}.${kind}.${name}: Extra inputs are not permitted`);
  switch (kind) {
    case "text":
      checkText(block, where, "messages");
      break;
    case "tool_use":
      if (!ID.test(string(block["id"], `${where}.tool_use.id`))) throw new Refused(`${where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'`);
      text(block["name"], `${where}.tool_use.name`);
      object(block["input"], `${where}.tool_use.input`);
      break;
    case "tool_result":
      text(block["tool_use_id"], `${where}.tool_result.tool_use_id`);
      if (Array.isArray(block["content"])) for (const part of block["content"]) if ((part as Json)["type"] === "text") checkText(part as Json, where, "messages");
      break;
    case "thinking": {
      const thinking = string(block["thinking"], `${where}.thinking.thinking`);
      const signature = string(block["signature"], `${where}.thinking.signature`);
      if (signature !== signatureOf(thinking) && issued.get(signature) !== thinking) throw new Refused(`${where}: Invalid \`signature\` in \`thinking\` block`);
      break;
    }
    case "redacted_thinking":
      if (!issued.has(string(block["data"], `${where}.redacted_thinking.data`))) throw new Refused(`${where}: Invalid \`data\` in \`redacted_thinking\` block`);
      break;
    default:
      break;
  }
  return block;
}

function checkText(block: Json, where: string, what: string): void {
  const given = string(block["text"], `${where}.text.text`);
  if (given === "") throw new Refused(`${what}: text content blocks must be non-empty`);
  if (given.trim() === "") throw new Refused(`${what}: text content blocks must contain non-whitespace text`);
}

/** Every call is answered at the start of the next message, and nothing else is. */
function checkPairs(blocks: readonly Json[], before: readonly Json[], after: readonly Json[], i: number): void {
  const answers = after.slice(
    0,
    Math.max(0, after.findIndex((block) => block["type"] !== "tool_result") < 0 ? after.length : after.findIndex((block) => block["type"] !== "tool_result")),
  );
  const answered = answers.map((block) => block["tool_use_id"]);
  const missing = blocks.filter((block) => block["type"] === "tool_use" && !answered.includes(block["id"])).map((block) => String(block["id"]));
  if (missing.length > 0) {
    throw new Refused(
      `messages.${i}: \`tool_use\` ids were found without \`tool_result\` blocks immediately after: ${missing.join(", ")}. Each \`tool_use\` block must have a corresponding \`tool_result\` block in the next message.`,
    );
  }
  const asked = before.filter((block) => block["type"] === "tool_use").map((block) => block["id"]);
  const results = blocks.filter((block) => block["type"] === "tool_result").map((block) => String(block["tool_use_id"]));
  for (const id of results) {
    if (!asked.includes(id))
      throw new Refused(
        `messages.${i}.content: unexpected \`tool_use_id\` found in \`tool_result\` blocks: ${id}. Each \`tool_result\` block must have a corresponding \`tool_use\` block in the previous message.`,
      );
  }
  unique(results, (id) => `messages.${i}.content: each tool_use must have a single result. Found multiple \`tool_result\` blocks with id: ${id}`);
}

/** In the order of Anthropic's cache: tools, system, messages. */
function segments(body: Json): Segment[] {
  const out: Segment[] = [];
  const add = (value: unknown, prefix = "") => {
    const { cache_control: mark, ...rest } = typeof value === "string" ? { cache_control: undefined, text: value } : (value as Json);
    out.push({ text: prefix + JSON.stringify(rest), marked: mark !== undefined && mark !== null });
  };
  for (const tool of (body["tools"] ?? []) as unknown[]) add(tool);
  const system = body["system"];
  if (system !== undefined) for (const block of Array.isArray(system) ? system : [system]) add(block);
  for (const message of body["messages"] as Json[])
    for (const block of Array.isArray(message["content"]) ? message["content"] : [message["content"]]) add(block, String(message["role"]));
  return out;
}

const STOP = { stop: "end_turn", length: "max_tokens", tool_calls: "tool_use", content_filter: "refusal" } as const;

function usageOf(plan: Plan): { input_tokens: number; cache_creation_input_tokens: number; cache_read_input_tokens: number } {
  const { input, cacheRead, cacheWrite } = plan.usage;
  return {
    input_tokens: Math.max(0, input - cacheRead - cacheWrite),
    cache_creation_input_tokens: cacheWrite,
    cache_read_input_tokens: cacheRead,
  };
}

function events(plan: Plan): StreamEvent[] {
  const out: StreamEvent[] = [];
  const add = (data: { type: string } & Record<string, unknown>) => out.push({ event: data.type, data });
  add({
    type: "message_start",
    message: {
      id: `msg_${plan.index}`,
      type: "message",
      role: "assistant",
      model: plan.model,
      content: [],
      stop_reason: null,
      stop_sequence: null,
      usage: { ...usageOf(plan), output_tokens: 1 },
    },
  });
  add({ type: "ping" });
  plan.blocks.forEach((block, index) => {
    add({ type: "content_block_start", index, content_block: emptyBlock(block) });
    for (const delta of deltas(block, plan.chunkChars)) add({ type: "content_block_delta", index, delta });
    add({ type: "content_block_stop", index });
  });
  add({
    type: "message_delta",
    delta: { stop_reason: STOP[plan.finish], stop_sequence: null },
    usage: { ...usageOf(plan), output_tokens: plan.usage.output },
  });
  add({ type: "message_stop" });
  return out;
}

function emptyBlock(block: PlannedBlock): object {
  switch (block.kind) {
    case "text":
      return { type: "text", text: "" };
    case "reasoning":
      return { type: "thinking", thinking: "", signature: "" };
    case "redacted":
      return { type: "redacted_thinking", data: block.data };
    case "call":
      return { type: "tool_use", id: block.id, name: block.name, input: {} };
  }
}

function deltas(block: PlannedBlock, chars: number): object[] {
  switch (block.kind) {
    case "text":
      return pieces(block.text, chars).map((piece) => ({ type: "text_delta", text: piece }));
    case "reasoning":
      return [...pieces(block.text, chars).map((piece) => ({ type: "thinking_delta", thinking: piece })), { type: "signature_delta", signature: block.signature }];
    case "redacted":
      return [];
    case "call":
      return [{ type: "input_json_delta", partial_json: "" }, ...pieces(block.arguments, chars).map((piece) => ({ type: "input_json_delta", partial_json: piece }))];
  }
}

function whole(plan: Plan): object {
  const content = plan.blocks.map((block) => {
    switch (block.kind) {
      case "text":
        return { type: "text", text: block.text };
      case "reasoning":
        return { type: "thinking", thinking: block.text, signature: block.signature };
      case "redacted":
        return { type: "redacted_thinking", data: block.data };
      case "call":
        return { type: "tool_use", id: block.id, name: block.name, input: JSON.parse(block.arguments) as object };
    }
  });
  return {
    id: `msg_${plan.index}`,
    type: "message",
    role: "assistant",
    model: plan.model,
    content,
    stop_reason: STOP[plan.finish],
    stop_sequence: null,
    usage: { ...usageOf(plan), output_tokens: plan.usage.output },
  };
}

const ERROR_TYPES: Readonly<Record<number, string>> = {
  400: "invalid_request_error",
  401: "authentication_error",
  402: "billing_error",
  403: "permission_error",
  404: "not_found_error",
  413: "request_too_large",
  429: "rate_limit_error",
  500: "api_error",
  504: "timeout_error",
  529: "overloaded_error",
};

function errorBody(error: ScriptedError): object {
  const status = error.status ?? 500;
  return {
    type: "error",
    error: {
      type: error.code ?? ERROR_TYPES[status] ?? "api_error",
      message: error.message ?? ERROR_TYPES[status] ?? "Internal server error",
    },
    request_id: "req_0",
  };
}

function errorEvent(error: ScriptedError): StreamEvent {
  return { event: "error", data: typeof error.body === "object" ? error.body : errorBody(error) };
}

function overflow(input: number, window: number): ScriptedError {
  return { status: 400, message: `prompt is too long: ${input} tokens > ${window} maximum` };
}
