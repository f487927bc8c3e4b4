import type { Command } from "commander";
import { addGroup } from "./command.ts";
import { addRunsCompact } from "./runs-compact.ts";
import { addRunsAct } from "./runs-act.ts";
import { addRunsBulk } from "./runs-bulk.ts";
import { addRunsEvents } from "./runs-events.ts";
import { addRunsFork } from "./runs-fork.ts";
import { addRunsHold } from "./runs-hold.ts";
import { addRunsList } from "./runs-list.ts";
import { addRunsShow } from "./runs-show.ts";
import { addRunsSignal } from "./runs-signal.ts";
import { addRunsStop } from "./runs-stop.ts";
import { addRunsTransfer } from "./runs-transfer.ts";
import { addRunsTranscript } from "./runs-transcript.ts";
import { addRunsTree } from "./runs-tree.ts";

export function addRunCommands(program: Command): void {
  const runs = addGroup(program, "runs", "list, look at and steer runs");
  addRunsList(runs);
  addRunsShow(runs);
  addRunsTree(runs);
  addRunsEvents(runs);
  addRunsTranscript(runs);
  addRunsAct(runs);
  addRunsStop(runs);
  addRunsSignal(runs);
  addRunsFork(runs);
  addRunsBulk(runs);
  addRunsCompact(runs);
  addRunsTransfer(runs);
  addRunsHold(runs);
}
