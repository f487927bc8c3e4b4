/** OpenAI Responses (developers.openai.com/api/reference/responses, 2026-11), for clients that keep nothing at the vendor. */
import { list, object, onlyKnown, Refused, string, text, unique, type Json } from "./checks.ts";
import type { Segment } from "./count.ts";
import { openAiErrorBody, openAiOverflow } from "./openai-chat.ts";
import { pieces, signatureOf, type Plan, type PlannedBlock, type StreamEvent } from "./plan.ts";
import type { ScriptedError } from "./script.ts";
import type { Wire } from "./wire.ts";

const TOP_FIELDS = [
  "model",
  "input",
  "instructions",
  "tools",
  "tool_choice",
  "parallel_tool_calls",
  "max_tool_calls",
  "stream",
  "stream_options",
  "store",
  "previous_response_id",
  "conversation",
  "include",
  "temperature",
  "top_p",
  "top_logprobs",
  "max_output_tokens",
  "reasoning",
  "text",
  "truncation",
  "metadata",
  "user",
  "safety_identifier",
  "service_tier",
  "prompt_cache_key",
  "prompt_cache_retention",
  "background",
  "context_management",
];
const ITEM_FIELDS: Readonly<Record<string, readonly string[]>> = {
  message: ["type", "id", "role", "content", "status", "phase"],
  function_call: ["type", "id", "call_id", "name", "arguments", "status", "namespace"],
  function_call_output: ["type", "id", "call_id", "output", "status"],
  reasoning: ["type", "id", "summary", "content", "encrypted_content", "status"],
};
const MAX_CALL_ID_CHARS = 64;

export const openAiResponsesWire: Wire = {
  check,
  segments,
  streamed: (body) => body["stream"] === true,
  events,
  whole,
  errorBody: openAiErrorBody,
  errorEvent,
  overflow: openAiOverflow,
  automaticCache: true,
};

function check(body: Json, issued: ReadonlyMap<string, string>): void {
  onlyKnown(body, TOP_FIELDS, (name) => `Unknown parameter: '${name}'.`);
  text(body["model"], "model");
  checkTools(body["tools"]);
  if (typeof body["input"] === "string") return;
  const items = list(body["input"], "input").map((value, i) => checkItem(object(value, `input[${i}]`), i, issued));
  if (items.length === 0) throw new Refused("Invalid 'input': empty array. Expected an array with minimum length 1, but got an empty array instead.");
  checkPairs(items);
}

function checkTools(tools: unknown): void {
  if (tools === undefined) return;
  const names = list(tools, "tools").map((value, i) => {
    const tool = object(value, `tools[${i}]`);
    onlyKnown(tool, ["type", "name", "description", "parameters", "strict", "defer_loading"], (name) => `Unknown parameter: 'tools[${i}].${name}'.`);
    return text(tool["name"], `tools[${i}].name`);
  });
  unique(names, (name) => `Duplicate tool name: ${name}`);
}

