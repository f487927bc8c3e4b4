/** What the folder tools refuse, and why. The model reads code and message, so the message says what to do instead. */
import { CapstanError } from "../domain/error.ts";
import type { JsonObject } from "../domain/json.ts";

export type FolderToolCode =
  | "PATH_OUTSIDE_ROOT"
  | "PATH_INVALID"
  | "PATH_NOT_FOUND"
  | "PATH_NOT_A_FILE"
  | "PATH_NOT_A_FOLDER"
  | "FILE_BINARY"
  | "FILE_TOO_LARGE"
  | "FILE_UNREADABLE"
  | "FILE_SHORTER";

export class FolderToolError extends CapstanError {
  override readonly name = "FolderToolError";
  readonly code: FolderToolCode;
  override readonly details: JsonObject;

  constructor(code: FolderToolCode, path: string, message: string, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
    this.details = { path };
  }
}

/** A failed system call in our words; anything that is none of the file system's answers is a defect and passes through. */
export function fromSystem(error: unknown, path: string): unknown {
  const code = (error as NodeJS.ErrnoException | null)?.code;
  const shown = JSON.stringify(path);
  switch (code) {
    case "ENOENT":
      return new FolderToolError("PATH_NOT_FOUND", path, `there is no ${shown}; list its folder to see what is there`, { cause: error });
    case "ENOTDIR":
      return new FolderToolError("PATH_NOT_FOUND", path, `there is no ${shown}: a part of it is a file, not a folder`, { cause: error });
    case "ENAMETOOLONG":
    case "EINVAL":
      return new FolderToolError("PATH_INVALID", path, `${shown} is no path that this file system accepts (${code})`, { cause: error });
    case "EACCES":
    case "EPERM":
    case "ELOOP":
    case "EIO":
    case "ENXIO":
    case "EBUSY":
    case "EISDIR":
      return new FolderToolError("FILE_UNREADABLE", path, `${shown} cannot be read (${code}); go on without it`, { cause: error });
    default:
      return error;
  }
}
