/** Any thrown value as `code: message` and an exit code. */
import { isConnectionError, sqlState } from "../store/pg-errors.ts";
import { CapstanError } from "../domain/error.ts";
import type { JsonObject } from "../domain/json.ts";
import { CliError, exitCodes } from "./exit.ts";

export interface Failure {
  readonly code: string;
  readonly message: string;
  readonly details: JsonObject;
  readonly exitCode: number;
}

/** invalid_schema_name, undefined_table, undefined_function, undefined_column: this build asks for what is not there yet. */
const behindCodes = new Set(["3F000", "42P01", "42883", "42703"]);

export function failureOf(error: unknown): Failure {
  if (error instanceof CliError) return { code: error.code, message: error.message, details: error.details, exitCode: error.exitCode };
  if (error instanceof CapstanError) {
    const exitCode = error.code === "CONFIG_INVALID" || error.code === "ARGUMENT_INVALID" || error.code === "SCHEDULE_INVALID" ? exitCodes.usage : exitCodes.failed;
    return { code: error.code, message: error.message, details: error.details, exitCode };
  }
  // Embedded Postgres has error classes of its own with the same kind of code.
  const code = (error as { code?: unknown } | undefined)?.code;
  const state = sqlState(error);
  if (state !== undefined && behindCodes.has(state)) {
    return { code: "NOT_MIGRATED", message: `the database lacks what this version needs (${text(error)}); run: capstan migrate`, details: {}, exitCode: exitCodes.notMigrated };
  }
  if (isConnectionError(error) || isConnectionError((error as AggregateError | undefined)?.errors?.[0])) {
    return { code: "DATABASE_UNREACHABLE", message: `${text(error)}; check DATABASE_URL and that the server runs`, details: {}, exitCode: exitCodes.failed };
  }
  if (state !== undefined) return { code: "DATABASE_ERROR", message: `${text(error)} (SQLSTATE ${state})`, details: {}, exitCode: exitCodes.failed };
  if (typeof code === "string" && /^[A-Z][A-Z0-9_]+$/.test(code)) return { code, message: text(error), details: {}, exitCode: exitCodes.failed };
  return { code: "UNEXPECTED", message: `${text(error)} (CAPSTAN_DEBUG=1 shows where)`, details: {}, exitCode: exitCodes.failed };
}

/** A refused connection to a name with two addresses is an AggregateError without a message of its own. */
function text(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  if (error.message !== "") return error.message;
  return error instanceof AggregateError ? error.errors.map((each) => text(each)).join("; ") : error.name;
}
