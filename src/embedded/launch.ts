import { existsSync } from "node:fs";
import { chmod, open, readFile, rename, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { PostgresBinaries } from "./binaries.ts";
import { giveTo, settingsFileName } from "./cluster.ts";
import { runCommand } from "./command.ts";
import { StartFailedError } from "./errors.ts";
import { findFreePort, isPortFree } from "./free-port.ts";
import type { PreparedPlacement } from "./placement.ts";
import { readPostmaster, removeStalePidFile, waitForReadyPostmaster, type Postmaster } from "./postmaster.ts";

interface LaunchOptions {
  readonly placement: PreparedPlacement;
  readonly binaries: PostgresBinaries;
  readonly port: number | undefined;
  readonly settings: Readonly<Record<string, string>>;
  readonly onLog: ((line: string) => void) | undefined;
}

/** For a developer's machine: room for both pools, the console and a test run, without eating its memory. */
const defaultSettings: Readonly<Record<string, string>> = {
  shared_buffers: "128MB",
  max_connections: "200",
  max_wal_size: "2GB",
};

const logKeptBytes = 10 * 1024 * 1024;

/** Starts the server through pg_ctl, which detaches it: it outlives us unless it is stopped. Resolves once it is ready. */
export async function launchPostmaster(options: LaunchOptions): Promise<Postmaster> {
  const { placement } = options;
  // pg_ctl hands these paths to a shell in double quotes, in which four characters keep a meaning.
  for (const path of [placement.home, options.binaries.pgCtl]) {
    if (/["$`\\]/.test(path)) throw new StartFailedError(`pg_ctl cannot work with the path ${path}`, []);
  }
  await prepareLog(placement);
  let port = options.port ?? (await readStoredPort(placement.portFile)) ?? (await findFreePort());
  if (!(await isPortFree(port))) port = await findFreePort();
  for (let attempt = 1; ; attempt++) {
    const { failure, lines } = await tryLaunch(options, port);
    if (failure === undefined) {
      const postmaster = await waitForReadyPostmaster(placement.dataDir, 60_000);
      if (postmaster?.isReady) {
        await writeFile(placement.portFile, `${port}\n`);
        return postmaster;
      }
    }
    const log = lines.join("\n");
    const isPortTaken = /could not bind|Address already in use/.test(log);
    // The children of a server that was killed hard need a moment to notice and let go of its shared memory.
    const isMemoryHeld = /pre-existing shared memory block/.test(log);
    if (attempt >= 8 || !(isPortTaken || isMemoryHeld)) {
      throw new StartFailedError(failure ?? "it ended right after the start", lines.slice(-15));
    }
    if (isPortTaken) port = await findFreePort();
    if (isMemoryHeld) await sleep(250 * attempt);
  }
}

async function tryLaunch(options: LaunchOptions, port: number): Promise<{ failure: string | undefined; lines: readonly string[] }> {
  const { placement, binaries } = options;
  const { dataDir, logFile, identity } = placement;
  const settingsFile = join(placement.home, settingsFileName);
  await writeFile(settingsFile, renderSettings({ ...defaultSettings, ...options.settings }, port));
  await chmod(settingsFile, 0o644); // whatever the umask says, the server's user has to read it
  if (!(await readPostmaster(dataDir))) await removeStalePidFile(dataDir);
  const logStart = (await stat(logFile)).size;
  // A long crash recovery is no failure: pg_ctl gives up waiting after its timeout, not the server.
  const result = await runCommand(binaries.pgCtl, ["start", "-D", dataDir, "-l", logFile, "-w", "-t", "300", "-s"], { identity });
  const lines = [...result.lines, ...(await readLogSince(logFile, logStart))];
  for (const line of lines) options.onLog?.(line);
  return { failure: result.exitCode === 0 ? undefined : `pg_ctl ended with ${result.exitCode}`, lines };
}

/**
 * Loopback only, and no Unix socket: its path would be too long for the kernel (107 bytes) in deep folders. The
 * caller's settings come before these two and the port, the last of a name wins.
 */
function renderSettings(settings: Readonly<Record<string, string>>, port: number): string {
  const fixed = { listen_addresses: "127.0.0.1", unix_socket_directories: "", port: `${port}` };
  const lines = Object.entries({ ...settings, ...fixed }).map(([name, value]) => {
    if (!/^[a-z_][a-z0-9_.]*$/i.test(name)) throw new StartFailedError(`"${name}" is no name of a setting`, []);
    return `${name} = '${value.replaceAll("\\", "\\\\").replaceAll("'", "''").replaceAll("\n", " ")}'`;
  });
  return `# Written at every start; change it through the settings option.\n${lines.join("\n")}\n`;
}

/** Made by us and given to the server's user, who may not write in the folder itself. */
async function prepareLog({ logFile, identity }: PreparedPlacement): Promise<void> {
  const size = existsSync(logFile) ? (await stat(logFile)).size : 0;
  if (size > logKeptBytes) await rename(logFile, `${logFile}.1`);
  await (await open(logFile, "a", 0o600)).close();
  await giveTo(identity, logFile);
}

async function readLogSince(logFile: string, offset: number): Promise<string[]> {
  const text = (await readFile(logFile)).subarray(offset).toString("utf8");
  return text.split("\n").filter((line) => line.trim() !== "");
}

async function readStoredPort(portFile: string): Promise<number | undefined> {
  const port = Number(await readFile(portFile, "utf8").catch(() => ""));
  return Number.isInteger(port) && port > 0 && port < 65_536 ? port : undefined;
}