function checkItem(item: Json, i: number, issued: ReadonlyMap<string, string>): Json & { readonly kind: string } {
  const kind = typeof item["type"] === "string" ? item["type"] : item["role"] === undefined ? "" : "message";
  if (kind === "item_reference")
    throw new Refused(
      `Item with id '${String(item["id"])}' not found. Items are not persisted when \`store\` is set to false. Try again with \`store\` set to true, or remove this item from your input.`,
      { status: 404 },
    );
  const fields = ITEM_FIELDS[kind];
  if (fields === undefined) throw new Refused(`Invalid value: '${kind}'. (input[${i}].type)`);
  onlyKnown(item, fields, (name) => `Unknown parameter: 'input[${i}].${name}'.`);
  switch (kind) {
    case "message": {
      if (!["user", "assistant", "system", "developer"].includes(String(item["role"])))
        throw new Refused(`Invalid value: '${String(item["role"])}'. Supported values are: 'assistant', 'system', 'developer', and 'user'.`);
      if (typeof item["content"] !== "string" && list(item["content"], `input[${i}].content`).length === 0) throw new Refused(`Invalid 'input[${i}].content': empty array.`);
      break;
    }
    case "function_call":
      if (text(item["call_id"], `input[${i}].call_id`).length > MAX_CALL_ID_CHARS)
        throw new Refused(`Invalid 'input[${i}].call_id': string too long. Expected a string with maximum length ${MAX_CALL_ID_CHARS}.`);
      text(item["name"], `input[${i}].name`);
      string(item["arguments"], `input[${i}].arguments`);
      break;
    case "function_call_output":
      text(item["call_id"], `input[${i}].call_id`);
      break;
    case "reasoning": {
      const encrypted = item["encrypted_content"];
      if (typeof encrypted !== "string")
        throw new Refused(`Item with id '${String(item["id"])}' not found. Items are not persisted when \`store\` is set to false.`, {
          status: 404,
        });
      const said = list(item["summary"], `input[${i}].summary`)
        .map((part) => String((part as Json)["text"]))
        .join("\n\n");
      if (encrypted !== signatureOf(said) && issued.get(encrypted) !== said)
        throw new Refused(`The encrypted content for item ${String(item["id"])} could not be verified.`, {
          code: "invalid_encrypted_content",
        });
      break;
    }
    default:
      break;
  }
  return { ...item, kind };
}

function checkPairs(items: readonly (Json & { readonly kind: string })[]): void {
  const calls = items.filter((item) => item.kind === "function_call").map((item) => String(item["call_id"]));
  const outputs = items.filter((item) => item.kind === "function_call_output").map((item) => String(item["call_id"]));
  unique(calls, (id) => `Duplicate function call with call_id ${id}.`);
  unique(outputs, (id) => `Duplicate function call output with call_id ${id}.`);
  for (const id of calls) if (!outputs.includes(id)) throw new Refused(`No tool output found for function call ${id}.`);
  for (const id of outputs) if (!calls.includes(id)) throw new Refused(`No tool call found for function call output with call_id ${id}.`);
  items.forEach((item, i) => {
    if (item.kind !== "reasoning") return;
    const next = items[i + 1];
    const follows = next !== undefined && (next.kind === "reasoning" || next.kind === "function_call" || (next.kind === "message" && next["role"] === "assistant"));
    if (!follows) throw new Refused(`Item '${String(item["id"])}' of type 'reasoning' was provided without its required following item.`);
  });
}

function segments(body: Json): Segment[] {
  const input = typeof body["input"] === "string" ? [body["input"]] : (body["input"] as unknown[]);
  const all = [...((body["tools"] ?? []) as unknown[]), ...(body["instructions"] === undefined ? [] : [body["instructions"]]), ...input];
  return all.map((value) => ({ text: JSON.stringify(value), marked: false }));
}

type Item = Record<string, unknown>;

/** The finished items of a plan. Reasoning is encrypted only for clients that ask for it. */
function finishedItems(plan: Plan, body: Json): Item[] {
  const encrypted = Array.isArray(body["include"]) && body["include"].includes("reasoning.encrypted_content");
  return plan.blocks.flatMap((block, k): Item[] => (block.kind === "redacted" ? [] : [finishedItem(block, `${plan.index}_${k}`, encrypted)]));
}

function finishedItem(block: Exclude<PlannedBlock, { kind: "redacted" }>, id: string, encrypted: boolean): Item {
  switch (block.kind) {
    case "reasoning":
      return {
        type: "reasoning",
        id: `rs_${id}`,
        summary: block.text === "" ? [] : [{ type: "summary_text", text: block.text }],
        ...(encrypted ? { encrypted_content: block.signature } : {}),
      };
    case "text":
      return {
        type: "message",
        id: `msg_${id}`,
        role: "assistant",
        status: "completed",
        content: [{ type: "output_text", text: block.text, annotations: [] }],
      };
    case "call":
      return {
        type: "function_call",
        id: `fc_${id}`,
        call_id: block.id,
        name: block.name,
        arguments: block.arguments,
        status: "completed",
      };
  }
}

function encryptedStart(item: Item): Item {
  return typeof item["encrypted_content"] === "string" ? { encrypted_content: item["encrypted_content"].slice(0, 8) } : {};
}

