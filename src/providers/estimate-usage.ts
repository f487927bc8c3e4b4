import type { CanonicalCall } from "../domain/call.ts";
import { canonicalJson } from "../domain/json.ts";
import { messageText, type AssistantPart } from "../domain/transcript/message.ts";
import type { Usage } from "../domain/usage.ts";

/** Four characters a token over everything sent and received: for servers that report nothing. Marked as an estimate. */
export function estimateUsage(call: CanonicalCall, content: readonly AssistantPart[]): Usage {
  const head = call.tools.reduce((sum, tool) => sum + tool.name.length + tool.description.length + canonicalJson(tool.inputSchema).length, call.system.length);
  const input = call.messages.reduce((sum, message) => sum + messageText(message).length, head);
  return { input: Math.ceil(input / 4), output: Math.ceil(messageText({ role: "assistant", content }).length / 4), scale: "estimate" };
}
