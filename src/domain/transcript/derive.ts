/** How single events become what a model reads. Part of rendering: a change here needs a new RENDER_VERSION. */
import type { EventOf } from "../event.ts";
import { canonicalJson, type JsonValue } from "../json.ts";
import type { Message, ToolResultPart, UserPart } from "./message.ts";
import { filePart, textPart } from "./message.ts";
import { z } from "zod";

/** Strict: a list of the user's own objects that only resemble parts would lose its other fields. */
const parts = z.array(z.discriminatedUnion("type", [textPart.strict(), filePart.strict()]));

/**
 * The first user message. Text stays text; a list of message parts (`[{type: "text", ...}, {type: "file", ...}]`) is
 * taken as it is; any other JSON is shown in canonical form.
 */
export function inputMessage(input: JsonValue): Message {
  return { role: "user", content: inputParts(input) };
}

export function inputParts(input: JsonValue): UserPart[] {
  if (typeof input === "string") return [{ type: "text", text: input }];
  // Not parts.min(1): zod compares the length of anything that has one, and {"length": {"toString": null}} throws.
  const asParts = Array.isArray(input) && input.length > 0 ? parts.safeParse(input) : undefined;
  if (asParts?.success === true) return asParts.data;
  return [{ type: "text", text: canonicalJson(input) }];
}

/**
 * What the model is told about a call that ended, however it ended.
 *
 * @param edited the arguments that a person put in the place of the model's own.
 */
export function resultMessage(event: EventOf<"tool.completed"> | EventOf<"tool.failed"> | EventOf<"tool.interrupted">, edited?: JsonValue): ToolResultPart {
  const { call_id, name } = event.payload;
  if (edited !== undefined) {
    const { output, ...rest } = resultMessage(event);
    return { ...rest, output: { note: "A person changed the arguments of this call before it was made.", arguments: edited, result: output } };
  }
  switch (event.type) {
    case "tool.completed":
      return { type: "tool_result", call_id, name, output: event.payload.output };
    case "tool.failed":
      return { type: "tool_result", call_id, name, output: `${event.payload.error.code}: ${event.payload.error.message}`, is_error: true };
    case "tool.interrupted":
      return { type: "tool_result", call_id, name, output: interruptedText(event.payload.reason), is_error: true };
  }
}

function interruptedText(reason: EventOf<"tool.interrupted">["payload"]["reason"]): string {
  const what = { worker_lost: "the process that ran it died", timed_out: "it ran out of time", aborted: "it was stopped" }[reason];
  return (
    `OUTCOME_UNKNOWN: this call was started and ${what} before its result was recorded. ` +
    "It may or may not have taken effect, and it was not repeated. Check before you do it again."
  );
}
