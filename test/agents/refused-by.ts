import { ConfigError } from "../../src/agents/config-error.ts";

/** The message of the ConfigError that `define` throws. Another error, or none, fails the test. */
export function refusedBy(define: () => unknown): string {
  try {
    define();
  } catch (error) {
    if (error instanceof ConfigError) return error.message;
    throw error;
  }
  throw new Error("was not refused");
}
