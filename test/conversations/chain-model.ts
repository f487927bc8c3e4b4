/** The same recording as a model in this process: for a thousand turns the vendors' clients would cost a minute of CPU. */
import type { AssistantPart } from "../../src/domain/transcript/message.ts";
import type { JsonValue } from "../../src/domain/json.ts";
import type { Model } from "../../src/engine/model-port.ts";
import type { RecordedConversation } from "./replay.ts";

export function recordedModel(name: string, { messages }: RecordedConversation): Model {
  const answers = messages.filter((message) => message.role === "assistant");
  return {
    name,
    structuredOutput: false,
    window: { tokens: undefined, source: "unknown" },
    call(call) {
      const answer = answers[call.messages.filter((message) => message.role === "assistant").length];
      const content: AssistantPart[] = [{ type: "text", text: answer === undefined ? "The recorded conversation ends here." : (answer.content ?? "") }];
      for (const { id, function: made } of answer?.tool_calls ?? [])
        content.push({ type: "tool_call", call_id: id, name: made.name, input: JSON.parse(made.arguments) as JsonValue });
      return Promise.resolve({
        kind: "responded",
        content: content.filter((part) => part.type !== "text" || part.text !== ""),
        finish: { reason: content.length > 1 ? "tool_calls" : "stop" },
        usage: { input: call.messages.length, output: 1, scale: "offline" },
      });
    },
  };
}
