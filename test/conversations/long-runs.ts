/**
 * Recorded conversations as runs that are far longer than their model's window, and the vendor that they talk to: one that
 * refuses what is longer than the window.
 */
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool, type Tool } from "../../src/agents/tool.ts";
import type { RunEvent } from "../../src/client/handle.ts";
import type { CompactionPolicy } from "../../src/domain/compaction/policy.ts";
import type { JsonObject } from "../../src/domain/json.ts";
import {
  chainConversations,
  replayScript,
  startModelServer,
  type ModelRequest,
  type ModelServer,
  type RecordedConversation,
  type RecordedMessage,
  type ScriptedReply,
} from "../../src/testing/model-server/index.ts";
import { sha256Hex, type AnyAgent } from "../engine/harness.ts";
import { airline, journaled, recorded, type Said } from "./replay.ts";

/** Of every model here, in tokens as the server counts them. */
export const WINDOW = 10_000;
export const SUMMARY = "DONE: the customers before this one were served as the policy allows; what they asked for is recorded. OPEN: the customer at hand.";
const MAX_OUTPUT_TOKENS = 1_000;

const tokensIn = (text: string): number => text.length / 4;

function bytesOf({ messages }: RecordedConversation): number {
  return messages.reduce(
    (sum, { role, content, tool_calls: calls }) =>
      sum + (role === "system" ? 0 : (content ?? "").length + (calls ?? []).reduce((all, call) => all + call.function.arguments.length, 0)),
    0,
  );
}

/** Recordings of large results first: so many windows in as few turns as they have. */
const dense = airline.toSorted((a, b) => bytesOf(b) / b.messages.length - bytesOf(a) / a.messages.length);

/** One conversation of at least so many windows, made of recordings that nobody else has: `from` says where to begin. */
export function longConversation(windows: number, from = 0): { readonly conversation: RecordedConversation; readonly next: number } {
  const taken: RecordedConversation[] = [];
  let next = from;
  for (let tokens = 0; tokens < windows * WINDOW; next++) {
    const one = dense[next];
    if (one === undefined) throw new Error("there are too few recordings");
    taken.push(one);
    tokens += bytesOf(one) / 4;
  }
  return { conversation: chainConversations(taken), next };
}

const call = (id: string, name: string, input: JsonObject): RecordedMessage => ({
  role: "assistant",
  content: null,
  tool_calls: [{ id, type: "function", function: { name, arguments: JSON.stringify(input) } }],
});

/** The same conversation without a person in it: what was said to the customer is a call, and what they said its result. */
export function autonomous({ id, messages }: RecordedConversation): RecordedConversation {
  const made: RecordedMessage[] = [];
  messages.forEach((message, i) => {
    const answered = messages.slice(
      i + 1,
      messages.findIndex((later, at) => at > i && later.role !== "user"),
    );
    if (message.role === "user" && made.some(({ role }) => role === "user")) return;
    if (message.role !== "assistant" || (message.tool_calls ?? []).length > 0 || messages[i + 1]?.role !== "user") return void made.push(message);
    made.push(call(`reply_${i}`, "reply", { text: message.content ?? "" }));
    made.push({ role: "tool", tool_call_id: `reply_${i}`, content: answered.map(({ content }) => content ?? "").join("\n\n") || "The customer has left." });
  });
  return { id, messages: made };
}

/** A call that the engine carries out, in front of the recording's n-th answer. */
export function withCall({ id, messages }: RecordedConversation, n: number, name: string, input: JsonObject): RecordedConversation {
  const at = messages.flatMap(({ role }, i) => (role === "assistant" ? [i] : []))[n];
  if (at === undefined) throw new Error(`the recording has no answer ${n}`);
  const callId = `${name}_${n}`;
  return { id, messages: messages.toSpliced(at, 0, call(callId, name, input), { role: "tool", tool_call_id: callId, content: "" }) };
}

export interface LongRun {
  readonly conversation: RecordedConversation;
  readonly agent: AnyAgent;
  readonly wireModel: string;
}

export interface LongRunSpec {
  readonly name: string;
  readonly provider: "anthropic" | "openai-chat" | "openai";
  readonly compaction?: CompactionPolicy;
  readonly interactive?: boolean;
  readonly engineTools?: readonly Tool[];
  readonly spawn?: { readonly agents: readonly string[] };
}

