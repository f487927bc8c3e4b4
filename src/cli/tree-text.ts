/** A run and its descendants as lines of a tree. Pure. */
import type { RunNode } from "../store/run-tree.ts";
import { duration, short, usd } from "./format.ts";
import { printable, type Colors } from "./output.ts";
import { colorState } from "./runs-list.ts";

/** The run itself is the first line. */
export function treeLines(root: RunNode, colors: Colors): string[] {
  return [nodeText(root, colors), ...branchLines(root.children, colors)];
}

/** Only what hangs below. */
export function branchLines(children: readonly RunNode[], colors: Colors, indent = ""): string[] {
  return children.flatMap((child, i) => {
    const isLast = i === children.length - 1;
    return [`${indent}${isLast ? "└─ " : "├─ "}${nodeText(child, colors)}`, ...branchLines(child.children, colors, `${indent}${isLast ? "   " : "│  "}`)];
  });
}

export interface TreeSum {
  readonly input_tokens: number;
  readonly output_tokens: number;
  readonly cost_usd_micros: number;
}

/** A run's own counters do not hold what its children used. */
export function sumOf({ children, ...own }: RunNode): TreeSum {
  const parts: TreeSum[] = [own, ...children.map(sumOf)];
  const total = (field: keyof TreeSum): number => parts.reduce((sum, part) => sum + part[field], 0);
  return { input_tokens: total("input_tokens"), output_tokens: total("output_tokens"), cost_usd_micros: total("cost_usd_micros") };
}

export function spentText({ input_tokens: input, output_tokens: output, cost_usd_micros: cost }: TreeSum): string {
  if (input + output === 0) return "nothing used yet";
  return `${short(input)} in, ${short(output)} out${cost > 0 ? `, ${usd(cost)}` : ", no price"}`;
}

function nodeText(run: RunNode, colors: Colors): string {
  const took = run.finished_at === null ? "" : `, took ${duration(run.finished_at.getTime() - run.created_at.getTime())}`;
  const error = run.error_code === null ? "" : `  ${colors.red(run.error_code)}`;
  return `${run.id}  ${printable(run.agent)}  ${colorState(colors, run)}  turn ${run.turn}${took}  ${colors.dim(spentText(run))}${error}`;
}
