/** What a token allows, looked up at each request, so that revoking one counts at once. */
import type { TokensClient } from "../../client/tokens.ts";
import { CapstanError } from "../../domain/error.ts";
import type { McpAccess } from "./access.ts";

class UnauthorizedError extends CapstanError {
  override readonly name = "UnauthorizedError";
  readonly code = "UNAUTHORIZED";
}

/** Throws UnauthorizedError, the same whatever is wrong with the token. */
export function tokenAccess(tokens: TokensClient, token: string): () => Promise<McpAccess> {
  return async () => {
    const found = await tokens.verify(token);
    if (found === undefined) throw new UnauthorizedError("the token is not known, has expired or was revoked; get another from whoever runs Capstan");
    const { id, name, tenant, subject, scopes } = found;
    return { tenant, scopes, actor: `token:${name}`, tokenId: id, ...(subject === undefined ? {} : { subject }) };
  };
}
