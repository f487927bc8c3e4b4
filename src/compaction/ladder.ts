/**
 * Makes a transcript fit a summarizer's window, step by step, losing as little as possible. Pure: messages in, messages
 * or text out. The pinned task is not among them (it stands in the head), and the last unit is always kept.
 */
import { extractSummary } from "../domain/compaction/extract.ts";
import { canonicalJson } from "../domain/json.ts";
import { toolOutputText, type AssistantPart, type Message, type ToolResultPart } from "../domain/transcript/message.ts";
import { excerptText } from "./bounded-text.ts";
import { summarizerText, valueText } from "./summarizer-text.ts";

/** What one value of an older unit may take, from generous to hard. Below 512 bytes an error message loses its end. */
const CAPS = [8_192, 2_048, 512] as const;
/** A user's and an assistant's own words are worth more than a tool's output. */
const TEXT_FACTOR = 2;
/** Share of the room that the last unit may take when it does not fit as it is. */
const LAST_UNIT_SHARE = 0.5;

export type FittingRung = 0 | 1 | 2;

/** The messages at `rung` if they fit into `budgetBytes` of flattened text. */
export function fitMessages(messages: readonly Message[], rung: FittingRung, budgetBytes: number): readonly Message[] | undefined {
  switch (rung) {
    case 0:
      return fits(messages, budgetBytes) ? messages : undefined;
    case 1:
      for (const cap of CAPS) {
        const shorter = capMessages(messages, cap, budgetBytes);
        if (fits(shorter, budgetBytes)) return shorter;
      }
      return undefined;
    case 2:
      return dropFromMiddle(capMessages(messages, CAPS[2], budgetBytes), budgetBytes);
  }
}

/**
 * Consecutive pieces that each fit, at most `maxPieces`; undefined when there would be more. Units are never split, so
 * that a call and its result are read together.
 */
export function pieces(messages: readonly Message[], budgetBytes: number, maxPieces: number): Message[][] | undefined {
  for (const cap of CAPS) {
    const found = packed(capMessages(messages, cap, budgetBytes), budgetBytes, maxPieces);
    if (found !== undefined) return found;
  }
  return packed(withoutResults(capMessages(messages, CAPS[2], budgetBytes)), budgetBytes, maxPieces);
}

export interface SkeletonInput {
  readonly messages: readonly Message[];
  readonly previousSummary?: string | undefined;
  readonly obligations?: readonly string[] | undefined;
  readonly maxBytes: number;
}

/** Says what it is, for the model that reads it and the person who looks for the cause. */
export const SKELETON_NOTE = "(No summarizer could read this record. What follows was picked from it by fixed rules, word for word.)";

/** The last rung: no call, only rules. Holds what is open, and the end of the last unit. */
export function skeleton({ messages, previousSummary, obligations, maxBytes }: SkeletonInput): string {
  const last = messages.slice(lastUnitStart(messages));
  const lastText = excerptText(summarizerText(last), Math.floor(maxBytes / 4));
  const ending = lastText === "" ? "" : `\nLAST STEP:\n${lastText}`;
  const roomBytes = maxBytes - Buffer.byteLength(SKELETON_NOTE) - 1 - Buffer.byteLength(ending);
  // Extracting reads all; capped, a record of any size costs the same few megabytes.
  const record = summarizerText(capMessages(messages, CAPS[1], maxBytes));
  return `${SKELETON_NOTE}\n${extractSummary({ record, previousSummary, obligations, maxBytes: roomBytes })}${ending}`;
}

export function textBytes(messages: readonly Message[]): number {
  return messages.reduce((sum, message) => sum + messageBytes(message), 0);
}

function fits(messages: readonly Message[], budgetBytes: number): boolean {
  let bytes = 0;
  for (const message of messages) {
    bytes += messageBytes(message);
    if (bytes > budgetBytes) return false;
  }
  return true;
}

const sizes = new WeakMap<Message, number>();

/** Messages are never changed, and are measured at every rung. One byte for the line's end. */
function messageBytes(message: Message): number {
  let bytes = sizes.get(message);
  if (bytes === undefined) sizes.set(message, (bytes = Buffer.byteLength(summarizerText([message])) + 1));
  return bytes;
}

/** A user message, or a response with all its results. */
function unitStarts(messages: readonly Message[]): number[] {
  return messages.flatMap((message, i) => (message.role === "tool" && i > 0 ? [] : [i]));
}

function lastUnitStart(messages: readonly Message[]): number {
  return unitStarts(messages).at(-1) ?? 0;
}

