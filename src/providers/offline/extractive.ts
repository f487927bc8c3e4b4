/**
 * `offline:extractive`: a summarizer by fixed rules, for runs without a network: it picks lines that hold numbers, names,
 * places, errors, decisions, what is done and what is open, and drops those that a newer one replaces. It invents nothing,
 * understands nothing, and says in its docs and its name that it is no language model. The built-in summarizer of runs on
 * `offline:*` models; as an agent's own model it answers once, with an extract of what it was given.
 */
import type { CanonicalCall } from "../../domain/call.ts";
import { EXTRACTIVE_MODEL, extractSummary } from "../../domain/compaction/extract.ts";
import { readMaterial } from "../../domain/compaction/material.ts";
import { DEFAULT_SUMMARY_TOKENS } from "../../domain/compaction/size.ts";
import { toolOutputText, type AssistantPart, type Message } from "../../domain/transcript/message.ts";
import type { Model } from "../../engine/model-port.ts";
import { offlineModel } from "./offline-model.ts";

/** Ours, where no tokenizer is: four bytes of English text. */
const BYTES_PER_TOKEN = 4;

export function offlineExtractive({ thinkMs = 0 }: { readonly thinkMs?: number } = {}): Model {
  return offlineModel({ name: EXTRACTIVE_MODEL, thinkMs, respond: extractiveAnswer });
}

/** Pure: the same call, the same answer. No text at all when there is nothing to extract. */
export function extractiveAnswer(call: Pick<CanonicalCall, "messages" | "settings">): AssistantPart[] {
  const last = call.messages.at(-1);
  const material = last?.role === "user" ? readMaterial(last.content.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("")) : undefined;
  const limitTokens = call.settings.maxOutputTokens ?? DEFAULT_SUMMARY_TOKENS;
  const tokens = material === undefined || material.targetTokens === 0 ? limitTokens : Math.min(limitTokens, material.targetTokens);
  const text = extractSummary({ ...(material ?? { record: call.messages.map(plainText).join("\n") }), maxBytes: tokens * BYTES_PER_TOKEN });
  return text === "" ? [] : [{ type: "text", text }];
}

function plainText({ role, content }: Message): string {
  const texts = content.flatMap((part) => (part.type === "text" ? [part.text] : part.type === "tool_result" ? [toolOutputText(part.output)] : []));
  return texts.map((text) => `${role}: ${text}`).join("\n");
}
