import { randomUUID } from "node:crypto";
import { constants, copyFile, link, readFile, rm, stat, writeFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { StartBusyError } from "./errors.ts";
import { isProcessAlive, readProcessStart } from "./processes.ts";

const TAKEOVER_MS = 10_000;

interface Holder {
  readonly pid: number;
  readonly processStart: string | undefined;
  readonly token: string;
}

/**
 * Runs `work` while holding a lock file, so that of two commands started at once one starts the server and the other
 * finds it. A lock whose process is gone is taken over.
 *
 * Node has no flock. The lock is a hard link to a file written beforehand, so it never exists half written.
 */
export async function withDirectoryLock<T>(lockFile: string, options: { readonly waitMs: number }, work: () => Promise<T>): Promise<T> {
  const me: Holder = { pid: process.pid, processStart: await readProcessStart(process.pid), token: randomUUID() };
  await acquire(lockFile, me, options.waitMs);
  try {
    return await work();
  } finally {
    const holder = await readHolder(lockFile);
    if (holder?.token === me.token) await rm(lockFile, { force: true });
  }
}

async function acquire(lockFile: string, me: Holder, waitMs: number): Promise<void> {
  const startedAt = performance.now();
  const mine = `${lockFile}.${me.token}`;
  await writeFile(mine, JSON.stringify(me), { mode: 0o644 });
  try {
    for (;;) {
      try {
        await linkOrCopy(mine, lockFile);
        return;
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
      }
      const holder = await readHolder(lockFile);
      if (holder === undefined) continue; // released between the two looks
      if (!(await isHolderAlive(holder))) {
        await removeDeadLock(lockFile, holder);
        continue;
      }
      const waitedMs = performance.now() - startedAt;
      if (waitedMs > waitMs) throw new StartBusyError(lockFile, holder.pid, waitedMs);
      await sleep(25);
    }
  } finally {
    await rm(mine, { force: true });
  }
}

/** Some shared and foreign file systems have no hard links; an exclusive copy is nearly as good. */
async function linkOrCopy(from: string, to: string): Promise<void> {
  try {
    await link(from, to);
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? "";
    if (!["EPERM", "ENOTSUP", "EOPNOTSUPP", "ENOSYS"].includes(code)) throw error;
    await copyFile(from, to, constants.COPYFILE_EXCL);
  }
}

/**
 * Removes a lock whose holder is gone. Only one taker at a time may do that, and it looks again before it does: a live
 * holder can appear only where no lock file is, so what it finds dead then is dead.
 */
async function removeDeadLock(lockFile: string, dead: Holder): Promise<void> {
  const takeover = `${lockFile}.takeover`;
  try {
    await writeFile(takeover, "", { flag: "wx" });
  } catch {
    await removeIfOld(takeover);
    await sleep(10);
    return;
  }
  try {
    const now = await readHolder(lockFile);
    if (now?.token === dead.token) await rm(lockFile, { force: true });
  } finally {
    await rm(takeover, { force: true });
  }
}

/** Left by a taker that died in the middle: its work takes milliseconds. */
async function removeIfOld(takeover: string): Promise<void> {
  const made = await stat(takeover).catch(() => undefined);
  if (made !== undefined && Date.now() - made.mtimeMs > TAKEOVER_MS) await rm(takeover, { force: true });
}

async function isHolderAlive(holder: Holder): Promise<boolean> {
  if (!(await isProcessAlive(holder.pid))) return false;
  const start = await readProcessStart(holder.pid);
  return start === undefined || holder.processStart === undefined || start === holder.processStart;
}

/** Undefined when there is no lock. Content that we did not write counts as a holder that is gone. */
async function readHolder(file: string): Promise<Holder | undefined> {
  let text: string;
  try {
    text = await readFile(file, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
  try {
    const value = JSON.parse(text) as Partial<Holder>;
    if (typeof value.pid === "number" && typeof value.token === "string") {
      return { pid: value.pid, processStart: value.processStart, token: value.token };
    }
  } catch {
    // falls through to the unreadable holder
  }
  return { pid: 0x7fffffff, processStart: undefined, token: text };
}
