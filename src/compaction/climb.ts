/**
 * The ladder over calls: asks with the most that fits, and goes down a rung when the summarizer says that it was too
 * much. Each try is strictly smaller than the one before, and their number is bounded.
 *
 *   0 whole -> 1 long values capped -> 2 results dropped from the middle -> 3 pieces, then merged -> 4 skeleton, no call
 */
import type { Message } from "../domain/transcript/message.ts";
import { excerptText } from "./bounded-text.ts";
import { fitMessages, pieces, skeleton, textBytes } from "./ladder.ts";
import type { AskRequest, OpenSummarizer } from "./open-summarizer.ts";
import { rejected, type Rejection, type Reply } from "./reply.ts";

export interface ClimbInput {
  readonly messages: readonly Message[];
  readonly previousSummary?: string | undefined;
  readonly obligations?: readonly string[];
  readonly limitTokens: number;
  readonly targetTokens: number;
  readonly hard: boolean;
  readonly signal: AbortSignal;
}

export type Climbed = { readonly kind: "summarized"; readonly summary: string; readonly rung: 0 | 1 | 2 | 3 | 4 } | Rejection;

/** Refusals for length that are followed by a smaller try: each halves, so the last is an eighth of what was refused first. */
const MAX_OVERFLOWS = 4;
/** Pieces of rung 3; one more call merges them. More would cost more than the context is worth. */
const MAX_PIECES = 6;
/** Of less than this no summary can be made. */
const MIN_BUDGET_BYTES = 1_024;
const BYTES_PER_TOKEN = 4;
const MIN_PART_TOKENS = 512;

export async function climb(summarizer: OpenSummarizer, input: ClimbInput): Promise<Climbed> {
  const { messages, previousSummary, obligations = [], limitTokens, targetTokens } = input;
  const whole = { previousSummary, obligations, limitTokens, targetTokens };
  let budgetBytes = summarizer.budgetBytes(whole);
  let refusedBytes = Number.POSITIVE_INFINITY;
  let overflows = 0;
  for (const rung of [0, 1, 2] as const) {
    while (budgetBytes >= MIN_BUDGET_BYTES && overflows < MAX_OVERFLOWS) {
      const fitting = fitMessages(messages, rung, budgetBytes);
      if (fitting === undefined) break;
      const sizeBytes = textBytes(fitting);
      if (sizeBytes >= refusedBytes) break;
      const reply = await summarizer.ask({ ...whole, messages: fitting });
      if (!isOverflow(reply)) return settled(reply, rung);
      overflows++;
      refusedBytes = sizeBytes;
      budgetBytes = Math.floor(Math.min(budgetBytes, sizeBytes) / 2);
    }
  }
  if (budgetBytes >= MIN_BUDGET_BYTES && overflows < MAX_OVERFLOWS) {
    const merged = await inPieces(summarizer, input, whole, budgetBytes);
    if (merged !== undefined) return merged;
  }
  if (input.signal.aborted) return rejected("interrupted", "stopped between two calls", true);
  if (input.hard) return { kind: "summarized", rung: 4, summary: skeleton({ messages, previousSummary, obligations, maxBytes: limitTokens * BYTES_PER_TOKEN }) };
  const tried = overflows === 0 ? "" : `; it refused ${overflows} inputs, the smallest of ${refusedBytes} bytes`;
  return rejected(
    "input_too_large",
    `the span of ${textBytes(messages)} bytes does not fit the summarizer's window even when shortened and cut into ${MAX_PIECES} pieces${tried}`,
    false,
  );
}

/** Undefined when the pieces are too many or do not fit either. */
async function inPieces(summarizer: OpenSummarizer, { messages, signal }: ClimbInput, whole: Omit<AskRequest, "messages">, budgetBytes: number): Promise<Climbed | undefined> {
  const found = pieces(messages, budgetBytes, MAX_PIECES);
  if (found === undefined) return undefined;
  if (found.length <= 1) {
    const reply = await summarizer.ask({ ...whole, messages: found[0] ?? [] });
    return isOverflow(reply) ? undefined : settled(reply, 3);
  }
  const shareBytes = Math.floor(budgetBytes / (found.length + 1));
  const limitTokens = Math.min(whole.limitTokens, Math.max(MIN_PART_TOKENS, Math.floor(shareBytes / BYTES_PER_TOKEN)));
  const parts: string[] = [];
  for (const piece of found) {
    if (signal.aborted) return rejected("interrupted", "stopped between two pieces", true);
    const reply = await summarizer.ask({ messages: piece, obligations: [], limitTokens, targetTokens: Math.min(whole.targetTokens, limitTokens) });
    if (isOverflow(reply)) return undefined;
    if (reply.kind === "rejected") return reply;
    parts.push(reply.text);
  }
  const reply = await summarizer.ask({ ...whole, messages: parts.map((text, i) => partMessage(excerptText(text, shareBytes - 64), i + 1, parts.length)) });
  return isOverflow(reply) ? undefined : settled(reply, 3);
}

function partMessage(text: string, nth: number, of: number): Message {
  return { role: "user", content: [{ type: "text", text: `(Summary of part ${nth} of ${of} of the record, in order)\n${text}` }] };
}

function settled(reply: Reply, rung: 0 | 1 | 2 | 3): Climbed {
  return reply.kind === "text" ? { kind: "summarized", summary: reply.text, rung } : reply;
}

function isOverflow(reply: Reply): boolean {
  return reply.kind === "rejected" && reply.overflow === true;
}
