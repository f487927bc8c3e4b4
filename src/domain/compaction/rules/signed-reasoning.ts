/**
 * What the vendors demand of reasoning that they signed (their pages on thinking with tools, 2026-11):
 * - Anthropic: a tool loop is one answer of the model. While thinking is on, what is kept of the last loop must begin
 *   with a thinking block, unchanged, or the request is refused. Blocks of earlier answers may be left out.
 * - Gemini: each step of the current loop must carry the signature that came with its first call.
 * - OpenAI: a reasoning item goes with the item that followed it, and both stand in one response of ours.
 *
 * All of them tie a signature to its own response, not to the responses before it. So inside a loop that was thought
 * in, a cut is legal exactly before a response that begins with signed content itself: whole older groups go, and what
 * is left begins as the vendor's own answer would. Before a response without any it is not: with reasoning at the
 * loop's start only, the loop stays or goes as a whole, and an autonomous run of that kind is cut behind its last
 * result, where the head begins a new exchange.
 */
import type { AssistantMessage, Message } from "../../transcript/message.ts";
import type { Rule } from "./position.ts";

export const signedReasoning: Rule = ({ view }) => {
  const illegal = new Set<number>();
  let loop: number[] = [];
  const closeLoop = (): void => {
    const isSigned = loop.some((at) => hasSigned(view[at]));
    for (const at of isSigned ? loop.slice(1) : []) if (!beginsSigned(view[at] as AssistantMessage)) illegal.add(at);
    loop = [];
  };
  for (const [at, message] of view.entries()) {
    if (message.role === "user") closeLoop();
    else if (message.role === "assistant") loop.push(at);
  }
  closeLoop();
  return (position) => !illegal.has(position);
};

function hasSigned(message: Message | undefined): boolean {
  return message?.role === "assistant" && message.content.some((part) => part.type === "reasoning" && part.metadata !== undefined);
}

/** The first part that a vendor is sent carries a signature or encrypted content: reasoning, or a signed call. */
function beginsSigned(message: AssistantMessage): boolean {
  const first = message.content.find((part) => part.type !== "text" || part.text.trim() !== "");
  return first !== undefined && first.type !== "text" && first.metadata !== undefined;
}
