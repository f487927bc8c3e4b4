/**
 * The one workload of all benchmarks: a fixed text from a seed. A turn is an answer with some prose and one tool call
 * (383 bytes as a canonical message) and the tool's result (2,000 bytes), 2,383 bytes of transcript together. With a
 * prompt of 7,168 bytes the transcript reaches 128 KiB at turn 52 and 256 KiB at turn 107.
 */
import { messageText, type AssistantMessage, type Message, type ToolMessage } from "../../src/domain/transcript/message.ts";

export const PROMPT_BYTES = 7_168;
export const ANSWER_BYTES = 383;
export const RESULT_BYTES = 2_000;
export const TOOL_NAME = "lookup";

export interface TurnTexts {
  readonly callId: string;
  readonly text: string;
  readonly query: string;
  readonly result: string;
}

/** Uniform numbers in [0, 1), the same on every machine (a 32-bit Weyl sequence, mixed). */
export function seeded(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x9e3779b9) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 16), 0x21f0aaad);
    mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97);
    return ((mixed ^ (mixed >>> 15)) >>> 0) / 2 ** 32;
  };
}

const common = "the of and to in is that for it as was with be by on not he this are or his from at which but have an had they you were".split(" ");
const onsets = ["b", "c", "d", "f", "g", "l", "m", "n", "p", "r", "s", "t", "v", "st", "tr", "pl", "ch"];
const vowels = ["a", "e", "i", "o", "u", "ea", "io"];
const codas = ["", "", "n", "r", "s", "l", "nd", "ck", "st"];

function makeWords(count: number): string[] {
  const random = seeded(7);
  const pick = (list: readonly string[]): string => list[Math.floor(random() * list.length)] ?? "";
  return Array.from({ length: count }, () => {
    let word = "";
    for (let syllables = 1 + Math.floor(random() * 3); syllables > 0; syllables--) word += pick(onsets) + pick(vowels) + pick(codas);
    return word;
  });
}
const rare = makeWords(2_500);

/** Pseudo-prose of exactly so many ASCII characters: about two words in five are common ones, as in English. */
export function prose(length: number, seed: number): string {
  const random = seeded(seed);
  let text = "";
  while (text.length < length) {
    const from = random() < 0.4 ? common : rare;
    // Squared: words at the front of the list come more often.
    text += `${from[Math.floor(random() ** 2 * from.length)] ?? ""} `;
  }
  return text.slice(0, length);
}

export function answerMessage({ callId, text, query }: TurnTexts): AssistantMessage {
  return {
    role: "assistant",
    content: [
      { type: "text", text },
      { type: "tool_call", call_id: callId, name: TOOL_NAME, input: { query } },
    ],
  };
}

export function resultMessage({ callId, result }: TurnTexts): ToolMessage {
  return { role: "tool", content: [{ type: "tool_result", call_id: callId, name: TOOL_NAME, output: result }] };
}

/** Distinct texts made beforehand, so that making them costs nothing while a clock runs. */
const POOL = 64;
const blank: TurnTexts = { callId: idOfCall(0), text: "", query: prose(48, 3), result: "" };
const pool = Array.from({ length: POOL }, (_, i) => ({
  text: prose(ANSWER_BYTES - sizeOf(answerMessage(blank)), 1_000 + i),
  query: prose(48, 2_000 + i),
  result: prose(RESULT_BYTES - sizeOf(resultMessage(blank)), 5_000 + i),
}));

export function turnTexts(turn: number): TurnTexts {
  const texts = pool[(turn * 11) % POOL] as (typeof pool)[number];
  return { callId: idOfCall(turn), ...texts };
}

export const FINAL_TEXT = "The ledger is in order.";
export const promptText = prose(PROMPT_BYTES - sizeOf({ role: "user", content: [{ type: "text", text: "" }] }), 99);

/** A slow model's time for one call: 0.5 to 1.5 times the mean, the same for every engine. */
export function modelDelayMs(run: number, turn: number, meanMs: number): number {
  return meanMs * (0.5 + seeded(run * 1_009 + turn * 7_919 + 1)());
}

function idOfCall(turn: number): string {
  return `call_${String(turn).padStart(6, "0")}`;
}

function sizeOf(message: Message): number {
  return Buffer.byteLength(messageText(message));
}