function response(plan: Plan, output: readonly Item[], status: string, finished: boolean): object {
  const { input, output: written, cacheRead, reasoning } = plan.usage;
  return {
    id: `resp_${plan.index}`,
    object: "response",
    created_at: 0,
    model: plan.model,
    status,
    output,
    incomplete_details: status === "incomplete" ? { reason: plan.finish === "length" ? "max_output_tokens" : "content_filter" } : null,
    usage: finished
      ? {
          input_tokens: input,
          input_tokens_details: { cached_tokens: cacheRead },
          output_tokens: written,
          output_tokens_details: { reasoning_tokens: reasoning },
          total_tokens: input + written,
        }
      : null,
  };
}

function statusOf(plan: Plan): "completed" | "incomplete" {
  return plan.finish === "length" || plan.finish === "content_filter" ? "incomplete" : "completed";
}

function events(plan: Plan, body: Json): StreamEvent[] {
  const out: StreamEvent[] = [];
  const add = (type: string, data: object) => out.push({ event: type, data: { type, sequence_number: out.length, ...data } });
  add("response.created", { response: response(plan, [], "in_progress", false) });
  add("response.in_progress", { response: response(plan, [], "in_progress", false) });
  const finished = finishedItems(plan, body);
  finished.forEach((item, output_index) => {
    const at = { item_id: item["id"], output_index };
    switch (item["type"]) {
      case "reasoning": {
        // What comes first is not the final content; a client that keeps it sends back something that cannot be verified.
        add("response.output_item.added", { output_index, item: { ...item, summary: [], ...encryptedStart(item) } });
        for (const part of item["summary"] as { text: string }[]) {
          add("response.reasoning_summary_part.added", { ...at, summary_index: 0, part: { type: "summary_text", text: "" } });
          for (const delta of pieces(part.text, plan.chunkChars)) add("response.reasoning_summary_text.delta", { ...at, summary_index: 0, delta });
          add("response.reasoning_summary_text.done", { ...at, summary_index: 0, text: part.text });
          add("response.reasoning_summary_part.done", { ...at, summary_index: 0, part: { type: "summary_text", text: part.text } });
        }
        break;
      }
      case "message": {
        const part = (item["content"] as { text: string }[])[0] as { text: string };
        add("response.output_item.added", { output_index, item: { ...item, status: "in_progress", content: [] } });
        add("response.content_part.added", { ...at, content_index: 0, part: { ...part, text: "" } });
        for (const delta of pieces(part.text, plan.chunkChars)) add("response.output_text.delta", { ...at, content_index: 0, delta });
        add("response.output_text.done", { ...at, content_index: 0, text: part.text });
        add("response.content_part.done", { ...at, content_index: 0, part });
        break;
      }
      default: {
        const written = String(item["arguments"]);
        add("response.output_item.added", { output_index, item: { ...item, status: "in_progress", arguments: "" } });
        for (const delta of pieces(written, plan.chunkChars)) add("response.function_call_arguments.delta", { ...at, delta });
        add("response.function_call_arguments.done", { ...at, arguments: written });
      }
    }
    add("response.output_item.done", { output_index, item });
  });
  const status = statusOf(plan);
  add(`response.${status}`, { response: response(plan, finished, status, true) });
  return out;
}

function whole(plan: Plan, body: Json): object {
  return response(plan, finishedItems(plan, body), statusOf(plan), true);
}

/** A response that fails after it began. (The API's bare `error` event can be had by giving it as `body`.) */
function errorEvent(error: ScriptedError): StreamEvent {
  if (typeof error.body === "object") return { event: "error", data: error.body };
  const { error: said } = openAiErrorBody(error) as { error: { message: string; code: string | null } };
  const failed = {
    id: "resp_failed",
    object: "response",
    created_at: 0,
    status: "failed",
    output: [],
    error: { code: said.code ?? "server_error", message: said.message },
    incomplete_details: null,
    usage: null,
  };
  return { event: "response.failed", data: { type: "response.failed", sequence_number: 0, response: failed } };
}
