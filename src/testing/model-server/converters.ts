/** Recorded conversations (OpenAI chat messages, one conversation a line) as scripts for the model server. */
import type { JsonObject } from "../../domain/json.ts";
import type { ModelRequest, ScriptedReply } from "./script.ts";

export interface RecordedCall {
  readonly id: string;
  readonly type?: string;
  readonly function: { readonly name: string; readonly arguments: string };
}

export interface RecordedMessage {
  readonly role: "system" | "user" | "assistant" | "tool";
  readonly content?: string | null;
  readonly tool_calls?: readonly RecordedCall[] | null;
  readonly tool_call_id?: string;
}

export interface RecordedConversation {
  readonly id: string;
  readonly messages: readonly RecordedMessage[];
}

/** A tool as far as a recording tells: its name and which arguments it was given. */
export interface ReplayTool {
  readonly name: string;
  readonly argumentNames: readonly string[];
  readonly inputSchema: JsonObject;
}

export interface ReplayScript {
  readonly id: string;
  readonly system: string;
  readonly tools: readonly ReplayTool[];
  readonly userInputs: readonly string[];
  /** How many answers of the model were recorded. */
  readonly answers: number;
  /** What the tool gave for a call; calls are named by their place, since recorded ids repeat within a conversation. */
  readonly resultOf: (assistantIndex: number, callIndex: number) => string | undefined;
  /** Answers the k-th request with the k-th recorded answer. */
  readonly respond: (request: ModelRequest) => ScriptedReply;
  /**
   * Answers by how many answers the request's transcript already holds, so that a request made again after a crash gets
   * the same answer. Not for transcripts that were compacted.
   */
  readonly respondByTranscript: (request: ModelRequest) => ScriptedReply;
}

/** Said when the recording is over and the model is asked once more (some recordings end with a tool's result). */
const END_OF_RECORDING: ScriptedReply = { text: "The recorded conversation ends here." };

export function parseConversations(ndjson: string): RecordedConversation[] {
  return ndjson
    .split("\n")
    .filter((line) => line.trim() !== "")
    .map((line) => JSON.parse(line) as RecordedConversation);
}

export function replayScript(conversation: RecordedConversation): ReplayScript {
  const { messages } = conversation;
  const turns: { readonly message: RecordedMessage; readonly results: readonly (string | undefined)[] }[] = [];
  messages.forEach((message, i) => {
    if (message.role === "assistant") turns.push({ message, results: resultsAfter(messages, i) });
  });
  const answer = (k: number) => {
    const turn = turns[k];
    return turn === undefined ? END_OF_RECORDING : toReply(turn.message);
  };
  return {
    id: conversation.id,
    system: messages
      .filter((message) => message.role === "system")
      .map((message) => message.content ?? "")
      .join("\n\n"),
    tools: toolsOf(messages),
    userInputs: messages.filter((message) => message.role === "user").map((message) => message.content ?? ""),
    answers: turns.length,
    resultOf: (assistantIndex, callIndex) => turns[assistantIndex]?.results[callIndex],
    respond: (request) => answer(request.index),
    respondByTranscript: (request) => answer(answersIn(request)),
  };
}

/** One long conversation out of several about the same tools: the first system prompt, then all exchanges in order. */
export function chainConversations(conversations: readonly RecordedConversation[]): RecordedConversation {
  const system = conversations[0]?.messages.filter((message) => message.role === "system") ?? [];
  const rest = conversations.flatMap((conversation) => {
    const messages = conversation.messages.filter((message) => message.role !== "system");
    // A recording that ends with a tool's result lacks the answer to it, without which the next user cannot speak.
    return messages.at(-1)?.role === "tool" ? [...messages, { role: "assistant", content: "Done." } as const] : messages;
  });
  return { id: conversations.map((conversation) => conversation.id).join("+"), messages: [...system, ...rest] };
}

/** The results that follow an answer, in the order of its calls. Equal ids within one answer are taken in order. */
function resultsAfter(messages: readonly RecordedMessage[], at: number): (string | undefined)[] {
  const following: RecordedMessage[] = [];
  for (let i = at + 1; messages[i]?.role === "tool"; i++) following.push(messages[i] as RecordedMessage);
  return (messages[at]?.tool_calls ?? []).map((call) => {
    const found = following.findIndex((message) => message.tool_call_id === call.id);
    return found < 0 ? undefined : (following.splice(found, 1)[0]?.content ?? "");
  });
}

function toReply(message: RecordedMessage): ScriptedReply {
  const calls = message.tool_calls ?? [];
  return {
    ...(message.content === null || message.content === undefined ? {} : { text: message.content }),
    ...(calls.length === 0 ? {} : { toolCalls: calls.map((call) => ({ id: call.id, name: call.function.name, arguments: call.function.arguments })) }),
  };
}

function toolsOf(messages: readonly RecordedMessage[]): ReplayTool[] {
  const seen = new Map<string, Set<string>>();
  for (const call of messages.flatMap((message) => message.tool_calls ?? [])) {
    const names = seen.get(call.function.name) ?? new Set<string>();
    seen.set(call.function.name, names);
    for (const name of argumentNames(call.function.arguments)) names.add(name);
  }
  return [...seen]
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, keys]) => {
      const sorted = [...keys].toSorted();
      return {
        name,
        argumentNames: sorted,
        inputSchema: { type: "object", properties: Object.fromEntries(sorted.map((key) => [key, {}])) },
      };
    });
}

function argumentNames(written: string): string[] {
  try {
    const value = JSON.parse(written) as unknown;
    return typeof value === "object" && value !== null && !Array.isArray(value) ? Object.keys(value) : [];
  } catch {
    return [];
  }
}

/** Answers in a request: assistant messages, or in the Responses API runs of items that came from one answer. */
function answersIn(request: ModelRequest): number {
  if (request.protocol !== "openai-responses") return (request.body["messages"] as readonly RecordedMessage[]).filter((message) => message.role === "assistant").length;
  const input = request.body["input"];
  if (!Array.isArray(input)) return 0;
  const own = (item: { type?: string; role?: string } | undefined) =>
    item !== undefined && (item.role === "assistant" || item.type === "function_call" || item.type === "reasoning");
  return input.filter((item, i) => own(item) && !own(input[i - 1])).length;
}
