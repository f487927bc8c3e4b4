/**
 * The ledger of side effects done: what an agent must not do again, told apart from the summary, which may forget it.
 * Equal calls are one line with counts, so that 20 clones are one line (C44).
 */
import type { ToolEffect } from "../definition.ts";
import { canonicalJson, type JsonValue } from "../json.ts";
import { utf8Length } from "../transcript/chain.ts";
import { toolOutputText, type Message, type ToolCallPart, type ToolResultPart } from "../transcript/message.ts";
import type { LedgerDigest, LedgerLine, Place } from "./types.ts";

/** Of one argument; longer ones are content, not a key. */
const MAX_VALUE_CHARS = 80;
const MAX_ARGS_CHARS = 240;
/** How a call is told that was started and whose end is not known (transcript/derive.ts). */
const UNKNOWN_OUTCOME = "OUTCOME_UNKNOWN:";

export interface LedgerInput {
  readonly messages: readonly Message[];
  readonly places: readonly Place[];
  /** `read` leaves no trace outside and is no side effect; undefined: the agent has no such tool, so nothing was done. */
  readonly toolEffect: (name: string) => ToolEffect | undefined;
  readonly previous: readonly LedgerLine[];
  /** What the cap left out before. */
  readonly before?: LeftOut | undefined;
  readonly capBytes: number;
}

interface LeftOut {
  /** Distinct lines. */
  readonly count: number;
  /** The newest of them, in the order in which they were left out: at most MAX_DIGESTS. */
  readonly digests: readonly LedgerDigest[];
}

/**
 * Some 20 KB of a marker. A call that is made again after that many others were left out begins at 1 anew, and the head
 * says that this may be; all of them would grow with the run, and a task never reads its run's whole journal.
 */
export const MAX_DIGESTS = 1_024;

/** Lines in order of their last call, the newest last; over the cap the oldest are left out, counted, and known again. */
export function composeLedger({ messages, places, toolEffect, previous, before, capBytes }: LedgerInput): { readonly lines: LedgerLine[]; readonly leftOut: LeftOut } {
  const lines = new Map(previous.map((line) => [keyOf(line), { ...line }]));
  const digests = new Map((before?.digests ?? []).map((digest) => [digest[0], digest]));
  let forgotten = (before?.count ?? 0) - digests.size;
  for (const { call, result, seq } of answeredCalls(messages, places)) {
    const effect = toolEffect(call.name);
    if (effect === undefined || effect === "read") continue;
    const fresh: LedgerLine = { tool: call.name, args: argsText(call), ok: 0, failed: 0, unknown: 0, last_seq: seq };
    const line = lines.get(keyOf(fresh)) ?? takenBack(fresh, digests);
    line[outcomeOf(result)]++;
    line.last_seq = Math.max(line.last_seq, seq);
    lines.set(keyOf(line), line);
  }
  const ordered = [...lines.values()].toSorted((a, b) => b.last_seq - a.last_seq || (keyOf(a) < keyOf(b) ? -1 : 1));
  let bytes = 0;
  const fitting = ordered.findIndex((line) => (bytes += utf8Length(ledgerText(line)) + 1) > capBytes);
  const kept = fitting === -1 ? ordered : ordered.slice(0, fitting);
  const out = [...digests.values(), ...ordered.slice(kept.length).toReversed().map(digestOf)];
  const known = out.slice(-MAX_DIGESTS);
  forgotten += out.length - known.length;
  return { lines: kept.toReversed(), leftOut: { count: forgotten + known.length, digests: known } };
}

/** The line goes on where it was left out. */
function takenBack(fresh: LedgerLine, digests: Map<string, LedgerDigest>): LedgerLine {
  const mark = digestMark(fresh);
  const [, ok, failed, unknown] = digests.get(mark) ?? [mark, 0, 0, 0];
  digests.delete(mark);
  return { ...fresh, ok, failed, unknown };
}

const digestOf = (line: LedgerLine): LedgerDigest => [digestMark(line), line.ok, line.failed, line.unknown];

export function ledgerText({ tool, args, ok, failed, unknown }: LedgerLine): string {
  const counts = [
    [ok, "ok"],
    [failed, "failed"],
    [unknown, "outcome unknown"],
  ].flatMap(([count, word]) => (count === 0 ? [] : [`${count} ${word}`]));
  return `${tool} ${args}: ${counts.join(", ")}`;
}

const keyOf = ({ tool, args }: LedgerLine): string => `${tool} ${args}`;

/** Two hashes from different beginnings: among a thousand lines 32 bits alone would now and then take one for another. */
function digestMark(line: LedgerLine): string {
  const key = keyOf(line);
  return `${markOf(key)}${markOf(`${key.length}/${key}`)}`;
}

/** Ids repeat, even within a response: a result belongs to the response right before it, and equal ids pair in order. */
function* answeredCalls(messages: readonly Message[], places: readonly Place[]): Generator<{ call: ToolCallPart; result: ToolResultPart; seq: number }> {
  let calls: ToolCallPart[] = [];
  for (const [at, message] of messages.entries()) {
    if (message.role === "assistant") calls = message.content.filter((part) => part.type === "tool_call");
    if (message.role !== "tool") continue;
    for (const [i, result] of message.content.entries()) {
      const asked = calls.findIndex(({ call_id }) => call_id === result.call_id);
      const [call] = asked === -1 ? [] : calls.splice(asked, 1);
      const place = places[at];
      if (call !== undefined && place !== undefined) yield { call, result, seq: place.parts?.[i] ?? place.last };
    }
  }
}

function outcomeOf({ output, is_error }: ToolResultPart): "ok" | "failed" | "unknown" {
  if (is_error !== true) return "ok";
  return toolOutputText(output).startsWith(UNKNOWN_OUTCOME) ? "unknown" : "failed";
}

/** Arguments in canonical order, long values and whatever is too much cut with a mark that tells different ones apart. */
function argsText({ input, arguments: written }: ToolCallPart): string {
  const whole = input === undefined ? (written ?? "") : canonicalJson(input);
  const short = input === undefined ? whole : canonicalJson(shortened(input));
  return short.length <= MAX_ARGS_CHARS && short === whole ? whole : `${cut(short, MAX_ARGS_CHARS)} #${markOf(whole)}`;
}

function shortened(value: JsonValue): JsonValue {
  if (typeof value === "string") return cut(value, MAX_VALUE_CHARS);
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return (value as readonly JsonValue[]).map(shortened);
  return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, shortened(member)]));
}

function cut(text: string, chars: number): string {
  return text.length <= chars
    ? text
    : `${text
        .slice(0, chars)
        .toWellFormed()
        .replace(/\uFFFD$/, "")}…`;
}

/** FNV-1a: to tell lines apart, not to prove anything. */
function markOf(text: string): string {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193) >>> 0;
  return hash.toString(16).padStart(8, "0");
}
