import { existsSync } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { resolve } from "node:path";
import { locateNativeFolder, prepareBinaries } from "./binaries.ts";
import { ensureCluster, readDataMajor, readMarker } from "./cluster.ts";
import { createDatabaseIfAbsent, databaseUrl, readServerVersion } from "./connect.ts";
import { withDirectoryLock } from "./directory-lock.ts";
import { StartFailedError } from "./errors.ts";
import { launchPostmaster } from "./launch.ts";
import { findPlacement, preparePlacement } from "./placement.ts";
import { readPostmaster, stopPostmaster, waitForReadyPostmaster, type StopMode } from "./postmaster.ts";

export interface EmbeddedPostgres {
  /** connection string of the wanted database, password included */
  readonly url: string;
  readonly port: number;
  /** not always under the wanted folder: see placement.ts */
  readonly dataDir: string;
  /** what the server says it is: "18.4" */
  readonly version: string;
  /** false when it ran already, left by a process that was killed or shared with one that lives */
  readonly startedByUs: boolean;
  /** Stops the server, whoever started it; may be called twice and by several at once. */
  stop(mode?: StopMode): Promise<void>;
}

export interface EmbeddedPostgresOptions {
  /** made when absent; holds everything, or a pointer to it */
  readonly dir: string;
  /** created when absent; "capstan" unless said otherwise */
  readonly database?: string;
  /** a wish: when it is taken a free one is used and kept for the next start */
  readonly port?: number;
  /** added to postgresql.conf; a server that runs already keeps the settings it was started with */
  readonly settings?: Readonly<Record<string, string>>;
  /** another build of Postgres: the folder that holds its `bin` */
  readonly nativeDir?: string;
  /** lines of initdb and of the server's log up to the moment it is ready */
  onLog?(line: string): void;
}

export interface EmbeddedPostgresStatus {
  readonly running: boolean;
  readonly pid?: number;
  readonly port?: number;
  /** of the database "capstan" */
  readonly url?: string;
  /** "18.4" when it runs; only the major version ("18") of the data when it does not; absent without data */
  readonly version?: string;
}

const defaultDatabase = "capstan";

/** Longer than a first start on a slow disk; a crash recovery under way belongs to a live process, which we wait for. */
const lockWaitMs = 120_000;

/**
 * Starts the embedded Postgres of a folder, or finds it running. The server is a process of its own: it survives us
 * and has to be stopped.
 *
 * Throws `EMBEDDED_PLATFORM_UNSUPPORTED`, `EMBEDDED_BINARIES_MISSING`, `EMBEDDED_USER_UNAVAILABLE`,
 * `EMBEDDED_DATA_FOREIGN`, `EMBEDDED_VERSION_MISMATCH`, `EMBEDDED_INIT_FAILED`, `EMBEDDED_START_FAILED` or
 * `EMBEDDED_START_BUSY`.
 */
export async function startEmbeddedPostgres(options: EmbeddedPostgresOptions): Promise<EmbeddedPostgres> {
  const nativeDir = options.nativeDir ?? locateNativeFolder();
  const dir = resolve(options.dir);
  await mkdir(dir, { recursive: true });
  const database = options.database ?? defaultDatabase;
  const { lockFile } = await findPlacement(dir);
  return withDirectoryLock(lockFile, { waitMs: lockWaitMs }, async () => {
    const placement = await preparePlacement(dir);
    const binaries = await prepareBinaries(nativeDir, placement);
    const settings = options.settings ?? {};
    const onLog = options.onLog?.bind(options);
    const password = await ensureCluster({ placement, binaries, sync: settings["fsync"] !== "off", onLog });
    const running = await waitForReadyPostmaster(placement.dataDir, 60_000);
    const postmaster = running ?? (await launchPostmaster({ placement, binaries, port: options.port, settings, onLog }));
    const { port } = postmaster;
    if (port === undefined || !postmaster.isReady) {
      throw new StartFailedError(`process ${postmaster.pid} runs but does not become ready; see ${placement.logFile}`, []);
    }
    const address = { port, password };
    await createDatabaseIfAbsent(address, database);
    return {
      url: databaseUrl(address, database),
      port,
      dataDir: placement.dataDir,
      version: await readServerVersion(address),
      startedByUs: running === undefined,
      async stop(mode = "fast") {
        await stopEmbeddedPostgres(dir, mode);
      },
    };
  });
}

/** Never starts or makes anything. */
export async function embeddedPostgresStatus(dir: string): Promise<EmbeddedPostgresStatus> {
  const { dataDir } = await findPlacement(dir);
  const dataMajor = await readDataMajor(dataDir);
  const postmaster = await readPostmaster(dataDir);
  if (!postmaster) return { running: false, ...(dataMajor !== undefined && { version: dataMajor }) };
  const { pid, port } = postmaster;
  const password = (await readMarker(dataDir))?.password;
  if (port === undefined || password === undefined) return { running: true, pid };
  const address = { port, password };
  const version = await readServerVersion(address).catch(() => dataMajor);
  return { running: true, pid, port, url: databaseUrl(address, defaultDatabase), ...(version !== undefined && { version }) };
}

/** False when no server ran. Resolves once no process of it is left. */
export async function stopEmbeddedPostgres(dir: string, mode: StopMode = "fast"): Promise<boolean> {
  const { wantedDir, dataDir, lockFile } = await findPlacement(dir);
  if (!existsSync(wantedDir)) return false;
  return withDirectoryLock(lockFile, { waitMs: lockWaitMs }, async () => {
    const postmaster = await readPostmaster(dataDir);
    if (!postmaster) return false;
    await stopPostmaster(postmaster.pid, mode);
    return true;
  });
}

/** Stops the server and deletes its data, wherever it was put. For throw-away servers. */
export async function deleteEmbeddedPostgres(dir: string): Promise<void> {
  await stopEmbeddedPostgres(dir, "immediate");
  const { wantedDir, home } = await findPlacement(dir);
  await rm(home, { recursive: true, force: true });
  await rm(wantedDir, { recursive: true, force: true });
}
