import type { Command } from "commander";
import type { ForkOptions } from "../client/lineage.ts";
import { readOverlay, type OverlayFlags } from "./agents-overlay.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes } from "./exit.ts";
import { parseCount, parseRunId } from "./format.ts";
import { readInput, type InputForm } from "./input.ts";
import { runHandle } from "./run-client.ts";
import { readSettings, withSettings, type SettingFlags } from "./run-settings.ts";

interface ForkFlags extends OverlayFlags, InputForm, SettingFlags {
  readonly at?: number;
  readonly input?: string;
  readonly interactive?: boolean;
  readonly idempotencyKey?: string;
}

const collect = (value: string, before: string[]): string[] => [...before, value];

export function addRunsFork(runs: Command): void {
  withSettings(
    addCommand(runs, "fork", {
      summary: "start a run that goes on from an event of another one",
      description:
        "Starts a new run whose context begins with that of another run, up to one of its events, and writes its id. Without --at it is the last event that a run can go on from; an event with open calls or an unanswered request is refused, and the nearest others are named. Model, instructions and settings can be changed as by `agents fork`. Tools may do again what they did in the other run behind that event.",
      examples: [
        "runs fork 0190… --at 42",
        'runs fork 0190… --input "Now as a table, please."',
        "runs fork 0190… --at 42 --set model=anthropic:claude-sonnet-5 --json | jq -r .run_id",
      ],
    }),
  )
    .argument("<run id>")
    .option("--at <seq>", "keep the events up to this one (capstan runs events lists them)", parseCount("--at", { min: 1, max: 2_147_483_647 }))
    .option("--input <input>", "a message of the user behind it: text, JSON, - or @file")
    .option("--text", "the input is text, even if it looks like JSON")
    .option("--as-json", "the input is JSON; anything else is refused")
    .option("--set <field=value>", "change a field of the definition (may be repeated)", collect, [] as string[])
    .option("--unset <field>", "remove a field of the definition (may be repeated)", collect, [] as string[])
    .option("--overlay <file>", "JSON object of fields to change, null removes one; - is standard input")
    .option("--interactive", "the run waits for input after an answer instead of ending")
    .option("--idempotency-key <key>", "asked for again with the same key it is the same run")
    .action(
      action(async (out, given: string, flags: ForkFlags) => {
        const runId = parseRunId(given);
        const options: ForkOptions = {
          actor: "cli",
          ...(flags.at === undefined ? {} : { at: flags.at }),
          ...(flags.input === undefined ? {} : { input: await readInput(flags.input, flags) }),
          ...(flags.set.length + flags.unset.length === 0 && flags.overlay === undefined ? {} : { overlay: await readOverlay(flags) }),
          ...(flags.interactive === undefined ? {} : { interactive: flags.interactive }),
          ...readSettings(flags),
          ...(flags.idempotencyKey === undefined ? {} : { idempotencyKey: flags.idempotencyKey }),
        };
        return await withDatabase(out, async (database) => {
          const fork = await runHandle(database, runId).fork(options);
          const { base } = (await firstEvent(fork)) as { base: { seq: number } };
          out.note(`goes on from event ${base.seq} of run ${runId}; tools may do again what they did there behind it`);
          if (out.isJson) await out.value({ run_id: fork.id, base: { run_id: runId, seq: base.seq } });
          else await out.line(fork.id);
          return exitCodes.ok;
        });
      }),
    );
}

async function firstEvent(run: ReturnType<typeof runHandle>): Promise<unknown> {
  for await (const { payload } of run.events({ follow: false })) return payload;
  return undefined;
}
