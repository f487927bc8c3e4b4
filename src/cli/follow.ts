/** Shows a run live until its end: turns, tools, gauge, parks. Shared by `runs follow` and `enqueue --follow`. */
import type { RunEvent } from "../client/handle.ts";
import { contextOf } from "../store/run-list.ts";
import type { Database } from "./database.ts";
import { eventText, type Tone } from "./event-text.ts";
import { exitCodes } from "./exit.ts";
import { gauge } from "./format.ts";
import { LiveText } from "./live-text.ts";
import type { Colors, Output } from "./output.ts";
import { followedRun } from "./run-client.ts";

export interface FollowOptions {
  readonly after?: number;
  /** Show answers while they come. Default: on a terminal, and not with --json. */
  readonly deltas?: boolean | undefined;
}

/** Gives the exit code: 0 when the run completed, 5 when it failed or was cancelled. */
export async function followRun(out: Output, database: Database, runId: string, { after = 0, deltas = out.isTerminal && !out.isJson }: FollowOptions = {}): Promise<number> {
  const { colors } = out;
  const handle = followedRun(database, runId);
  const live = new LiveText(out);
  let turn = -1;
  let last: RunEvent | undefined;
  for await (const item of handle.follow({ after, deltas, signal: database.signal })) {
    if (item.type === "delta") {
      // On one level with events, which have a type too.
      if (out.isJson) await out.value({ type: "delta", ...item.delta });
      else await live.show(item.delta);
      continue;
    }
    const { event } = item;
    last = event;
    await live.end();
    if (out.isJson) {
      await out.value(event);
      continue;
    }
    if (event.turn !== turn && event.turn > 0) await out.line(colors.bold(`turn ${event.turn}`));
    turn = event.turn;
    const { tone, text } = eventText(event);
    await out.line(`  ${inTone(colors, tone, text)}`);
    if (event.type === "model.responded") {
      const context = await contextOf(database.pool, database.named, runId);
      const shown = gauge(context?.context_tokens ?? null, context?.context_window ?? null);
      if (shown !== "") await out.line(`  ${colors.dim(shown)}`);
    }
  }
  const { state } = last === undefined ? await handle.status() : { state: last.type.replace(/^run\./, "") };
  return state === "failed" || state === "cancelled" ? exitCodes.runFailed : exitCodes.ok;
}

export function inTone(colors: Colors, tone: Tone, text: string): string {
  switch (tone) {
    case "plain":
      return text;
    case "good":
      return colors.green(text);
    case "bad":
      return colors.red(text);
    case "dim":
      return colors.dim(text);
    case "notice":
      return colors.yellow(text);
    default:
      return tone satisfies never;
  }
}
