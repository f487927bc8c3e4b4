/**
 * A folder of exported runs, by the day on which they ended. A file has its name only once it is whole, on the disk, and
 * was read back with the digests that it says: what a killed command leaves ends in `.part` and is written anew.
 */
import { once } from "node:events";
import { createReadStream, createWriteStream } from "node:fs";
import { mkdir, open, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { finished } from "node:stream/promises";
import { checkExport } from "../transfer/check.ts";
import { exportRun } from "../transfer/export.ts";
import type { Database } from "./database.ts";
import { CliError } from "./exit.ts";

export class RunArchive {
  readonly #folder: string;
  readonly #database: Pick<Database, "pool" | "named">;
  files = 0;
  bytes = 0;

  constructor(folder: string, database: Pick<Database, "pool" | "named">) {
    this.#folder = folder;
    this.#database = database;
  }

  /** Gives the seq of the run's last event in the file. */
  async write(runId: string): Promise<number> {
    const { pool, named } = this.#database;
    const { rows } = await pool.query<{ day: string }>(
      named("select coalesce(to_char(r.finished_at at time zone 'UTC', 'YYYY-MM-DD'), 'open') as day from capstan.runs r where r.id = $1"),
      [runId],
    );
    const folder = join(this.#folder, rows[0]?.day ?? "open");
    const path = join(folder, `${runId}.ndjson`);
    const part = `${path}.part`;
    try {
      await mkdir(folder, { recursive: true, mode: 0o700 });
      const bytes = await writeLines(part, exportRun(pool, named, runId));
      const { lastSeq } = await checkExport(createInterface({ input: createReadStream(part), crlfDelay: Number.POSITIVE_INFINITY }));
      await rename(part, path);
      await toDisk(folder);
      this.files++;
      this.bytes += bytes;
      return lastSeq;
    } catch (error) {
      // Where it cannot be taken away either, what is said below says why.
      await rm(part, { force: true }).catch(() => {});
      const { code, message } = error as NodeJS.ErrnoException;
      // No room, no rights: of the disk, not of the run. Nothing more is deleted.
      if (code !== undefined && /^E[A-Z]+$/.test(code)) throw new CliError("FILE_UNWRITABLE", `cannot write ${path}: ${message}`, { cause: error });
      throw error;
    }
  }
}

async function writeLines(path: string, lines: AsyncGenerator<string>): Promise<number> {
  // Flushed before it is closed: what is deleted afterwards must not be in a cache alone.
  const file = createWriteStream(path, { mode: 0o600, flush: true });
  try {
    await once(file, "open");
    for await (const line of lines) if (!file.write(`${line}\n`)) await once(file, "drain");
    file.end();
    await finished(file);
    return file.bytesWritten;
  } finally {
    await lines.return(undefined);
    file.destroy();
  }
}

/** The new name, too. */
async function toDisk(folder: string): Promise<void> {
  const handle = await open(folder, "r");
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
