/**
 * Canonical call to the ecosystem's call options. Pure: equal calls give equal options whatever way they went through
 * storage (jsonb reorders members, so every JSON value is put into canonical order here), and the call is not touched.
 */
import type { JSONObject, LanguageModelV4CallOptions, LanguageModelV4FunctionTool, LanguageModelV4Message, SharedV4ProviderOptions } from "@ai-sdk/provider";
import type { CanonicalCall } from "../domain/call.ts";
import { canonicalJson, type JsonObject, type JsonValue } from "../domain/json.ts";
import { toolOutputText, type AssistantMessage, type AssistantPart, type FilePart, type Message, type ToolMessage, type UserMessage } from "../domain/transcript/message.ts";
import type { RequestShape } from "./vendor.ts";

/** Bytes by sha256, loaded before the conversion so that it stays pure. */
export type LoadedMedia = ReadonlyMap<string, Uint8Array>;

/** A file whose bytes nobody gave. Becomes PROVIDER_BAD_REQUEST: sending the call without it would change its meaning. */
export class MediaUnavailableError extends Error {
  override readonly name = "MediaUnavailableError";
  constructor(part: FilePart) {
    super(`media not available: ${part.media_type} ${part.sha256} (${part.size_bytes} bytes)`);
  }
}

/** An option that refers to state on the vendor's side. A request must say everything itself, or a replay differs. */
export class VendorStateError extends Error {
  override readonly name = "VendorStateError";
  constructor(option: string) {
    super(`provider option "${option}" refers to state kept by the vendor; requests must be complete in themselves. Remove it from settings.providerOptions`);
  }
}

/** Stands for a user message without any text: vendors refuse empty content, and leaving it out would shift the roles. */
const EMPTY_USER_TEXT = "(empty message)";

export function toCallOptions(call: CanonicalCall, shape: RequestShape, media: LoadedMedia = new Map()): LanguageModelV4CallOptions {
  const { settings } = call;
  const marks = cacheMarks(call, shape);
  const providerOptions = callProviderOptions(call, shape);
  const maxOutputTokens = settings.maxOutputTokens ?? shape.defaultMaxOutputTokens;
  return {
    prompt: [
      ...(call.system === "" ? [] : [marked<LanguageModelV4Message>({ role: "system", content: call.system }, marks.system, shape)]),
      ...toPrompt(call.messages, shape, marks.messages, media),
    ],
    ...(call.tools.length === 0 ? {} : { tools: toTools(call, shape, marks.tools) }),
    ...(maxOutputTokens === undefined ? {} : { maxOutputTokens }),
    ...(settings.temperature === undefined ? {} : { temperature: settings.temperature }),
    ...(settings.topP === undefined ? {} : { topP: settings.topP }),
    ...(settings.seed === undefined ? {} : { seed: settings.seed }),
    ...(settings.stopSequences === undefined ? {} : { stopSequences: [...settings.stopSequences] }),
    ...(settings.reasoningEffort === undefined ? {} : { reasoning: settings.reasoningEffort }),
    ...(call.output === undefined ? {} : { responseFormat: { type: "json", name: call.output.name, schema: inCanonicalOrder(call.output.schema) } as const }),
    ...(providerOptions === undefined ? {} : { providerOptions }),
  };
}

function callProviderOptions(call: CanonicalCall, shape: RequestShape): SharedV4ProviderOptions | undefined {
  const wished = call.settings.providerOptions ?? {};
  const stateful = shape.statefulOptions?.find((option) => wished[option] !== undefined && wished[option] !== null);
  if (stateful !== undefined) throw new VendorStateError(stateful);
  const options = { ...shape.defaultOptions?.(call), ...wished, ...shape.forcedOptions };
  return Object.keys(options).length === 0 ? undefined : { [shape.optionsKey]: inCanonicalOrder(options) };
}

function toTools(call: CanonicalCall, shape: RequestShape, markLast: boolean): LanguageModelV4FunctionTool[] {
  return call.tools.map((tool, i) =>
    marked<LanguageModelV4FunctionTool>(
      {
        type: "function",
        name: tool.name,
        description: tool.description,
        inputSchema: inCanonicalOrder(tool.inputSchema) as LanguageModelV4FunctionTool["inputSchema"],
      },
      markLast && i === call.tools.length - 1,
      shape,
    ),
  );
}

type Marks = { readonly system: boolean; readonly tools: boolean; readonly messages: ReadonlySet<number> };

/**
 * A mark on the system prompt covers the tools too, since they come first in the request; without a system prompt the
 * last tool carries it. Of too many message marks the first stays (end of the head, which stays longest) and the last ones.
 */
function cacheMarks(call: CanonicalCall, shape: RequestShape): Marks {
  if (shape.cacheMark === undefined) return { system: false, tools: false, messages: new Set() };
  const system = call.system !== "";
  const tools = !system && call.tools.length > 0;
  const room = (shape.maxCacheMarks ?? 4) - (system || tools ? 1 : 0);
  const wanted = [...new Set(call.breakpoints)].filter((at) => at >= 0 && at < call.messages.length).toSorted((a, b) => a - b);
  const kept = wanted.length <= room ? wanted : [wanted[0] as number, ...wanted.slice(wanted.length - room + 1)];
  return { system, tools, messages: new Set(kept) };
}

