/** Runs that move: one written down for another database, and put into this one. Line by line, never as one string. */
import type { Command } from "commander";
import { once } from "node:events";
import { createReadStream, createWriteStream, type WriteStream } from "node:fs";
import { rm } from "node:fs/promises";
import { createInterface } from "node:readline";
import { finished } from "node:stream/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { ExportBusyError, exportRun } from "../transfer/export.ts";
import { importRun } from "../transfer/import.ts";
import { actorName } from "./actor.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase, type Database } from "./database.ts";
import { CliError, exitCodes, usageError } from "./exit.ts";
import { parseRunId } from "./format.ts";
import type { Output } from "./output.ts";
import { runHandle } from "./run-client.ts";
import { aborted } from "./stop-signals.ts";

const PAUSED_LOOK_MS = 200;

export function addRunsTransfer(runs: Command): void {
  addCommand(runs, "export", {
    summary: "write a run down, for another database",
    description:
      "Writes a run down as lines of JSON, for `runs import` into another database: its journal, its blobs, its agent's definition, and what came for it and was not applied yet. The run must rest: it awaits input, is queued or paused, or has ended; in the middle of a turn it is refused (RUN_BUSY, exit 1). Nothing changes here: whatever is to go on elsewhere should be cancelled here, or stay paused.",
    examples: [
      "runs export 0190… --pause > run.ndjson",
      "runs export 0190… --output run.ndjson --json",
      "capstan runs export 0190… --pause | DATABASE_URL=postgres://… capstan runs import",
    ],
  })
    .argument("<run id>")
    .option("--output <file>", "write to a file that does not exist yet, not to standard output")
    .option("--pause", "pause the run first, and wait until the turn at hand is done; it stays paused")
    .action(
      action(async (out, given: string, { output, pause = false }: { output?: string; pause?: boolean }) => {
        const runId = parseRunId(given);
        if (out.isJson && output === undefined) throw usageError("--json reports what was written, and without --output the lines are the output themselves: give --output");
        return await withDatabase(out, async (database) => {
          const lines = pause ? await pausedLines(out, database, runId) : await opened(exportRun(database.pool, database.named, runId));
          if (output === undefined) await toStandardOutput(out, lines, database.signal);
          else await report(out, runId, output, await toFile(output, lines, database.signal));
          return exitCodes.ok;
        });
      }),
    );

  addCommand(runs, "import", {
    summary: "put an exported run into this database, where it goes on",
    description:
      "Puts a run that `runs export` wrote into this database, where it goes on under its own id: all of it, or nothing. A file that was changed or cut off is refused (IMPORT_DAMAGED), a run that is here already too (IMPORT_EXISTS), and one that a newer version wrote (IMPORT_UNKNOWN_VERSION); then exit 1. A worker here must have its agent.",
    examples: ["runs import run.ndjson", "runs import run.ndjson --paused --tenant acme --json", "gunzip -c run.ndjson.gz | capstan runs import"],
  })
    .argument("[file]", "what was exported (default: standard input)")
    .option("--tenant <tenant>", "put it under this tenant (default: the one that it had)")
    .option("--paused", "leave it paused: `runs resume` lets it go on")
    .action(
      action(async (out, file: string | undefined, { tenant, paused = false }: { tenant?: string; paused?: boolean }) =>
        withDatabase(out, async ({ pool, named, signal }) => {
          const input: NodeJS.ReadableStream = file === undefined ? process.stdin : createReadStream(file);
          const lines = createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY, signal });
          // Without this a file that cannot be read would be waited for.
          const broken = new Promise<never>((_, reject) => {
            input.once("error", (cause: Error) => {
              reject(new CliError("FILE_UNREADABLE", `cannot read ${file ?? "standard input"}: ${cause.message}`, { cause }));
              lines.close();
            });
          });
          broken.catch(() => {});
          const imported = await Promise.race([importRun(pool, named, lines, { paused, ...(tenant === undefined ? {} : { tenant }) }), broken]);
          if (out.isJson) await out.value({ run_id: imported.runId, tenant: imported.tenant, runs: imported.runs, events: imported.events, blobs: imported.blobs, paused });
          else await out.line(`imported ${imported.runId} of tenant ${imported.tenant}: ${imported.events} events, ${imported.blobs} blobs${paused ? "; it is paused" : ""}`);
          return exitCodes.ok;
        }),
      ),
    );
}

interface Opened {
  readonly first: string;
  readonly rest: AsyncGenerator<string>;
}

/** Whether a run may be exported shows with its first line: before that no file is made. */
async function opened(rest: AsyncGenerator<string>): Promise<Opened> {
  const { value } = await rest.next();
  return { first: value as string, rest };
}

/** Until `write` gives false. The snapshot behind the lines is let go in any case. */
async function through({ first, rest }: Opened, write: (line: string) => Promise<boolean>): Promise<void> {
  try {
    if (!(await write(first))) return;
    for await (const line of rest) if (!(await write(line))) return;
  } finally {
    await rest.return(undefined);
  }
}

async function pausedLines(out: Output, database: Database, runId: string): Promise<Opened> {
  const handle = runHandle(database, runId);
  if (await handle.pause({ actor: actorName() })) out.note(`paused ${runId}; waiting until the turn at hand is done`);
  for (;;) {
    try {
      return await opened(exportRun(database.pool, database.named, runId));
    } catch (error) {
      // Calls that wait for somebody outside are no turn that ends by itself.
      if (!(error instanceof ExportBusyError) || (await handle.waits()).length > 0) throw error;
    }
    await sleep(PAUSED_LOOK_MS, undefined, { signal: database.signal });
  }
}

/** A reader that has gone gets no more of it, and one that has stopped reading does not keep us. */
async function toStandardOutput(out: Output, lines: Opened, signal: AbortSignal): Promise<void> {
  await through(lines, async (line) => {
    await Promise.race([out.line(line), aborted(signal)]);
    return !signal.aborted;
  });
}

/** What is cut off is no export: a file that could not be finished is taken away again. */
async function toFile(path: string, lines: Opened, signal: AbortSignal): Promise<{ readonly lines: number; readonly bytes: number }> {
  let file: WriteStream | undefined;
  let count = 0;
  try {
    await through(lines, async (line) => {
      signal.throwIfAborted();
      file ??= await openedFile(path);
      if (!file.write(`${line}\n`)) await once(file, "drain", { signal });
      count++;
      return true;
    });
    file = file as WriteStream;
    file.end();
    await finished(file);
    return { lines: count, bytes: file.bytesWritten };
  } catch (error) {
    file?.destroy();
    if (file !== undefined) await rm(path, { force: true });
    throw error;
  }
}

async function openedFile(path: string): Promise<WriteStream> {
  const file = createWriteStream(path, { flags: "wx", mode: 0o600 });
  try {
    await once(file, "open");
    return file;
  } catch (cause) {
    throw new CliError("FILE_UNWRITABLE", `cannot write ${path}: ${(cause as Error).message}`, { cause });
  }
}

async function report(out: Output, runId: string, file: string, written: { readonly lines: number; readonly bytes: number }): Promise<void> {
  if (out.isJson) await out.value({ run_id: runId, file, ...written });
  else await out.line(`exported ${runId} to ${file}: ${written.lines} lines, ${written.bytes} bytes`);
}
