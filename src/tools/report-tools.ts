/** Where an agent leaves a report: one file a run, outside of the folder that it reads. */
import { createHash } from "node:crypto";
import { mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { isAbsolute, join, relative, resolve } from "node:path";
import { z } from "zod";
import { tool, type Tool } from "../agents/tool.ts";

export interface SavedReport {
  readonly file: string;
  readonly size_bytes: number;
  readonly sha256: string;
}

/**
 * `once`: a report that was perhaps written is not written again behind the model's back; it is told that the outcome
 * is unknown and can look with `check_report`.
 */
export function saveReportTool(reportsDir: string): Tool {
  return tool({
    name: "save_report",
    description: "Saves the finished report of this run as a Markdown file and says where. A second call replaces the first report.",
    input: z.object({ markdown: z.string().min(1).max(900_000) }),
    effect: "once",
    timeoutMs: 60_000,
    async execute({ markdown }, { runId, callId, signal }) {
      const file = reportFile(reportsDir, runId);
      await mkdir(resolve(reportsDir), { recursive: true });
      // A reader sees the old report or the new one, never half of it.
      const unfinished = `${file}.${createHash("sha256").update(callId).digest("hex").slice(0, 8)}.tmp`;
      try {
        await writeFile(unfinished, markdown, { signal });
        await rename(unfinished, file);
      } finally {
        await rm(unfinished, { force: true });
      }
      return described(file, Buffer.from(markdown));
    },
  });
}

export function checkReportTool(reportsDir: string): Tool {
  return tool({
    name: "check_report",
    description: "Says whether this run has a saved report, and its size and sha256: for when the outcome of save_report is unknown.",
    input: z.object({}),
    effect: "read",
    timeoutMs: 60_000,
    async execute(_, { runId }) {
      const file = reportFile(reportsDir, runId);
      try {
        return { exists: true, ...described(file, await readFile(file)) };
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code === "ENOENT") return { exists: false };
        throw error;
      }
    },
  });
}

function reportFile(reportsDir: string, runId: string): string {
  return join(resolve(reportsDir), `${runId}.md`);
}

function described(file: string, content: Buffer): SavedReport {
  const near = relative(process.cwd(), file);
  const isNear = !near.startsWith("..") && !isAbsolute(near);
  return { file: isNear ? near : file, size_bytes: content.length, sha256: createHash("sha256").update(content).digest("hex") };
}
