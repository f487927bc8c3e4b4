import { readFile, readlink, realpath, rm } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { runCommand } from "./command.ts";
import { StopFailedError } from "./errors.ts";
import { isProcessAlive, waitForProcessEnd } from "./processes.ts";

/** A server process that runs on a data folder, as its postmaster.pid tells. */
export interface Postmaster {
  readonly pid: number;
  /** undefined while it is still coming up */
  readonly port: number | undefined;
  readonly isReady: boolean;
}

export type StopMode = "fast" | "immediate";

/**
 * The server that runs on `dataDir`; undefined when none does. Lines of postmaster.pid (Postgres source,
 * miscadmin.h): 1 pid, 2 data folder, 3 start time, 4 port, 5 socket folder, 6 address, 7 shared memory, 8 status.
 */
export async function readPostmaster(dataDir: string): Promise<Postmaster | undefined> {
  const text = await readFile(pidFile(dataDir), "utf8").catch(() => "");
  const lines = text.split("\n").map((line) => line.trim());
  const pid = Number(lines[0]);
  if (!Number.isInteger(pid) || pid <= 0 || !(await isPostmaster(pid, dataDir))) return undefined;
  const port = Number(lines[3]);
  return { pid, port: port > 0 ? port : undefined, isReady: lines[7] === "ready" };
}

/** Waits out a server that is starting or stopping; undefined once it is gone. */
export async function waitForReadyPostmaster(dataDir: string, timeoutMs: number): Promise<Postmaster | undefined> {
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    const postmaster = await readPostmaster(dataDir);
    if (!postmaster || postmaster.isReady || performance.now() > deadline) return postmaster;
    await sleep(20);
  }
}

/**
 * Postgres clears a pid file whose process is gone by itself, but trusts it when the number belongs to a living
 * process of the same user or to a zombie: after a reboot or in a container with few processes that is a stranger.
 * Only called under the lock and when `readPostmaster` found none; Postgres's own check of the shared memory segment
 * still guards against children of a killed server.
 */
export async function removeStalePidFile(dataDir: string): Promise<void> {
  await rm(pidFile(dataDir), { force: true });
}

/**
 * Signals rather than pg_ctl, so that a server can be stopped after its binaries were replaced or removed: SIGINT is
 * the fast shutdown, SIGQUIT the immediate one (Postgres manual, "Shutting Down the Server"). A fast stop that hangs
 * becomes an immediate one, and that a kill; either way the next start recovers from the log.
 */
export async function stopPostmaster(pid: number, mode: StopMode): Promise<void> {
  // A checkpoint of 2 GB of log on a slow disk may take most of a minute.
  if (mode === "fast" && (await signalAndWait(pid, "SIGINT", 60_000))) return;
  if (await signalAndWait(pid, "SIGQUIT", 15_000)) return;
  if (await signalAndWait(pid, "SIGKILL", 5_000)) return;
  throw new StopFailedError(pid);
}

async function signalAndWait(pid: number, signal: NodeJS.Signals, timeoutMs: number): Promise<boolean> {
  try {
    process.kill(pid, signal);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ESRCH") return true;
    throw new StopFailedError(pid, { cause: error });
  }
  return waitForProcessEnd(pid, timeoutMs);
}

/** A postmaster works in its data folder, wherever that was moved to. Without /proc its command line has to do. */
async function isPostmaster(pid: number, dataDir: string): Promise<boolean> {
  if (!(await isProcessAlive(pid))) return false;
  try {
    return (await readlink(`/proc/${pid}/cwd`)) === (await realpath(dataDir));
  } catch {
    const { lines } = await runCommand("ps", ["-p", `${pid}`, "-o", "command="]).catch(() => ({ lines: [] as string[] }));
    return lines.some((line) => line.includes("postgres"));
  }
}

function pidFile(dataDir: string): string {
  return join(dataDir, "postmaster.pid");
}
