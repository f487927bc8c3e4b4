/** A scripted reply with everything filled in, the same for every protocol. */
import { createHash } from "node:crypto";
import type { Counted } from "./count.ts";
import type { ModelRequest, ScriptedFinish, ScriptedReply } from "./script.ts";

export type PlannedBlock =
  | { readonly kind: "reasoning"; readonly text: string; readonly signature: string }
  | { readonly kind: "redacted"; readonly data: string }
  | { readonly kind: "text"; readonly text: string }
  | { readonly kind: "call"; readonly id: string; readonly name: string; readonly arguments: string };

export interface PlannedUsage {
  readonly input: number;
  readonly cacheRead: number;
  readonly cacheWrite: number;
  readonly output: number;
  readonly reasoning: number;
}

export interface Plan {
  readonly index: number;
  readonly model: string;
  readonly blocks: readonly PlannedBlock[];
  readonly finish: ScriptedFinish;
  readonly usage: PlannedUsage;
  readonly chunkChars: number;
}

/** One server-sent event; `event` is its name where the protocol names events. */
export interface StreamEvent {
  readonly event?: string;
  readonly data: object | "[DONE]";
}

export function planReply(request: ModelRequest, reply: ScriptedReply, counted: Counted): Plan {
  const { index } = request;
  const reasoning = reply.reasoning === undefined ? [] : Array.isArray(reply.reasoning) ? reply.reasoning : [reply.reasoning];
  const blocks: PlannedBlock[] = [
    ...reasoning.map((block): PlannedBlock => {
      if (typeof block === "string") return { kind: "reasoning", text: block, signature: signatureOf(block) };
      if ("redacted" in block) return { kind: "redacted", data: block.redacted };
      return { kind: "reasoning", text: block.text, signature: block.signature ?? signatureOf(block.text) };
    }),
    ...(reply.text === undefined || reply.text === "" ? [] : [{ kind: "text", text: reply.text } as const]),
    ...(reply.toolCalls ?? []).map((call, k) => ({
      kind: "call" as const,
      id: call.id ?? `${request.protocol === "anthropic" ? "toolu" : "call"}_${index}_${k}`,
      name: call.name,
      arguments: typeof call.arguments === "string" ? call.arguments : JSON.stringify(call.arguments),
    })),
  ];
  const written = blocks.map((block) => (block.kind === "call" ? block.name + block.arguments : block.kind === "redacted" ? block.data : block.text));
  const thought = blocks.filter((block) => block.kind === "reasoning").map((block) => block.text);
  return {
    index,
    model: String(request.body["model"]),
    blocks,
    finish: reply.finish ?? ((reply.toolCalls ?? []).length > 0 ? "tool_calls" : "stop"),
    usage: {
      input: reply.usage?.input ?? counted.input,
      cacheRead: reply.usage?.cacheRead ?? (reply.usage?.input === undefined ? counted.cacheRead : 0),
      cacheWrite: reply.usage?.cacheWrite ?? (reply.usage?.input === undefined ? counted.cacheWrite : 0),
      output: reply.usage?.output ?? tokensOf(written.join("")),
      reasoning: reply.usage?.reasoning ?? tokensOf(thought.join("")),
    },
    chunkChars: Math.max(1, reply.chunkChars ?? 16),
  };
}

/** A rough count, as good as any for a server that has no tokenizer: four characters are a token. */
export function tokensOf(text: string): number {
  return Math.ceil(text.length / 4);
}

/** Signs reasoning so that the server can tell, also after a restart, whether it came back unchanged. */
export function signatureOf(text: string): string {
  return `sig_${createHash("sha256").update(text).digest("base64")}`;
}

export function pieces(text: string, chars: number): string[] {
  const out: string[] = [];
  // By code points: half of a surrogate pair in an event would be replaced on the wire.
  let piece = "";
  for (const point of text) {
    piece += point;
    if (piece.length >= chars) {
      out.push(piece);
      piece = "";
    }
  }
  if (piece !== "") out.push(piece);
  return out;
}
