/** Recorded conversations as agents, their model as a server that speaks the vendors' protocols, their users as a driver. */
import { readFileSync } from "node:fs";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import type { AnyAgent } from "../engine/harness.ts";
import type { RunEvent } from "../../src/client/handle.ts";
import { canonicalJson, type JsonValue } from "../../src/domain/json.ts";
import {
  parseConversations,
  replayScript,
  type ModelRequest,
  type Protocol,
  type RecordedConversation,
  type ReplayScript,
  type ScriptedReply,
} from "../../src/testing/model-server/index.ts";

export type { RecordedConversation } from "../../src/testing/model-server/index.ts";

export const airline = read("tau-airline");
export const coding = read("swe-agent");

function read(name: string): RecordedConversation[] {
  return parseConversations(readFileSync(new URL(`../fixtures/conversations/${name}.jsonl`, import.meta.url), "utf8"));
}

/** The model's name carries the conversation: by it the server knows which script a request belongs to. */
const modelNames: Readonly<Record<Protocol, (id: string) => string>> = {
  "openai-chat": (id) => `openai-chat:gpt-4.1-${id}`,
  "openai-responses": (id) => `openai:gpt-4.1-${id}`,
  anthropic: (id) => `anthropic:claude-sonnet-4-5-${id}`,
};

export interface Replay {
  readonly conversation: RecordedConversation;
  readonly protocol: Protocol;
  readonly script: ReplayScript;
  readonly agent: AnyAgent;
  /** As the vendor's client writes it into the body. */
  readonly wireModel: string;
  /** What the user said at once, in order: recordings that were chained have two user messages side by side. */
  readonly inputs: readonly (readonly string[])[];
}

export function replayOf(conversation: RecordedConversation, protocol: Protocol, id = conversation.id): Replay {
  const script = replayScript(conversation);
  const model = modelNames[protocol](id);
  const tools = script.tools.map(({ name: toolName, argumentNames }) =>
    tool({
      name: toolName,
      description: `The ${toolName} of the recording.`,
      input: z.looseObject(Object.fromEntries(argumentNames.map((name) => [name, z.unknown().optional()]))),
      // A turn is one answer, so turn and place name the recorded call; ids repeat within these recordings.
      execute: (_input, { turn, idempotencyKey }) => script.resultOf(turn - 1, Number(idempotencyKey.split(":").at(-1))),
    }),
  );
  return {
    conversation,
    protocol,
    script,
    agent: agent({ name: `${protocol}.${id}`, model, instructions: script.system, tools, interactive: true, warnTranscriptBytes: false }),
    wireModel: model.slice(model.indexOf(":") + 1),
    inputs: inputsOf(conversation),
  };
}

function inputsOf({ messages }: RecordedConversation): string[][] {
  const inputs: string[][] = [];
  messages.forEach((message, i) => {
    if (message.role !== "user") return;
    if (messages[i - 1]?.role === "user") inputs.at(-1)?.push(message.content ?? "");
    else inputs.push([message.content ?? ""]);
  });
  return inputs;
}

/** Answers each request from the script of the conversation that its model's name carries. */
export function respondFrom(replays: readonly Replay[]): (request: ModelRequest) => ScriptedReply {
  const byModel = new Map(replays.map((replay) => [`${replay.protocol} ${replay.wireModel}`, replay]));
  return (request) => {
    const replay = byModel.get(`${request.protocol} ${String(request.body["model"])}`);
    if (replay === undefined) throw new Error(`no recording for ${String(request.body["model"])}`);
    return replay.script.respondByTranscript(request);
  };
}

export type Said =
  | { readonly role: "user"; readonly text: string }
  | { readonly role: "assistant"; readonly text: string; readonly calls: readonly (readonly [id: string, name: string, input: string])[] }
  | { readonly role: "tool"; readonly id: string; readonly result: string };

const THE_END: Said = { role: "assistant", text: "The recorded conversation ends here.", calls: [] };

/** The transcript as it was recorded, with the closing answer that the server gives where the recording stops. */
export function recorded({ messages }: RecordedConversation): Said[] {
  const said = messages.flatMap((message): Said[] => {
    switch (message.role) {
      case "system":
        return [];
      case "user":
        return [{ role: "user", text: message.content ?? "" }];
      case "assistant":
        return [
          {
            role: "assistant",
            text: message.content ?? "",
            calls: (message.tool_calls ?? []).map((call) => [call.id, call.function.name, canonicalJson(JSON.parse(call.function.arguments) as JsonValue)]),
          },
        ];
      case "tool":
        return [{ role: "tool", id: message.tool_call_id ?? "", result: message.content ?? "" }];
    }
  });
  return said.at(-1)?.role === "assistant" ? said : [...said, THE_END];
}

interface Part {
  readonly type: string;
  readonly text: string;
  readonly call_id: string;
  readonly name: string;
  readonly input: JsonValue;
}

/** The transcript as it stands in Postgres. */
export function journaled(events: readonly RunEvent[]): Said[] {
  return events.flatMap(({ type, payload }): Said[] => {
    switch (type) {
      case "run.created":
        return [{ role: "user", text: payload["input"] as string }];
      case "input.applied":
        return [{ role: "user", text: textOf(payload["content"] as unknown as Part[]) }];
      case "model.responded": {
        const content = payload["content"] as unknown as Part[];
        const calls = content.filter((part) => part.type === "tool_call").map((part) => [part.call_id, part.name, canonicalJson(part.input)] as const);
        return [{ role: "assistant", text: textOf(content), calls }];
      }
      case "tool.completed":
        return [{ role: "tool", id: payload["call_id"] as string, result: payload["output"] as string }];
      default:
        return [];
    }
  });
}

function textOf(parts: readonly Part[]): string {
  return parts
    .filter((part) => part.type === "text")
    .map((part) => part.text)
    .join("");
}
