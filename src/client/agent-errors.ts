/** Errors of those who look at, fork and promote definitions. */
import type { DefinitionIssue } from "../domain/overlay.ts";
import { CapstanError } from "../domain/error.ts";
import type { JsonObject } from "../domain/json.ts";

export class AgentUnknownError extends CapstanError {
  override readonly name = "AgentUnknownError";
  readonly code = "AGENT_UNKNOWN";
  override readonly details: JsonObject;
  constructor(agent: string, known: readonly string[]) {
    const there = known.length === 0 ? "the database knows none yet: a worker that starts brings its own" : `the database knows ${known.join(", ")}`;
    super(`no agent ${JSON.stringify(agent)}; ${there}`);
    this.details = { agent };
  }
}

export class DefinitionUnknownError extends CapstanError {
  override readonly name = "DefinitionUnknownError";
  readonly code = "DEFINITION_UNKNOWN";
  override readonly details: JsonObject;
  /** @param agent whose definition it should be. */
  constructor(sha: string, agent?: string) {
    super(`no definition ${sha}${agent === undefined ? "" : ` of agent ${agent}`}; capstan agents history ${agent ?? "<name>"} lists those there are`);
    this.details = { sha, ...(agent === undefined ? {} : { agent }) };
  }
}

/** The beginning of a sha that several definitions have. */
export class DefinitionAmbiguousError extends CapstanError {
  override readonly name = "DefinitionAmbiguousError";
  readonly code = "DEFINITION_AMBIGUOUS";
  override readonly details: JsonObject;
  constructor(prefix: string, shas: readonly string[]) {
    super(`${prefix} begins several definitions (${shas.join(", ")}); give more of the one that is meant`);
    this.details = { prefix, shas };
  }
}

export class DefinitionInvalidError extends CapstanError {
  override readonly name = "DefinitionInvalidError";
  readonly code = "DEFINITION_INVALID";
  override readonly details: JsonObject;
  readonly issues: readonly DefinitionIssue[];
  constructor(agent: string, issues: readonly DefinitionIssue[]) {
    super(`agent ${agent} cannot be forked so: ${issues.map(({ path, message }) => (path === "" ? message : `${path} ${message}`)).join("; ")}`);
    this.issues = issues;
    this.details = { agent, issues: issues as unknown as JsonObject[] };
  }
}
