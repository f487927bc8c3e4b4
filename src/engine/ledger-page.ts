/** `op=ledger`: the side effects done before the last compaction that its head had no room for, read from the journal page by page. */
import { composeLedger, ledgerText } from "../domain/compaction/ledger.ts";
import type { LedgerLine, Place } from "../domain/compaction/types.ts";
import type { AgentDefinition } from "../domain/definition.ts";
import { resultMessage } from "../domain/transcript/derive.ts";
import type { Message } from "../domain/transcript/message.ts";
import { roomOf } from "./tool-result.ts";
import type { Turn } from "./turn.ts";

const PAGE_BYTES = 8_192;
/** Messages that are folded into lines at a time: a long journal is never in memory as a whole. */
const BATCH_MESSAGES = 500;

export interface LedgerPage {
  /** The newest first. */
  readonly lines: readonly string[];
  readonly total: number;
  readonly next_offset?: number;
  readonly note?: string;
}

export async function ledgerPage(
  turn: Turn,
  definition: AgentDefinition,
  { tool, offset = 0 }: { readonly tool?: string | undefined; readonly offset?: number | undefined },
): Promise<LedgerPage> {
  const { state } = turn.session;
  const { head } = state.compaction;
  if (head === undefined) return { lines: [], total: 0, note: "nothing was summarized yet: all calls are in your context" };
  // The call that asks stands in the tail, so there is one.
  const below = state.places[1]?.first ?? state.seq;
  const shown = new Set(head.ledger.map(ledgerText));
  const rest = (await linesBelow(turn, definition, below)).filter((line) => (tool === undefined || line.tool === tool) && !shown.has(ledgerText(line)));
  const lines: string[] = [];
  let roomBytes = Math.min(PAGE_BYTES, roomOf(turn) - 256);
  for (const line of rest.toReversed().slice(offset)) {
    const text = ledgerText(line);
    roomBytes -= Buffer.byteLength(JSON.stringify(text)) + 1;
    if (roomBytes < 0 && lines.length > 0) break;
    lines.push(text);
  }
  const next = offset + lines.length;
  return { lines, total: rest.length, ...(next < rest.length ? { next_offset: next } : {}) };
}

async function linesBelow(turn: Turn, definition: AgentDefinition, below: number): Promise<LedgerLine[]> {
  const toolEffect = (name: string) => definition.tools.find((tool) => tool.name === name)?.effect;
  let lines: LedgerLine[] = [];
  let messages: Message[] = [];
  let places: Place[] = [];
  const fold = (): void => {
    ({ lines } = composeLedger({ messages, places, toolEffect, previous: lines, capBytes: Number.POSITIVE_INFINITY }));
    // Results that are still to come answer the last response.
    const last = messages.findLastIndex(({ role }) => role === "assistant");
    messages = last === -1 ? [] : [messages[last] as Message];
    places = last === -1 ? [] : [places[last] as Place];
  };
  for await (const event of turn.deps.store.eventsBelow(turn.session.memory.row.id, below)) {
    if (event.type === "model.responded") messages.push({ role: "assistant", content: event.payload.content });
    else if (event.type === "tool.completed" || event.type === "tool.failed" || event.type === "tool.interrupted") messages.push({ role: "tool", content: [resultMessage(event)] });
    else continue;
    places.push({ first: event.seq, last: event.seq });
    if (messages.length >= BATCH_MESSAGES) fold();
  }
  fold();
  return lines;
}
