import { randomUUID } from "node:crypto";
import { constants, copyFile, link, readFile, rename, rm, writeFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { StartBusyError } from "./errors.ts";
import { isProcessAlive, readProcessStart } from "./processes.ts";

interface Holder {
  readonly pid: number;
  readonly processStart: string | undefined;
  readonly token: string;
}

/**
 * Runs `work` while holding a lock file, so that of two commands started at once one starts the server and the other
 * finds it. A lock whose process is gone is taken over.
 *
 * Node has no flock. The lock is a hard link to a file written beforehand, so it never exists half written. Taking
 * over leaves one window in which two takers could both go on; what follows bears that: initdb works in a folder of
 * its own that is renamed into place, and Postgres itself refuses a second server on the same data.
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
        await removeDeadLock(lockFile, holder, me);
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

/** Whoever renames the file first removes it; if it turns out to be a newer lock than the dead one, it is put back. */
async function removeDeadLock(lockFile: string, dead: Holder, me: Holder): Promise<void> {
  const aside = `${lockFile}.${me.token}.dead`;
  try {
    await rename(lockFile, aside);
  } catch {
    return; // another taker was faster
  }
  const moved = await readHolder(aside);
  if (moved !== undefined && moved.token !== dead.token) await linkOrCopy(aside, lockFile).catch(() => undefined);
  await rm(aside, { force: true });
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
