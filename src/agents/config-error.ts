import { CapstanError } from "../domain/error.ts";
import type { JsonObject } from "../domain/json.ts";

export interface ConfigIssue {
  /** The field as its author writes it, e.g. `limits.maxTurns`, `compaction.keep_last_n`. */
  readonly path: string;
  readonly message: string;
}

/** An agent, tool or setting is misconfigured. The message names the field, what it is and what it may be. */
export class ConfigError extends CapstanError {
  override readonly name = "ConfigError";
  readonly code = "CONFIG_INVALID";
  override readonly details: JsonObject;
  constructor(where: string, issues: readonly ConfigIssue[]) {
    super(`${where}: ${issues.map(({ path, message }) => (path === "" ? message : `${path} ${message}`)).join("; ")}`);
    this.details = { where, issues: issues as unknown as JsonObject[] };
  }
}
