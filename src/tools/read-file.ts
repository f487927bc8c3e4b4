import { z } from "zod";
import { tool, type Tool } from "../agents/tool.ts";
import type { ConfinedFolder } from "./confined-folder.ts";
import { FolderToolError } from "./errors.ts";
import { clip, readTextFile } from "./text-file.ts";

const DEFAULT_LINES = 400;
const MAX_LINES = 2_000;
/** Far below what a result may hold inline (256 KiB), so that what was read is never replaced by an excerpt. */
const MAX_CHARS = 48 * 1024;
const MAX_LINE_CHARS = 4_000;

export function readFileTool(folder: ConfinedFolder): Tool {
  return tool({
    name: "read_file",
    description: `Reads lines of a text file, at most ${MAX_LINES} lines or ${MAX_CHARS} characters at a time; next_line says where to go on. Lines over ${MAX_LINE_CHARS} characters are clipped.`,
    input: z.object({
      path: z.string().describe("relative to the root folder"),
      from_line: z.int().min(1).default(1),
      max_lines: z.int().min(1).max(MAX_LINES).default(DEFAULT_LINES),
    }),
    effect: "read",
    timeoutMs: 60_000,
    async execute({ path, from_line, max_lines }) {
      const file = await readTextFile(folder, path);
      const total = file.lines.length;
      if (from_line > Math.max(1, total))
        throw new FolderToolError("FILE_SHORTER", file.path, `${JSON.stringify(file.path)} has ${total} lines; line ${from_line} is behind its end`);
      const taken: string[] = [];
      let chars = 0;
      let clipped = 0;
      for (const line of file.lines.slice(from_line - 1, from_line - 1 + max_lines)) {
        const short = clip(line, MAX_LINE_CHARS);
        if (taken.length > 0 && chars + short.length > MAX_CHARS) break;
        if (short !== line) clipped++;
        chars += short.length + 1;
        taken.push(short);
      }
      const toLine = from_line - 1 + taken.length;
      return {
        path: file.path,
        from_line,
        to_line: toLine,
        total_lines: total,
        text: taken.join("\n"),
        ...(toLine < total ? { next_line: toLine + 1 } : {}),
        ...(clipped > 0 ? { clipped_lines: clipped } : {}),
        ...(file.isRepaired ? { invalid_utf8: true } : {}),
      };
    },
  });
}
