/** Text as tools read it: UTF-8 of bounded size, in lines. */
import type { ConfinedFolder } from "./confined-folder.ts";
import { FolderToolError, fromSystem } from "./errors.ts";

/** Larger files are named, measured and hashed, but not read: one of them would fill a worker's memory many times over. */
export const MAX_TEXT_BYTES = 8 * 1024 * 1024;

export interface TextFile {
  readonly path: string;
  /** Without line ends; a last line end opens no further line. */
  readonly lines: readonly string[];
  /** Bytes that were no UTF-8 have become U+FFFD. */
  readonly isRepaired: boolean;
}

/** Throws FILE_TOO_LARGE, FILE_BINARY and what ConfinedFolder.openFile throws. */
export async function readTextFile(folder: ConfinedFolder, path: string): Promise<TextFile> {
  const { file, shown, sizeBytes } = await folder.openFile(path);
  try {
    if (sizeBytes > MAX_TEXT_BYTES) throw tooLarge(shown, sizeBytes);
    // The file may grow while it is read: one byte more than allowed is enough to know.
    const buffer = Buffer.alloc(Math.min(MAX_TEXT_BYTES, sizeBytes) + 1);
    let length = 0;
    for (;;) {
      const { bytesRead } = await file.read(buffer, length, buffer.length - length, length);
      length += bytesRead;
      if (bytesRead === 0 || length === buffer.length) break;
    }
    if (length > MAX_TEXT_BYTES) throw tooLarge(shown, length);
    const bytes = buffer.subarray(0, length);
    const nul = bytes.indexOf(0);
    if (nul >= 0) {
      throw new FolderToolError("FILE_BINARY", shown, `${JSON.stringify(shown)} is not text (NUL byte at offset ${nul}); file_facts gives its size and digest`);
    }
    const text = bytes.toString("utf8").replace(/^\uFEFF/, "");
    return { path: shown, lines: linesOf(text), isRepaired: text.includes("\uFFFD") };
  } catch (error) {
    throw fromSystem(error, path);
  } finally {
    await file.close();
  }
}

function linesOf(text: string): string[] {
  if (text === "") return [];
  const lines = text.split(/\r?\n/);
  if (lines.at(-1) === "") lines.pop();
  return lines;
}

/** Cuts between code points and says how long the whole was. */
export function clip(text: string, maxChars: number): string {
  if (text.length <= maxChars) return text;
  return `${text
    .slice(0, maxChars)
    .toWellFormed()
    .replace(/\uFFFD$/, "")}… (${text.length} characters)`;
}

function tooLarge(path: string, sizeBytes: number): FolderToolError {
  return new FolderToolError(
    "FILE_TOO_LARGE",
    path,
    `${JSON.stringify(path)} has ${sizeBytes} bytes, over the limit of ${MAX_TEXT_BYTES} for reading; file_facts gives its size, lines and digest`,
  );
}
