/**
 * What really happened outside of the journal: one line per model call and tool execution, appended to a file that all
 * worker processes of a test share. A line is written before anything else is done, so a killed process has told of it.
 */
import { appendFileSync, existsSync, readFileSync } from "node:fs";

export interface EffectLine {
  readonly run: string;
  readonly kind: "model" | "read" | "idempotent" | "once";
  /** `m<turn>` for a model call, the call's id for a tool. */
  readonly key: string;
  readonly pid: number;
  readonly atMs: number;
}

export type NoteEffect = (run: string, kind: EffectLine["kind"], key: string) => void;

/** Appending a short line is one write, and writes to a file opened for appending do not mix. */
export function effectNoter(file: string): NoteEffect {
  return (run, kind, key) => appendFileSync(file, `${JSON.stringify({ run, kind, key, pid: process.pid, atMs: Date.now() } satisfies EffectLine)}\n`);
}

export function readEffects(file: string): EffectLine[] {
  // Nothing has happened yet: the file comes with the first effect.
  if (!existsSync(file)) return [];
  return readFileSync(file, "utf8")
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line) as EffectLine);
}
