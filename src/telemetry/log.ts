/** pino, set up once: JSON lines, no payloads, secrets redacted. */
import { destination, pino, type DestinationStream, type Logger } from "pino";
import type { Log } from "../engine/ports.ts";

export interface LogOptions {
  readonly level: string;
  /** A file descriptor, a file's path, or a stream; standard error unless said otherwise. */
  readonly stream?: number | string | DestinationStream;
  /** Ids of the span that a run is in: added to every line that names a `runId`, so that a line leads to its trace. */
  readonly traceOf?: (runId: string) => object | undefined;
}

export function createLog({ level, stream = process.stderr.fd, traceOf }: LogOptions): Logger {
  return pino(
    {
      level,
      base: { pid: process.pid },
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: {
        level: (label) => ({ level: label }),
        ...(traceOf === undefined ? {} : { log: (fields) => (typeof fields["runId"] === "string" ? { ...fields, ...traceOf(fields["runId"]) } : fields) }),
      },
      // Connection strings and keys that may ride along in an error.
      redact: { paths: ["*.password", "*.connectionString", "err.config", "err.requestBodyValues", "err.request", "*.apiKey", "headers.authorization"], censor: "[redacted]" },
    },
    typeof stream === "object" ? stream : destination({ dest: stream, sync: true }),
  );
}

/** Lines for people instead of JSON; undefined where pino-pretty is not installed (it is a development dependency). */
export async function prettyStream(fd: number): Promise<DestinationStream | undefined> {
  try {
    const { default: pretty } = await import("pino-pretty");
    return pretty({ destination: fd, sync: true, colorize: process.stderr.isTTY && process.env["NO_COLOR"] === undefined, ignore: "pid,hostname" });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ERR_MODULE_NOT_FOUND") return undefined;
    throw error;
  }
}

export const silentLog: Log = { debug() {}, info() {}, warn() {}, error() {} };
