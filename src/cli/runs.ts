import type { Command } from "commander";
import { addGroup } from "./command.ts";
import { addRunsCompact } from "./runs-compact.ts";
import { addRunsAct } from "./runs-act.ts";
import { addRunsEvents } from "./runs-events.ts";
import { addRunsList } from "./runs-list.ts";
import { addRunsShow } from "./runs-show.ts";
import { addRunsTranscript } from "./runs-transcript.ts";

export function addRunCommands(program: Command): void {
  const runs = addGroup(program, "runs", "list, look at and steer runs");
  addRunsList(runs);
  addRunsShow(runs);
  addRunsEvents(runs);
  addRunsTranscript(runs);
  addRunsAct(runs);
  addRunsCompact(runs);
}
