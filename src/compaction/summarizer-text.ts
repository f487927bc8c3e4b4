/**
 * Messages as plain text for a summarizer: who said what, which tool was called with what, and what came back. Takes
 * anything (a user's own effect may hand over what it likes), unwraps tainted values, never throws, and gives no more
 * than its bound: the caller taints the whole again.
 */
import { isTainted } from "../domain/taint.ts";
import { BoundedText } from "./bounded-text.ts";
import { asObject, cleanText, isReasoning, mediaPlaceholder, memberOf, REASONING_LEFT_OUT, writeValue } from "./value-text.ts";

/** Ends a text that was cut. */
export const SUMMARIZER_TEXT_TRUNCATED = "\n[the record is cut here: the rest did not fit]";

/** More than any window holds today (some million tokens); a JavaScript string of this size costs nothing to speak of. */
export const MAX_SUMMARIZER_TEXT_BYTES = 4 * 1024 * 1024;

export interface SummarizerTextOptions {
  /** UTF-8 bytes, the mark included; default and most 4 MiB. */
  readonly maxBytes?: number;
}

/**
 * One entry per line: `role: text`, `role [tool_use name]: input`, `role [tool_result]: text` (with the tool's name
 * where several results stand together). A line of content that looks like such an entry is indented. Media, data URLs
 * and reasoning become placeholders.
 */
export function summarizerText(messages: unknown, { maxBytes = MAX_SUMMARIZER_TEXT_BYTES }: SummarizerTextOptions = {}): string {
  const out = new BoundedText(Number.isNaN(maxBytes) ? MAX_SUMMARIZER_TEXT_BYTES : Math.min(maxBytes, MAX_SUMMARIZER_TEXT_BYTES), SUMMARIZER_TEXT_TRUNCATED);
  const all = unwrap(messages);
  if (Array.isArray(all)) {
    for (const message of all as unknown[]) {
      if (out.isCut) break;
      writeMessage(out, unwrap(message));
    }
  } else writeMessage(out, all);
  return out.toString();
}

/** What a model reads of one value, without data URLs: for a cap on it. */
export function valueText(value: unknown): string {
  const out = new BoundedText(MAX_SUMMARIZER_TEXT_BYTES, SUMMARIZER_TEXT_TRUNCATED);
  writeValue(out, value);
  return out.toString();
}

function writeMessage(out: BoundedText, message: unknown): void {
  const object = asObject(message);
  const role = object === undefined ? undefined : unwrap(memberOf(object, "role"));
  if (object === undefined || typeof role !== "string") {
    if (!out.isEmpty) out.write("\n");
    writeValue(out, message);
    return;
  }
  const name = tagName(role, 32);
  const content = unwrap(memberOf(object, "content"));
  if (Array.isArray(content)) {
    const parts = content as unknown[];
    const severalResults = parts.length > 1 && parts.filter((part) => kindOf(part) === "tool_result").length > 1;
    for (const part of parts) {
      if (out.isCut) return;
      writePart(out, name, unwrap(part), severalResults);
    }
  } else if (content !== undefined && content !== null) line(out, name, "", content);
  // As some vendors write a message's calls.
  const calls = unwrap(memberOf(object, "tool_calls"));
  if (Array.isArray(calls)) for (const call of calls as unknown[]) writeForeignCall(out, name, unwrap(call));
}

function writePart(out: BoundedText, role: string, part: unknown, severalResults: boolean): void {
  const object = asObject(part);
  if (object === undefined) {
    line(out, role, "", part);
    return;
  }
  switch (kindOf(part)) {
    case "text":
      line(out, role, "", memberOf(object, "text"));
      return;
    case "reasoning":
      line(out, role, "", REASONING_LEFT_OUT);
      return;
    case "tool_use":
      line(out, role, `tool_use ${tagName(memberOf(object, "name") ?? memberOf(object, "toolName"), 128)}`, firstOf(object, ["input", "arguments", "args"]) ?? {});
      return;
    case "tool_result": {
      const tool = severalResults ? ` ${tagName(memberOf(object, "name") ?? memberOf(object, "toolName"), 128)}` : "";
      line(out, role, `tool_result${tool}${memberOf(object, "is_error") === true ? ", failed" : ""}`, firstOf(object, ["output", "content", "result"]) ?? "");
      return;
    }
    case "media":
      line(out, role, "", mediaPlaceholder(object));
      return;
    case undefined:
      line(out, role, "", object);
  }
}

function writeForeignCall(out: BoundedText, role: string, call: unknown): void {
  const object = asObject(call);
  if (object === undefined || out.isCut) return;
  const fn = asObject(unwrap(memberOf(object, "function"))) ?? object;
  line(out, role, `tool_use ${tagName(memberOf(fn, "name"), 128)}`, firstOf(fn, ["input", "arguments", "args"]) ?? {});
}

function line(out: BoundedText, role: string, tag: string, value: unknown): void {
  if (!out.isEmpty) out.write("\n");
  out.write(tag === "" ? `${role}: ` : `${role} [${tag}]: `);
  const plain = unwrap(value);
  if (typeof plain === "string") out.write(withoutTags(cleanText(plain)));
  else writeValue(out, plain);
}

/** A tool that returns "\nuser: do this instead" must not speak as the user in the flattened text. */
function withoutTags(text: string): string {
  return text.replaceAll(/^(?=(?:user|assistant|tool|system|developer|function|human|ai|message)(?: \[[^\]\n]{0,200}\])?:)/gim, "  ");
}

type Kind = "text" | "reasoning" | "tool_use" | "tool_result" | "media" | undefined;

function kindOf(part: unknown): Kind {
  const object = asObject(unwrap(part));
  if (object === undefined) return undefined;
  if (isReasoning(object)) return "reasoning";
  const type = memberOf(object, "type");
  switch (type) {
    case "text":
    case "input_text":
    case "output_text":
      return "text";
    case "tool_call":
    case "tool_use":
    case "tool-call":
    case "function_call":
      return "tool_use";
    case "tool_result":
    case "tool-result":
    case "function_call_output":
      return "tool_result";
    default:
      return mediaPlaceholder(object) === undefined ? undefined : "media";
  }
}

function firstOf(object: object, keys: readonly string[]): unknown {
  return keys.map((key) => unwrap(memberOf(object, key))).find((value) => value !== undefined);
}

/** Tainted values may stand in tainted values. */
export function unwrap(value: unknown): unknown {
  let inner = value;
  try {
    for (let depth = 0; depth < 64 && isTainted(inner); depth++) inner = inner.value;
  } catch {
    return "[unreadable]";
  }
  return inner;
}

/** A name inside a tag cannot end the tag. */
function tagName(name: unknown, maxChars: number): string {
  const text = typeof name === "string" ? name.slice(0, maxChars).replaceAll(/[^\w./:-]/g, "_") : "";
  return text === "" ? "unnamed" : text;
}
