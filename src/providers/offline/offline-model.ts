/** What all offline models share: they are pure functions of the call, count in words, and take as long as they are told. */
import { setTimeout as sleep } from "node:timers/promises";
import type { CanonicalCall } from "../../domain/call.ts";
import { deltasOf } from "../../domain/delta.ts";
import { canonicalJson } from "../../domain/json.ts";
import { toolOutputText, type AssistantPart, type Message } from "../../domain/transcript/message.ts";
import type { Usage } from "../../domain/usage.ts";
import type { Model } from "../../engine/model-port.ts";
import { VERSION } from "../../version.ts";

export interface OfflineModelOptions {
  readonly name: string;
  /** Milliseconds that a call takes: an offline model answers at once, which hides what a real one shows (leases, queues, stops). */
  readonly thinkMs: number;
  /** The same call always gives the same answer, so that a run goes on anywhere. Must not throw. */
  readonly respond: (call: CanonicalCall) => readonly AssistantPart[];
}

export function offlineModel({ name, thinkMs, respond }: OfflineModelOptions): Model {
  return {
    name,
    structuredOutput: false,
    // There is no window: nothing here gets worse with length.
    window: { tokens: undefined, source: "unknown" },
    async call(call, { signal, onDelta }) {
      if (thinkMs > 0) {
        // Rejects only when the signal fires, which is looked at below.
        await sleep(thinkMs, undefined, { signal }).catch(() => {});
      }
      if (signal.aborted) return { kind: "aborted" };
      const content = respond(call);
      for (const delta of deltasOf(content)) onDelta?.(delta);
      return {
        kind: "responded",
        content,
        finish: { reason: content.some((part) => part.type === "tool_call") ? "tool_calls" : "stop" },
        usage: wordUsage(call, content),
        servedModel: `${name}@${VERSION}`,
      };
    },
  };
}

/** Words sent and received, marked as an offline model's own count: never to be mistaken for a vendor's tokens. */
function wordUsage(call: CanonicalCall, content: readonly AssistantPart[]): Usage {
  const head = call.tools.reduce((sum, tool) => sum + countWords(tool.description), countWords(call.system));
  const input = call.messages.reduce((sum, message) => sum + wordsOf(message.content), head);
  return { input, output: wordsOf(content), scale: "offline" };
}

function wordsOf(parts: Message["content"]): number {
  return parts.reduce((sum, part) => {
    switch (part.type) {
      case "text":
      case "reasoning":
        return sum + countWords(part.text);
      case "tool_call":
        return sum + 1 + countWords(part.arguments ?? canonicalJson(part.input ?? null));
      case "tool_result":
        return sum + countWords(toolOutputText(part.output));
      case "file":
        return sum;
    }
  }, 0);
}

/** Runs of characters that are not white space (code units up to the space), counted without making strings of them. */
export function countWords(text: string): number {
  let words = 0;
  let inside = false;
  for (let i = 0; i < text.length; i++) {
    const isSpace = text.charCodeAt(i) <= 32;
    if (!isSpace && !inside) words++;
    inside = !isSpace;
  }
  return words;
}
