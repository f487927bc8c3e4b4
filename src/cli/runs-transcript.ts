import type { Command } from "commander";
import { UnknownRunError } from "../client/errors.ts";
import { canonicalJson } from "../domain/json.ts";
import { fold } from "../domain/fold.ts";
import { toolOutputText, type Message } from "../domain/transcript/message.ts";
import { JournalReader } from "../store/journal-reader.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes } from "./exit.ts";
import { bytes, parseRunId } from "./format.ts";
import { printable } from "./output.ts";

export function addRunsTranscript(runs: Command): void {
  addCommand(runs, "transcript", {
    summary: "show the messages that the model sees now",
    description: "Shows the messages that the model sees now, derived from the run's events as the worker derives them.",
    examples: ["runs transcript 0190… | less", "runs transcript 0190… --json | jq '.messages[-1]'"],
  })
    .argument("<run id>")
    .action(
      action(async (out, given: string) => {
        const runId = parseRunId(given);
        return await withDatabase(out, async ({ pool, named }) => {
          const loaded = await new JournalReader(pool, named).load(runId);
          if (loaded === undefined) throw new UnknownRunError(`no run ${runId}`);
          const state = fold(loaded.events);
          if (out.isJson) {
            await out.value({ run_id: runId, seq: state.seq, turn: state.turn, messages: state.view });
            return exitCodes.ok;
          }
          for (const message of state.view) {
            await out.line(out.colors.bold(message.role));
            for (const text of partTexts(message)) await out.line(`${indented(printable(text))}\n`);
          }
          return exitCodes.ok;
        });
      }),
    );
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