function capMessages(messages: readonly Message[], capBytes: number, budgetBytes: number): Message[] {
  const lastStart = lastUnitStart(messages);
  const last = messages.slice(lastStart);
  const lastParts = Math.max(
    1,
    last.reduce((sum, { content }) => sum + content.length, 0),
  );
  // The last unit is what the agent was at: it stays whole as long as there is room for it.
  const isLastWhole = textBytes(last) <= budgetBytes * LAST_UNIT_SHARE;
  const lastCap = Math.max(64, Math.floor((budgetBytes * LAST_UNIT_SHARE) / lastParts) - 64);
  return messages.map((message, i) => (i < lastStart ? capMessage(message, capBytes, capBytes * TEXT_FACTOR) : isLastWhole ? message : capMessage(message, lastCap, lastCap)));
}

function capMessage(message: Message, valueCap: number, textCap: number): Message {
  if (messageBytes(message) <= valueCap) return message;
  switch (message.role) {
    case "user":
      return { role: "user", content: message.content.map((part) => (part.type === "text" ? { type: "text", text: capped(part.text, textCap) } : part)) };
    case "assistant":
      return { role: "assistant", content: message.content.map((part) => capPart(part, valueCap, textCap)) };
    case "tool":
      return { role: "tool", content: message.content.map((part) => ({ ...part, output: cappedValue(part.output, toolOutputText, valueCap) })) };
  }
}

function capPart(part: AssistantPart, valueCap: number, textCap: number): AssistantPart {
  switch (part.type) {
    case "reasoning":
      // Shown as a placeholder anyhow.
      return { type: "reasoning", text: "" };
    case "text":
      return { type: "text", text: capped(part.text, textCap) };
    case "tool_call": {
      const { metadata: _, ...call } = part;
      if (call.input !== undefined) return { ...call, input: cappedValue(call.input, (input) => canonicalJson(input), valueCap) };
      return call.arguments === undefined ? call : { ...call, arguments: capped(call.arguments, valueCap) };
    }
  }
}

/** Data URLs and bytes become placeholders first: half of one would not be known again. */
function capped(text: string, capBytes: number): string {
  return text.length * 3 <= capBytes ? text : excerptText(valueText(text), capBytes);
}

function cappedValue(value: ToolResultPart["output"], textOf: (value: ToolResultPart["output"]) => string, capBytes: number): ToolResultPart["output"] {
  if (typeof value === "string") return capped(value, capBytes);
  return textOf(value).length * 3 <= capBytes ? value : excerptText(valueText(value), capBytes);
}

/** Results go from the middle outwards: the first ones say what the work is about, the last ones where it stands. */
function dropFromMiddle(messages: readonly Message[], budgetBytes: number): Message[] | undefined {
  const lastStart = lastUnitStart(messages);
  const places = messages.flatMap((message, i) => (message.role === "tool" && i < lastStart ? [i] : []));
  const middle = (places.length - 1) / 2;
  const order = places.map((at, nth) => ({ at, distance: Math.abs(nth - middle) })).toSorted((a, b) => a.distance - b.distance || a.at - b.at);
  const result = [...messages];
  let bytes = textBytes(messages);
  for (const { at } of order) {
    if (bytes <= budgetBytes) return result;
    const without = dropResults(messages[at] as Message);
    bytes += messageBytes(without) - messageBytes(messages[at] as Message);
    result[at] = without;
  }
  return bytes <= budgetBytes ? result : undefined;
}

function withoutResults(messages: readonly Message[]): Message[] {
  const lastStart = lastUnitStart(messages);
  return messages.map((message, i) => (i < lastStart ? dropResults(message) : message));
}

function dropResults(message: Message): Message {
  if (message.role !== "tool") return message;
  return { role: "tool", content: message.content.map((part) => ({ ...part, output: leftOut(part) })) };
}

function leftOut({ output }: ToolResultPart): ToolResultPart["output"] {
  const text = toolOutputText(output);
  return text.length <= 40 ? output : `[result left out, ${Buffer.byteLength(text)} bytes]`;
}

function packed(messages: readonly Message[], budgetBytes: number, maxPieces: number): Message[][] | undefined {
  const starts = unitStarts(messages);
  const found: Message[][] = [];
  let room = 0;
  for (const [i, start] of starts.entries()) {
    const unit = messages.slice(start, starts[i + 1]);
    const bytes = textBytes(unit);
    if (bytes > budgetBytes) return undefined;
    const current = found.at(-1);
    if (current !== undefined && bytes <= room) {
      current.push(...unit);
      room -= bytes;
    } else {
      if (found.length === maxPieces) return undefined;
      found.push([...unit]);
      room = budgetBytes - bytes;
    }
  }
  return found;
}
