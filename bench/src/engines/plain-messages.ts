/** The workload's messages in the shape that engines without one of their own get. */
import { TOOL_NAME, type TurnTexts } from "../workload.ts";

export type PlainMessage =
  | { readonly role: "user"; readonly content: string }
  | {
      readonly role: "assistant";
      readonly content: string;
      readonly tool_calls?: readonly { readonly id: string; readonly name: string; readonly args: { readonly query: string } }[];
    }
  | { readonly role: "tool"; readonly tool_call_id: string; readonly content: string };

export function answerOf({ callId, text, query }: TurnTexts): PlainMessage {
  return { role: "assistant", content: text, tool_calls: [{ id: callId, name: TOOL_NAME, args: { query } }] };
}

export function resultOf({ callId, result }: TurnTexts): PlainMessage {
  return { role: "tool", tool_call_id: callId, content: result };
}
