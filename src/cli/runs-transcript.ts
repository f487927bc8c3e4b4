import type { Command } from "commander";
import { recordAudit } from "../client/audit.ts";
import { UnknownRunError } from "../client/errors.ts";
import { replacedBy } from "../domain/compaction/fold.ts";
import { evolve, initialState } from "../domain/fold.ts";
import { remember } from "../engine/run-memory.ts";
import { seqOf } from "../domain/position.ts";
import type { Message } from "../domain/transcript/message.ts";
import { JournalReader, type JournalRow } from "../store/journal-reader.ts";
import { actorName } from "./actor.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes } from "./exit.ts";
import { parseRunId } from "./format.ts";
import { showMessage, showMessages } from "./message-text.ts";

export function addRunsTranscript(runs: Command): void {
  addCommand(runs, "transcript", {
    summary: "show the messages that the model sees now",
    description:
      "Shows the messages that the model sees now, derived from the run's events as the worker derives them. What a fork or the next run of a conversation began with is marked. With --expand also those that summaries have replaced: their events are all kept.",
    examples: ["runs transcript 0190… | less", "runs transcript 0190… --expand", "runs transcript 0190… --json | jq '.messages[-1]'"],
  })
    .argument("<run id>")
    .option("--expand", "show what summaries have replaced, before each summary")
    .action(
      action(async (out, given: string, { expand }: { expand?: boolean }) => {
        const runId = parseRunId(given);
        return await withDatabase(out, async ({ pool, named }) => {
          const reader = new JournalReader(pool, named);
          const loaded = await reader.load(runId);
          if (loaded === undefined) throw new UnknownRunError(`no run ${runId}`);
          await recordAudit(pool, named, { tenant: loaded.row.tenant, actor: actorName(), action: "transcript.read", target: runId });
          const replaced: Replaced[] = [];
          if (expand === true) {
            for await (const span of replacedSpans(reader.walk(runId, { below: loaded.row.nextSeq }))) {
              if (out.isJson) {
                replaced.push(span);
                continue;
              }
              for (const message of span.messages) await showMessage(out, message);
              await out.line(
                out.colors.bold(`── ${span.messages.length} messages above (events ${span.from_seq} to ${span.to_seq}) are a summary since event ${span.marker} ──\n`),
              );
            }
          }
          const { state } = remember(loaded, 0);
          const inherited = state.places.filter(({ last }) => last <= loaded.row.seqOffset).length;
          if (out.isJson) {
            await out.value({
              run_id: runId,
              seq: seqOf(state.seq, loaded.row.seqOffset),
              turn: state.turn,
              epoch: state.epoch,
              inherited,
              ...(expand === true ? { replaced } : {}),
              messages: state.view,
            });
            return exitCodes.ok;
          }
          await showMessages(out, state.view, inherited);
          return exitCodes.ok;
        });
      }),
    );
}

interface Replaced {
  readonly marker: number;
  readonly from_seq: number;
  readonly to_seq: number;
  readonly messages: readonly Message[];
}

/** What each marker replaced, in order: the messages as they stood just before it, without an earlier head. */
async function* replacedSpans(rows: AsyncIterable<JournalRow>): AsyncGenerator<Replaced> {
  const state = initialState();
  for await (const { event } of rows) {
    if (event.type === "context.compacted") {
      const { cut } = event.payload;
      const { messages } = replacedBy(state, cut);
      yield { marker: event.seq, from_seq: cut.from_seq, to_seq: cut.to_seq, messages };
    }
    evolve(state, event);
  }
}
