import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";

/**
 * Whether a process runs. A zombie does not: under a container's pid 1 that never reaps, a killed postmaster keeps
 * its number for ever and answers signal 0.
 */
export async function isProcessAlive(pid: number): Promise<boolean> {
  try {
    process.kill(pid, 0);
  } catch (error) {
    // EPERM: it runs, as somebody else.
    if ((error as NodeJS.ErrnoException).code !== "EPERM") return false;
  }
  const stat = await readProcessStat(pid);
  return stat === undefined || (stat.state !== "Z" && stat.state !== "X");
}

/**
 * When a process began, in the kernel's clock ticks, to tell a process from a later one with the same number.
 * Undefined where there is no /proc (macOS).
 */
export async function readProcessStart(pid: number): Promise<string | undefined> {
  return (await readProcessStat(pid))?.startTicks;
}

/** False when the process is still there after `timeoutMs`. */
export async function waitForProcessEnd(pid: number, timeoutMs: number): Promise<boolean> {
  const deadline = performance.now() + timeoutMs;
  while (await isProcessAlive(pid)) {
    if (performance.now() > deadline) return false;
    await sleep(10);
  }
  return true;
}

/** proc(5): the name in parentheses may hold spaces and parentheses, so fields are counted from the last one. */
async function readProcessStat(pid: number): Promise<{ state: string; startTicks: string } | undefined> {
  const text = await readFile(`/proc/${pid}/stat`, "utf8").catch(() => undefined);
  if (text === undefined) return undefined;
  const fields = text.slice(text.lastIndexOf(")") + 2).split(" ");
  return { state: fields[0] ?? "", startTicks: fields[19] ?? "" };
}