function toPrompt(messages: readonly Message[], shape: RequestShape, marks: ReadonlySet<number>, media: LoadedMedia): LanguageModelV4Message[] {
  const prompt: LanguageModelV4Message[] = [];
  const ids = new CallIds(shape.legalCallId ?? ((id) => id));
  messages.forEach((message, i) => {
    const converted = toMessage(message, shape, ids, media);
    // A message that vendors would refuse (an empty answer) is not sent; its mark moves to the one before.
    if (converted !== undefined) prompt.push(converted);
    const last = prompt.at(-1);
    if (marks.has(i) && last !== undefined) prompt[prompt.length - 1] = marked(last, true, shape);
  });
  return prompt;
}

function toMessage(message: Message, shape: RequestShape, ids: CallIds, media: LoadedMedia): LanguageModelV4Message | undefined {
  switch (message.role) {
    case "user":
      return { role: "user", content: userContent(message, media) };
    case "assistant": {
      const content = assistantContent(message, shape, ids);
      return content.length === 0 ? undefined : { role: "assistant", content };
    }
    case "tool":
      return message.content.length === 0 ? undefined : { role: "tool", content: toolContent(message, ids) };
  }
}

type UserContent = Extract<LanguageModelV4Message, { role: "user" }>["content"];
type AssistantContent = Extract<LanguageModelV4Message, { role: "assistant" }>["content"];
type ToolContent = Extract<LanguageModelV4Message, { role: "tool" }>["content"];

function userContent(message: UserMessage, media: LoadedMedia): UserContent {
  const content = message.content.flatMap((part): UserContent => {
    if (part.type === "text") return isBlank(part.text) ? [] : [{ type: "text", text: part.text, ...metadataOf(part.metadata) }];
    const bytes = media.get(part.sha256);
    if (bytes === undefined) throw new MediaUnavailableError(part);
    // Text that was too long for an event: to a model it is text, whatever the vendor thinks of files.
    if (part.media_type.startsWith("text/plain")) return [{ type: "text", text: new TextDecoder().decode(bytes) }];
    return [
      {
        type: "file",
        mediaType: part.media_type,
        data: { type: "data", data: bytes },
        ...(part.filename === undefined ? {} : { filename: part.filename }),
      },
    ];
  });
  return content.length === 0 ? [{ type: "text", text: EMPTY_USER_TEXT }] : content;
}

function assistantContent(message: AssistantMessage, shape: RequestShape, ids: CallIds): AssistantContent {
  const present = message.content.filter((part) => part.type !== "text" || !isBlank(part.text));
  const parts = [...(shape.sendableParts?.(present) ?? present)];
  // Reasoning that nothing follows (an answer cut off while thinking) is refused by vendors.
  while (parts.at(-1)?.type === "reasoning") parts.pop();
  ids.nextMessage();
  return parts.map((part) => toAssistantPart(part, ids));
}

function toAssistantPart(part: AssistantPart, ids: CallIds): AssistantContent[number] {
  switch (part.type) {
    case "text":
    case "reasoning":
      return { type: part.type, text: part.text, ...metadataOf(part.metadata) };
    case "tool_call":
      return {
        type: "tool-call",
        toolCallId: ids.called(part.call_id),
        toolName: part.name,
        // Arguments that did not parse cannot be sent as such; the tool's answer says what was wrong with them.
        input: part.input === undefined ? {} : inCanonicalOrder(part.input),
        ...metadataOf(part.metadata),
      };
  }
}

function toolContent(message: ToolMessage, ids: CallIds): ToolContent {
  return message.content.map((part) => ({
    type: "tool-result",
    toolCallId: ids.answered(part.call_id),
    toolName: part.name,
    output: { type: part.is_error === true ? "error-text" : "text", value: toolOutputText(part.output) },
  }));
}

/**
 * Models repeat call ids within a conversation, vendors refuse a request that does. The n-th call of an id keeps it for
 * n = 1 and becomes `id_n` after that; answers find the calls of the message before them, in order. Depends on earlier
 * messages only, so a growing transcript keeps its prefix.
 */
class CallIds {
  readonly #legal: (id: string) => string;
  readonly #used = new Set<string>();
  readonly #open = new Map<string, string[]>();

  constructor(legal: (id: string) => string) {
    this.#legal = legal;
  }

  /** Calls of an earlier message are answered or never will be. */
  nextMessage(): void {
    this.#open.clear();
  }

  called(id: string): string {
    let rendered = this.#legal(id);
    for (let n = 2; this.#used.has(rendered); n++) rendered = this.#legal(`${id}_${n}`);
    this.#used.add(rendered);
    this.#open.set(id, [...(this.#open.get(id) ?? []), rendered]);
    return rendered;
  }

  answered(id: string): string {
    return this.#open.get(id)?.shift() ?? this.#legal(id);
  }
}

function marked<T extends { providerOptions?: SharedV4ProviderOptions }>(target: T, mark: boolean, shape: RequestShape): T {
  if (!mark || shape.cacheMark === undefined) return target;
  const own = target.providerOptions?.[shape.optionsKey] ?? {};
  return { ...target, providerOptions: { ...target.providerOptions, [shape.optionsKey]: { ...own, ...(shape.cacheMark as JSONObject) } } };
}

function metadataOf(metadata: JsonObject | undefined): { providerOptions?: SharedV4ProviderOptions } {
  return metadata === undefined ? {} : { providerOptions: inCanonicalOrder(metadata) as SharedV4ProviderOptions };
}

/** A fresh copy with members in canonical order; also what makes the options independent of the call's objects. */
function inCanonicalOrder<T extends JsonValue>(value: T): JSONObject {
  return JSON.parse(canonicalJson(value)) as JSONObject;
}

function isBlank(text: string): boolean {
  return text.trim() === "";
}
