/** pino, set up once: JSON lines, no payloads, secrets redacted. */
import { destination, pino, type Logger } from "pino";
import type { Log } from "../engine/ports.ts";

export function createLog({ level, stream = process.stderr.fd }: { readonly level: string; readonly stream?: number | string }): Logger {
  return pino(
    {
      level,
      base: { pid: process.pid },
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      // Connection strings and keys that may ride along in an error.
      redact: { paths: ["*.password", "*.connectionString", "err.config", "err.requestBodyValues", "err.request", "*.apiKey", "headers.authorization"], censor: "[redacted]" },
    },
    destination({ dest: stream, sync: true }),
  );
}

export const silentLog: Log = { debug() {}, info() {}, warn() {}, error() {} };
