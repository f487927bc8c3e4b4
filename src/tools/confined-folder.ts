/** A folder that tools may look into and nothing beyond it, whatever `..` or symbolic links say. */
import { constants } from "node:fs";
import { open, realpath, stat, type FileHandle } from "node:fs/promises";
import { isAbsolute, join, posix, relative, resolve, sep } from "node:path";
import { FolderToolError, fromSystem } from "./errors.ts";

export interface ConfinedPath {
  /** Free of symbolic links. */
  readonly absolute: string;
  /** As asked for, made plain: forward slashes, no `.` or `..`; "." is the root itself. */
  readonly shown: string;
}

export class ConfinedFolder {
  readonly #root: string;

  /** The folder need not exist yet: it is looked at with every call, since a definition may be made on another machine. */
  constructor(root: string) {
    this.#root = resolve(root);
  }

  /** Throws PATH_INVALID, PATH_OUTSIDE_ROOT, PATH_NOT_FOUND or FILE_UNREADABLE. */
  async locate(path: string): Promise<ConfinedPath> {
    const shown = plainPath(path);
    try {
      const root = await realpath(this.#root);
      const absolute = await realpath(join(root, shown));
      // A link may lead anywhere: what counts is where it ends.
      const inside = relative(root, absolute);
      if (inside === ".." || inside.startsWith(`..${sep}`) || isAbsolute(inside)) throw outside(path);
      return { absolute, shown };
    } catch (error) {
      throw fromSystem(error, path);
    }
  }

  /**
   * Opens a regular file for reading. NOFOLLOW, because the last part of the path could have become a link since it was
   * looked at; NONBLOCK, because opening a pipe without a writer would otherwise wait for ever.
   */
  async openFile(path: string): Promise<{ readonly file: FileHandle; readonly shown: string; readonly sizeBytes: number }> {
    const { absolute, shown } = await this.locate(path);
    let file: FileHandle | undefined;
    try {
      const before = await stat(absolute);
      if (!before.isFile()) throw notAFile(shown, before.isDirectory());
      file = await open(absolute, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
      const facts = await file.stat();
      if (!facts.isFile()) throw notAFile(shown, facts.isDirectory());
      return { file, shown, sizeBytes: facts.size };
    } catch (error) {
      await file?.close();
      throw fromSystem(error, path);
    }
  }
}

function plainPath(path: string): string {
  if (path.includes("\u0000")) throw new FolderToolError("PATH_INVALID", path.replaceAll("\u0000", "\uFFFD"), "a path cannot hold a NUL character");
  if (isAbsolute(path)) throw outside(path);
  const plain = posix.normalize(path === "" ? "." : path).replace(/\/$/, "");
  if (plain === ".." || plain.startsWith("../")) throw outside(path);
  return plain === "" ? "." : plain;
}

function outside(path: string): FolderToolError {
  return new FolderToolError("PATH_OUTSIDE_ROOT", path, `${JSON.stringify(path)} leads out of the folder that may be read; give a path relative to it, such as "." or "docs/a.md"`);
}

function notAFile(path: string, isFolder: boolean): FolderToolError {
  const what = isFolder ? "a folder: list it instead" : "no regular file (a pipe, socket or device): go on without it";
  return new FolderToolError("PATH_NOT_A_FILE", path, `${JSON.stringify(path)} is ${what}`);
}