/** Turn and place name the recorded call: a turn of these runs is one answer. */
export function longRun(conversation: RecordedConversation, { name, provider, compaction, engineTools = [], ...more }: LongRunSpec): LongRun {
  const script = replayScript(conversation);
  const carriedOut = new Set(["agent", ...engineTools.map(({ definition }) => definition.name)]);
  const tools = script.tools
    .filter((one) => !carriedOut.has(one.name))
    .map((one) =>
      tool({
        name: one.name,
        description: `The ${one.name} of the recording.`,
        input: z.looseObject(Object.fromEntries(one.argumentNames.map((argument) => [argument, z.unknown().optional()]))),
        effect: "read",
        execute: (_, { turn, idempotencyKey }) => script.resultOf(turn - 1, Number(idempotencyKey.split(":").at(-1))),
      }),
    );
  const wireModel = `long-${name}`;
  return {
    conversation,
    wireModel,
    agent: agent({
      name,
      model: `${provider}:${wireModel}`,
      instructions: script.system === "" ? "Serve the customers." : script.system,
      tools: [...tools, ...engineTools],
      limits: { maxTurns: 2_000 },
      settings: { maxOutputTokens: MAX_OUTPUT_TOKENS },
      warnTranscriptBytes: false,
      ...(compaction === undefined ? {} : { compaction }),
      ...more,
    }),
  };
}

export interface Vendor extends AsyncDisposable {
  readonly server: ModelServer;
  readonly catalogue: { readonly env: Record<string, string>; readonly baseUrls: Record<string, string>; readonly windows: Record<string, number> };
  /** Requests of one model, byte for byte, in order. */
  raw(wireModel: string): string[];
  /** Requests that were refused for length: those that never came to the script. */
  refusedForLength(): number;
}

/**
 * Answers each request that it has not seen with the next recorded answer, and one that it has seen as before: so two
 * copies of a run get the same answers as long as they ask the same, to the byte.
 */
export async function openVendor(
  runs: readonly LongRun[],
  more: { readonly before?: (wireModel: string) => Promise<void>; readonly others?: (request: ModelRequest) => ScriptedReply | undefined } = {},
): Promise<Vendor> {
  let answered = 0;
  const scripts = new Map(runs.map(({ wireModel, conversation }) => [wireModel, replayScript(conversation)]));
  const asked = new Map<string, Map<string, number>>();
  const server = await startModelServer({
    windowTokens: WINDOW,
    async respond(request) {
      answered++;
      const model = String(request.body["model"]);
      if (model === "long-summary") return { text: SUMMARY };
      const other = more.others?.(request);
      if (other !== undefined) return other;
      const script = scripts.get(model);
      if (script === undefined) throw new Error(`no recording for ${model}`);
      const seen = asked.get(model) ?? new Map<string, number>();
      asked.set(model, seen);
      const key = sha256Hex(request.raw);
      const place = seen.get(key) ?? seen.size;
      seen.set(key, place);
      await more.before?.(model);
      return script.respond({ ...request, index: place });
    },
  });
  const models = new Set([...runs.map(({ agent: { definition } }) => definition.model), ...["anthropic", "openai-chat", "openai"].map((provider) => `${provider}:long-summary`)]);
  return {
    server,
    catalogue: {
      env: { ANTHROPIC_API_KEY: "key-a", OPENAI_API_KEY: "key-o" },
      baseUrls: { anthropic: server.anthropicBaseUrl, openai: server.openaiBaseUrl, "openai-chat": server.openaiBaseUrl },
      windows: Object.fromEntries([...models].map((name) => [name, WINDOW])),
    },
    raw: (wireModel) => server.requests.filter(({ body }) => body["model"] === wireModel).map(({ raw }) => raw),
    refusedForLength: () => server.requests.length - answered,
    [Symbol.asyncDispose]: () => server.close(),
  };
}

/** What a request would hold at the end of the run if nothing had been compacted. */
export function transcriptTokens(events: readonly RunEvent[]): number {
  return journaled(events).reduce(
    (sum, said) => sum + tokensIn(said.role === "tool" ? JSON.stringify(said.result) : said.role === "user" ? said.text : said.text + JSON.stringify(said.calls)),
    0,
  );
}

/** The model's own part, in the journal and in the recording. */
export const answersIn = (said: readonly Said[]): Said[] => said.filter(({ role }) => role === "assistant");
export const recordedAnswers = (conversation: RecordedConversation): Said[] => answersIn(recorded(conversation));
