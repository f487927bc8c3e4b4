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

const quieterThanWarn = new Set(["error", "fatal", "silent"]);

/** For an application that gives no log of its own: problems only, a line for people each, on standard error. */
export function problemLog(level: string): Log {
  return createLog({ level: quieterThanWarn.has(level) ? level : "warn", stream: { write: (line) => void process.stderr.write(`${problemLine(line)}\n`) } });
}

/** From the JSON line, which has been redacted. What it holds stays JSON: it may come from outside, and must neither break the line nor steer a terminal. */
function problemLine(json: string): string {
  const {
    level,
    msg,
    time: _time,
    pid: _pid,
    err,
    ...fields
  } = JSON.parse(json) as { level: string; msg: string; err?: { message?: unknown } | string | null; [field: string]: unknown };
  const facts = { ...fields, ...(err === undefined ? {} : { error: (typeof err === "string" ? err : err?.message) ?? err }) };
  return `capstan ${level}: ${msg}${Object.keys(facts).length === 0 ? "" : ` ${JSON.stringify(facts)}`}`;
}

export const silentLog: Log = { debug() {}, info() {}, warn() {}, error() {} };
