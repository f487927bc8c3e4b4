import { CapstanError } from "../domain/error.ts";

/**
 * What can go wrong with the embedded Postgres. The code is interface: commands print it and documents name it.
 * Messages are written for the person at the keyboard and end with what to do.
 */
export type EmbeddedPostgresErrorCode =
  | "EMBEDDED_PLATFORM_UNSUPPORTED"
  | "EMBEDDED_BINARIES_MISSING"
  | "EMBEDDED_USER_UNAVAILABLE"
  | "EMBEDDED_DATA_FOREIGN"
  | "EMBEDDED_VERSION_MISMATCH"
  | "EMBEDDED_INIT_FAILED"
  | "EMBEDDED_START_FAILED"
  | "EMBEDDED_START_BUSY"
  | "EMBEDDED_STOP_FAILED";

export abstract class EmbeddedPostgresError extends CapstanError {
  abstract override readonly code: EmbeddedPostgresErrorCode;
}

/** No server binaries are published for this machine, or they cannot run here (musl instead of glibc). */
export class PlatformUnsupportedError extends EmbeddedPostgresError {
  override readonly name = "PlatformUnsupportedError";
  readonly code = "EMBEDDED_PLATFORM_UNSUPPORTED";
  readonly platform: string;
  constructor(platform: string, reason: string, options?: ErrorOptions) {
    super(`no embedded Postgres for ${platform}: ${reason}. Set DATABASE_URL to a Postgres of your own instead.`, options);
    this.platform = platform;
  }
}

/** The package with the binaries is not installed, usually after an install without optional dependencies. */
export class BinariesMissingError extends EmbeddedPostgresError {
  override readonly name = "BinariesMissingError";
  readonly code = "EMBEDDED_BINARIES_MISSING";
  constructor(packageName: string, options?: ErrorOptions) {
    super(`${packageName} is not installed. Install again with optional dependencies, or set DATABASE_URL.`, options);
  }
}

/** We are root, Postgres refuses root, and no other user can be had. */
export class UserUnavailableError extends EmbeddedPostgresError {
  override readonly name = "UserUnavailableError";
  readonly code = "EMBEDDED_USER_UNAVAILABLE";
  constructor(reason: string, options?: ErrorOptions) {
    super(`Postgres does not run as root and no unprivileged user can be used: ${reason}. Run as another user.`, options);
  }
}

/** The data folder belongs to another user than the one that runs us. */
export class DataForeignError extends EmbeddedPostgresError {
  override readonly name = "DataForeignError";
  readonly code = "EMBEDDED_DATA_FOREIGN";
  readonly dataDir: string;
  constructor(dataDir: string, ownerUid: number, options?: ErrorOptions) {
    super(`${dataDir} belongs to user ${ownerUid}. Run as that user or as root, or move the folder away.`, options);
    this.dataDir = dataDir;
  }
}

/** The data folder was written by another major version. Nothing was touched. */
export class VersionMismatchError extends EmbeddedPostgresError {
  override readonly name = "VersionMismatchError";
  readonly code = "EMBEDDED_VERSION_MISMATCH";
  readonly dataDir: string;
  readonly dataMajor: string;
  readonly serverMajor: string;
  constructor(versions: { readonly dataDir: string; readonly dataMajor: string; readonly serverMajor: string }) {
    const { dataDir, dataMajor, serverMajor } = versions;
    super(
      `${dataDir} was written by Postgres ${dataMajor} and this is Postgres ${serverMajor}. To start afresh move the ` +
        `folder away; to keep the data dump it with Postgres ${dataMajor} (pg_dumpall) first and load it afterwards.`,
    );
    this.dataDir = dataDir;
    this.dataMajor = dataMajor;
    this.serverMajor = serverMajor;
  }
}

/** initdb failed; `lastLines` is the end of what it said. */
export class InitFailedError extends EmbeddedPostgresError {
  override readonly name = "InitFailedError";
  readonly code = "EMBEDDED_INIT_FAILED";
  readonly lastLines: readonly string[];
  constructor(lastLines: readonly string[], options?: ErrorOptions) {
    super(`initdb failed:\n${lastLines.join("\n")}`, options);
    this.lastLines = lastLines;
  }
}

/** The server did not come up; `lastLines` is the end of its log. */
export class StartFailedError extends EmbeddedPostgresError {
  override readonly name = "StartFailedError";
  readonly code = "EMBEDDED_START_FAILED";
  readonly lastLines: readonly string[];
  constructor(reason: string, lastLines: readonly string[], options?: ErrorOptions) {
    super(`embedded Postgres did not start: ${reason}\n${lastLines.join("\n")}`, options);
    this.lastLines = lastLines;
  }
}

/** Another live process has been starting or stopping the same server for longer than we wait. */
export class StartBusyError extends EmbeddedPostgresError {
  override readonly name = "StartBusyError";
  readonly code = "EMBEDDED_START_BUSY";
  override readonly retryable = true;
  constructor(lockFile: string, holderPid: number, waitedMs: number) {
    super(`process ${holderPid} has held ${lockFile} for ${Math.round(waitedMs / 1000)} s. End that process, or remove the file if it is not a Capstan process.`);
  }
}

/** The server is still there after a fast, an immediate and a hard stop. */
export class StopFailedError extends EmbeddedPostgresError {
  override readonly name = "StopFailedError";
  readonly code = "EMBEDDED_STOP_FAILED";
  readonly pid: number;
  constructor(pid: number, options?: ErrorOptions) {
    super(`embedded Postgres (pid ${pid}) does not stop`, options);
    this.pid = pid;
  }
}
