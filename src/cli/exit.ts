/** How the command line ends: codes that scripts may rely on, and the errors that carry one. */
import { CapstanError } from "../domain/error.ts";

export const exitCodes = {
  ok: 0,
  failed: 1,
  usage: 2,
  notMigrated: 3,
  verifyDiffers: 4,
  runFailed: 5,
} as const;

export const exitCodesHelp = `Exit codes:
  0  done            1  failed (or doctor found an error)
  2  wrong usage     3  the schema is behind: run capstan migrate
  4  verify differs  5  the run failed or was cancelled
  130, 143  stopped by Ctrl-C or SIGTERM`;

/** A command cannot go on; the message says what to do. */
export class CliError extends CapstanError {
  override readonly name = "CliError";
  readonly code: string;
  readonly exitCode: number;
  constructor(code: string, message: string, { exitCode = exitCodes.failed, cause }: { readonly exitCode?: number; readonly cause?: unknown } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.code = code;
    this.exitCode = exitCode;
  }
}

export function usageError(message: string): CliError {
  return new CliError("USAGE", message, { exitCode: exitCodes.usage });
}

/** Ctrl-C, SIGTERM, or a reader such as `head` that has seen enough: unwinds the command so that it leaves nothing behind. */
export class Stopped extends Error {
  readonly exitCode: number;
  constructor(exitCode: number) {
    super("stopped");
    this.exitCode = exitCode;
  }
}
