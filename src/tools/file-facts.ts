import { createHash } from "node:crypto";
import { stat } from "node:fs/promises";
import { z } from "zod";
import { tool, type Tool } from "../agents/tool.ts";
import type { ConfinedFolder } from "./confined-folder.ts";
import { FolderToolError, fromSystem } from "./errors.ts";

const MAX_PATHS = 100;
/** Hashing more than this would keep a slot busy for seconds; such a file is named with its size only. */
const MAX_HASHED_BYTES = 256 * 1024 * 1024;
const CHUNK_BYTES = 256 * 1024;
const NEWLINE = 10;

export interface FileFacts {
  readonly path: string;
  readonly kind: "text" | "binary" | "folder" | "unmeasured";
  readonly size_bytes?: number;
  readonly lines?: number;
  readonly longest_line?: { readonly line: number; readonly bytes: number };
  /** First 16 hex digits of the content's sha256. */
  readonly digest?: string;
}

export interface PathProblem {
  readonly path: string;
  readonly code: string;
  readonly message: string;
}

export function fileFactsTool(folder: ConfinedFolder): Tool {
  return tool({
    name: "file_facts",
    description: `Counts lines and bytes of up to ${MAX_PATHS} files and tells text from binary; gives the longest line and a digest that is equal for equal contents. Also says whether paths exist: those that cannot be looked at are listed under "problems".`,
    input: z.object({ paths: z.array(z.string()).min(1).max(MAX_PATHS) }),
    effect: "read",
    timeoutMs: 120_000,
    async execute({ paths }, { signal }) {
      const files: FileFacts[] = [];
      const problems: PathProblem[] = [];
      for (const path of paths) {
        signal.throwIfAborted();
        try {
          files.push(await factsOf(folder, path, signal));
        } catch (error) {
          problems.push(problemOf(error, path));
        }
      }
      return { files, problems };
    },
  });
}

/** One path among many that cannot be used does not fail the call; anything unexpected does. */
export function problemOf(error: unknown, path: string): PathProblem {
  if (!(error instanceof FolderToolError)) throw error;
  return { path, code: error.code, message: error.message };
}

async function factsOf(folder: ConfinedFolder, path: string, signal: AbortSignal): Promise<FileFacts> {
  const { absolute, shown } = await folder.locate(path);
  const isFolder = await stat(absolute).then(
    (facts) => facts.isDirectory(),
    (error: unknown) => {
      throw fromSystem(error, path);
    },
  );
  if (isFolder) return { path: shown, kind: "folder" };
  const { file, sizeBytes } = await folder.openFile(path);
  try {
    if (sizeBytes > MAX_HASHED_BYTES) return { path: shown, kind: "unmeasured", size_bytes: sizeBytes };
    const hash = createHash("sha256");
    const buffer = Buffer.alloc(CHUNK_BYTES);
    const count = new LineCount();
    let size = 0;
    for (;;) {
      signal.throwIfAborted();
      const { bytesRead } = await file.read(buffer, 0, CHUNK_BYTES, null);
      if (bytesRead === 0) break;
      const chunk = buffer.subarray(0, bytesRead);
      hash.update(chunk);
      count.add(chunk);
      size += bytesRead;
      // A file that is written faster than it is read would never end.
      if (size > MAX_HASHED_BYTES) return { path: shown, kind: "unmeasured", size_bytes: size };
    }
    const digest = hash.digest("hex").slice(0, 16);
    if (count.isBinary) return { path: shown, kind: "binary", size_bytes: size, digest };
    return { path: shown, kind: "text", size_bytes: size, lines: count.lines, longest_line: count.longest, digest };
  } catch (error) {
    throw fromSystem(error, path);
  } finally {
    await file.close();
  }
}

/** Lines are counted in bytes, chunk by chunk: no file is held in memory. */
class LineCount {
  isBinary = false;
  longest = { line: 0, bytes: 0 };
  #ended = 0;
  #open = 0;

  add(chunk: Buffer): void {
    this.isBinary ||= chunk.includes(0);
    let from = 0;
    for (let at = chunk.indexOf(NEWLINE); at >= 0; at = chunk.indexOf(NEWLINE, from)) {
      this.#open += at - from;
      this.#measure();
      this.#ended++;
      this.#open = 0;
      from = at + 1;
    }
    this.#open += chunk.length - from;
    this.#measure();
  }

  get lines(): number {
    return this.#ended + (this.#open > 0 ? 1 : 0);
  }

  #measure(): void {
    if (this.#open > this.longest.bytes) this.longest = { line: this.#ended + 1, bytes: this.#open };
  }
}
