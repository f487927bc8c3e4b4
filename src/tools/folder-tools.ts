/** Tools to look through one folder, read-only, and to leave a report about it. */
import { join } from "node:path";
import type { Tool } from "../agents/tool.ts";
import { ConfinedFolder } from "./confined-folder.ts";
import { fileFactsTool } from "./file-facts.ts";
import { listFolderTool } from "./list-folder.ts";
import { readFileTool } from "./read-file.ts";
import { checkReportTool, saveReportTool } from "./report-tools.ts";
import { searchTextTool } from "./search-text.ts";

/** Folders that hold what others wrote or what was built: marked as skipped in lists, passed over by searches. */
export const DEFAULT_SKIPPED_FOLDERS: readonly string[] = [
  ".git",
  ".hg",
  ".svn",
  "node_modules",
  "dist",
  "build",
  "coverage",
  "target",
  "vendor",
  ".venv",
  "__pycache__",
  ".capstan",
  ".vitest",
];

export interface FolderToolsOptions {
  /** Nothing outside of it is read, whatever a path or a link says. */
  readonly root: string;
  /** Default `.capstan/reports` below the working directory. */
  readonly reportsDir?: string;
  readonly skippedFolders?: readonly string[];
}

/** `list_folder`, `read_file`, `search_text`, `file_facts` (effect `read`), `save_report` (effect `once`), `check_report`. */
export function folderTools({ root, reportsDir = join(".capstan", "reports"), skippedFolders = DEFAULT_SKIPPED_FOLDERS }: FolderToolsOptions): readonly Tool[] {
  const folder = new ConfinedFolder(root);
  const skips = new Set(skippedFolders);
  return [listFolderTool(folder, skips), readFileTool(folder), searchTextTool(folder, skips), fileFactsTool(folder), saveReportTool(reportsDir), checkReportTool(reportsDir)];
}
