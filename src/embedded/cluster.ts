import { randomBytes } from "node:crypto";
import { existsSync } from "node:fs";
import { chown, mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { PostgresBinaries } from "./binaries.ts";
import { runCommand, type OsIdentity } from "./command.ts";
import { InitFailedError, VersionMismatchError } from "./errors.ts";
import type { PreparedPlacement } from "./placement.ts";
import { isProcessAlive } from "./processes.ts";

export const superuser = "postgres";

/**
 * Included from postgresql.conf and written anew at every start; a file needs no quoting through pg_ctl's shell. It lies
 * beside the data folder and not in it: there the server's user could put a link in its place and have root write
 * through it.
 */
export const settingsFileName = "capstan.conf";

interface ClusterOptions {
  readonly placement: PreparedPlacement;
  readonly binaries: PostgresBinaries;
  /** false when the server will run with fsync=off anyway; saves a second */
  readonly sync: boolean;
  readonly onLog: ((line: string) => void) | undefined;
}

/**
 * The marker, written last, inside the data folder: its absence tells a half made cluster, and the password travels
 * with the data it opens. 0600 in a folder that Postgres keeps at 0700.
 */
interface Marker {
  readonly password: string;
  readonly postgresVersion: string;
}

/**
 * Makes the cluster when there is none and checks that this Postgres can serve the one that is there. Gives the
 * superuser's password. A folder without the marker is moved aside, never deleted.
 */
export async function ensureCluster(options: ClusterOptions): Promise<string> {
  const { placement, binaries } = options;
  const marker = await readMarker(placement.dataDir);
  if (marker) {
    await assertSameMajor(placement.dataDir, binaries.major);
    return marker.password;
  }
  await removeAbandonedAttempts(placement.home);
  if (existsSync(placement.dataDir)) {
    // A whole cluster of another version without our marker still deserves the better answer.
    await assertSameMajor(placement.dataDir, binaries.major);
    const aside = `${placement.dataDir}.incomplete-${new Date().toISOString().replaceAll(":", "")}`;
    options.onLog?.(`${placement.dataDir} was never finished; moved to ${aside}`);
    await rename(placement.dataDir, aside);
  }
  return makeCluster(options);
}

/** Undefined when there is no finished cluster. */
export async function readMarker(dataDir: string): Promise<Marker | undefined> {
  try {
    return JSON.parse(await readFile(markerFile(dataDir), "utf8")) as Marker;
  } catch (error) {
    if (["ENOENT", "ENOTDIR"].includes((error as NodeJS.ErrnoException).code ?? "")) return undefined;
    throw error;
  }
}

/** The major version a data folder was written by; undefined when initdb did not come that far. */
export async function readDataMajor(dataDir: string): Promise<string | undefined> {
  const text = await readFile(join(dataDir, "PG_VERSION"), "utf8").catch(() => "");
  return text.trim() === "" ? undefined : text.trim();
}

async function assertSameMajor(dataDir: string, serverMajor: string): Promise<void> {
  const dataMajor = await readDataMajor(dataDir);
  if (dataMajor !== undefined && dataMajor !== serverMajor) {
    throw new VersionMismatchError({ dataDir, dataMajor, serverMajor });
  }
}

async function makeCluster(options: ClusterOptions): Promise<string> {
  const { placement, binaries } = options;
  const { identity } = placement;
  const password = randomBytes(24).toString("base64url");
  const attempt = join(placement.home, `data.init-${process.pid}-${randomBytes(4).toString("hex")}`);
  const dataDir = join(attempt, "data");
  // initdb reads it by name and as the server's user, so it lies in that user's own folder.
  const passwordFile = join(attempt, "password");
  await mkdir(dataDir, { recursive: true, mode: 0o700 });
  await writeFile(passwordFile, `${password}\n`, { mode: 0o600 });
  for (const path of [attempt, dataDir, passwordFile]) await giveTo(identity, path);
  try {
    await runInitdb({ ...options, dataDir, passwordFile });
    await writeFile(join(dataDir, "postgresql.conf"), `\ninclude_if_exists = '../${settingsFileName}'\n`, { flag: "a" });
    const marker: Marker = { password, postgresVersion: binaries.version };
    await writeFile(markerFile(dataDir), JSON.stringify(marker), { mode: 0o600, flush: true });
    await giveTo(identity, markerFile(dataDir));
    await rename(dataDir, placement.dataDir);
  } catch (error) {
    // Somebody took the lock over at the same moment and was faster: theirs is the cluster.
    const winner = await readMarker(placement.dataDir);
    if (!winner) throw error;
    return winner.password;
  } finally {
    await rm(attempt, { recursive: true, force: true });
  }
  return password;
}

async function runInitdb(options: ClusterOptions & { readonly dataDir: string; readonly passwordFile: string }): Promise<void> {
  const { binaries, placement, dataDir } = options;
  const run = (locale: string) =>
    runCommand(
      binaries.initdb,
      [
        `--pgdata=${dataDir}`,
        `--username=${superuser}`,
        `--pwfile=${options.passwordFile}`,
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        `--locale=${locale}`,
        "--no-instructions",
        ...(options.sync ? [] : ["--no-sync"]),
      ],
      { identity: placement.identity, onLog: options.onLog },
    );
  // Never the caller's locale: it may not exist for the server, and sort order must not differ between machines.
  let result = await run("C.UTF-8");
  if (result.exitCode !== 0 && result.lines.some((line) => line.includes("invalid locale name"))) result = await run("C");
  if (result.exitCode !== 0) throw new InitFailedError(result.lines.slice(-15));
}

/** Folders of initdb runs whose process is gone. They never held a row. */
async function removeAbandonedAttempts(home: string): Promise<void> {
  for (const name of await readdir(home)) {
    const pid = /^data\.init-(\d+)-/.exec(name)?.[1];
    if (pid === undefined || (await isProcessAlive(Number(pid)))) continue;
    await rm(join(home, name), { recursive: true, force: true });
  }
}

export async function giveTo(identity: OsIdentity | undefined, path: string): Promise<void> {
  if (identity) await chown(path, identity.uid, identity.gid);
}

function markerFile(dataDir: string): string {
  return join(dataDir, "capstan.json");
}
