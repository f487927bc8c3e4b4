import { lstat, readdir } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { tool, type Tool } from "../agents/tool.ts";
import type { ConfinedFolder } from "./confined-folder.ts";
import { FolderToolError, fromSystem } from "./errors.ts";

const DEFAULT_LIMIT = 200;
const MAX_LIMIT = 1_000;

export interface FolderEntry {
  readonly name: string;
  /** A link is named, never followed: what it points to may lie outside. */
  readonly kind: "file" | "folder" | "link" | "other";
  readonly size_bytes?: number;
  /** Not worth looking into: dependencies, build output, version control. It can still be listed by name. */
  readonly skipped?: true;
}

export function listFolderTool(folder: ConfinedFolder, skips: ReadonlySet<string>): Tool {
  return tool({
    name: "list_folder",
    description: `Lists one folder, sorted by name, up to ${DEFAULT_LIMIT} entries at a time (next_offset says where to go on). Folders marked "skipped" hold dependencies or build output and are not worth reading.`,
    input: z.object({
      path: z.string().default(".").describe('relative to the root folder; "." is the root itself'),
      offset: z.int().min(0).default(0),
      limit: z.int().min(1).max(MAX_LIMIT).default(DEFAULT_LIMIT),
    }),
    effect: "read",
    timeoutMs: 60_000,
    async execute({ path, offset, limit }, { signal }) {
      const { absolute, shown } = await folder.locate(path);
      const found = await readdir(absolute, { withFileTypes: true }).catch((error: unknown) => {
        if ((error as NodeJS.ErrnoException).code === "ENOTDIR")
          throw new FolderToolError("PATH_NOT_A_FOLDER", shown, `${JSON.stringify(shown)} is not a folder; read_file or file_facts can look at it`);
        throw fromSystem(error, path);
      });
      // By code units and not by locale: two workers must give the same order.
      found.sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
      const entries: FolderEntry[] = [];
      for (const entry of found.slice(offset, offset + limit)) {
        signal.throwIfAborted();
        const kind = entry.isDirectory() ? "folder" : entry.isFile() ? "file" : entry.isSymbolicLink() ? "link" : "other";
        const size = kind === "file" ? await sizeOf(join(absolute, entry.name)) : undefined;
        entries.push({ name: entry.name, kind, ...(size === undefined ? {} : { size_bytes: size }), ...(kind === "folder" && skips.has(entry.name) ? { skipped: true } : {}) });
      }
      const next = offset + entries.length;
      return { path: shown, entries, total: found.length, ...(next < found.length ? { next_offset: next } : {}) };
    },
  });
}

/** Undefined when the file went away between listing and looking. */
async function sizeOf(path: string): Promise<number | undefined> {
  return await lstat(path).then(
    (facts) => facts.size,
    () => undefined,
  );
}
