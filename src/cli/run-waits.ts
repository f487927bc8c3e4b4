/** The part of a run's page about what it waits for: open calls, runs it started, pauses over it. */
import { PauseClient, type PauseView } from "../client/pauses.ts";
import type { WaitView } from "../client/waits.ts";
import { runTree, type RunTree } from "../store/run-tree.ts";
import type { Database } from "./database.ts";
import { age } from "./format.ts";
import { printable, type Colors } from "./output.ts";
import { pauseFact, pausesOf, resumeCommand } from "./pause-text.ts";
import { runHandle } from "./run-client.ts";
import { branchLines } from "./tree-text.ts";
import { askedText, commandFor, expiryText } from "./wait-text.ts";

/** So many runs of a tree stand on a run's own page; `runs tree` has them all. */
const SHOWN_RUNS = 50;

export interface RunWaits {
  readonly waits: readonly WaitView[];
  readonly tree: RunTree | undefined;
  /** Under which the run stands still, besides its own mark. */
  readonly pauses: readonly PauseView[];
}

export async function waitsOfRun(database: Database, { id, tenant }: { readonly id: string; readonly tenant: string }): Promise<RunWaits> {
  const { pool, named } = database;
  return {
    waits: await runHandle(database, id).waits(),
    tree: await runTree(pool, named, id, { runs: SHOWN_RUNS }),
    pauses: pausesOf(await new PauseClient(pool, named).list(), new Set([tenant])),
  };
}

/** For the list of facts. */
export function pausedFact(run: { readonly id: string; readonly paused: boolean }, pauses: readonly PauseView[]): string | undefined {
  const marks = [...(run.paused ? [`by itself (capstan runs resume ${run.id})`] : []), ...pauses.map((pause) => `${pauseFact(pause)} (${resumeCommand(pause)})`)];
  return marks.length === 0 ? undefined : marks.join("; ");
}

export function waitLines({ waits, tree }: RunWaits, colors: Colors): string[] {
  const lines: string[] = [];
  for (const wait of waits) {
    const expiry = expiryText(wait);
    lines.push(
      `${colors.yellow(wait.kind)}  ${printable(wait.name)}  ${askedText(wait, 100)}  ${colors.dim(`${age(wait.requested_at)}${expiry === "" ? "" : `, ${wait.kind === "timer" ? "" : "expires "}${expiry}`}`)}`,
    );
    const command = commandFor(wait);
    if (command !== undefined) lines.push(`  ${colors.dim(command)}`);
  }
  if (waits.length > 0) lines.unshift("", colors.bold("waits for"));
  if (tree !== undefined && tree.root.children.length > 0) {
    lines.push("", colors.bold("started"), ...branchLines(tree.root.children, colors));
    if (tree.is_cut) lines.push(colors.dim(`more: capstan runs tree ${tree.root.id}`));
  }
  return lines;
}
