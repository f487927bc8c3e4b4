/** A transcript's messages for people. */
import { canonicalJson } from "../domain/json.ts";
import { toolOutputText, type Message } from "../domain/transcript/message.ts";
import { bytes } from "./format.ts";
import { printable, type Output } from "./output.ts";

export async function showMessage(out: Output, message: Message): Promise<void> {
  await out.line(out.colors.bold(message.role));
  for (const text of partTexts(message)) await out.line(`${indented(printable(text))}\n`);
}

/** Messages of the runs before it, then the run's own. */
export async function showMessages(out: Output, messages: readonly Message[], inherited: number): Promise<void> {
  for (const message of messages.slice(0, inherited)) await showMessage(out, message);
  if (inherited > 0) await out.line(out.colors.bold(`── the ${inherited} messages above are what the run began with ──\n`));
  for (const message of messages.slice(inherited)) await showMessage(out, message);
}

function partTexts(message: Message): string[] {
  return message.content.map((part) => {
    switch (part.type) {
      case "text":
        return part.text;
      case "reasoning":
        return `(reasoning) ${part.text}`;
      case "file":
        return `[${part.filename ?? part.media_type}, ${bytes(part.size_bytes)}, sha256 ${part.sha256}]`;
      case "tool_call":
        return `→ ${part.name} ${part.arguments ?? canonicalJson(part.input ?? {})}${part.invalid === undefined ? "" : `  (invalid: ${part.invalid})`}`;
      case "tool_result":
        return `${part.is_error === true ? "✗" : "✓"} ${part.name}: ${toolOutputText(part.output)}`;
      default:
        return part satisfies never;
    }
  });
}

function indented(text: string): string {
  return text.replaceAll(/^/gm, "  ");
}
