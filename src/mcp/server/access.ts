/** On whose behalf an assistant acts, and what it may. */
import { CapstanError } from "../../domain/error.ts";

export type McpScope = "runs:create" | "runs:read" | "runs:steer" | "approvals:decide";

export interface McpAccess {
  readonly tenant: string;
  /** Set on runs that are started. */
  readonly subject?: string;
  /** `admin` is all of them; "all" is what a process has that reached the database by itself. */
  readonly scopes: "all" | readonly string[];
  /** As journals have it. */
  readonly actor: string;
  readonly tokenId?: string;
}

export class ForbiddenError extends CapstanError {
  override readonly name = "ForbiddenError";
  readonly code = "FORBIDDEN";
}

export function mayUse({ scopes }: McpAccess, scope: McpScope): boolean {
  return scopes === "all" || scopes.includes(scope) || scopes.includes("admin");
}
