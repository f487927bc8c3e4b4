/**
 * Who asks, and what they may. With tokens in the database every request needs one. Without any, requests from this machine
 * are taken as its operator's, and from nowhere else: then the API listens on loopback only, and a page in a browser of this
 * machine (another origin, or a name that was made to point here) is refused.
 */
import { isIP } from "node:net";
import type { FastifyRequest } from "fastify";
import { hashOf, tokenScopes, type TokenAccess, type TokenScope, type TokensClient } from "../client/tokens.ts";
import { RequestError } from "./problems.ts";

export interface Access {
  readonly tenant: string;
  readonly scopes: readonly TokenScope[];
  /** As journals and the audit log have it. */
  readonly actor: string;
  /** Runs that are started belong to it. */
  readonly subject?: string;
  readonly tokenId?: string;
  readonly tokenName?: string;
  /** Nobody made tokens yet: whoever asks runs the machine, and is bound to no tenant where no tenant is meant. */
  readonly isOperator: boolean;
}

export interface AuthOptions {
  /** How long a token's answer is believed; 0 asks the database each time. Default 2,000. */
  readonly cacheMs?: number;
}

const OPERATOR: Access = { tenant: "default", scopes: tokenScopes, actor: "api", isOperator: true };
const MAX_KNOWN = 10_000;

interface Known {
  readonly atMs: number;
  readonly access: Promise<TokenAccess | undefined>;
}

export class Authenticator {
  readonly #tokens: TokensClient;
  readonly #cacheMs: number;
  readonly #known = new Map<string, Known>();
  #anyTokens: { readonly atMs: number; readonly any: Promise<boolean> } | undefined;
  #listensBeyond = false;

  constructor(tokens: TokensClient, { cacheMs = 2_000 }: AuthOptions = {}) {
    this.#tokens = tokens;
    this.#cacheMs = cacheMs;
  }

  /** Throws RequestError unless tokens are there, or nobody else can reach the address. */
  async checkHost(host: string): Promise<{ readonly isOpen: boolean }> {
    const any = await this.#tokens.any();
    this.#listensBeyond = !isLoopback(host);
    if (this.#listensBeyond && !any) {
      throw new RequestError("FORBIDDEN", `there are no tokens, so the API listens on 127.0.0.1 only, not on ${host}; make one first: capstan tokens create <name> --scope admin`);
    }
    return { isOpen: !any };
  }

  /** Throws RequestError UNAUTHORIZED, the same whatever is wrong with a token. */
  async authenticate(request: FastifyRequest): Promise<Access> {
    const token = bearerOf(request.headers.authorization);
    if (token !== undefined) {
      const found = await this.#verify(token);
      if (found === undefined) throw new RequestError("UNAUTHORIZED", "the token is not known, has expired or was revoked; get another from whoever runs this API");
      const { id, name, tenant, subject, scopes } = found;
      return { tenant, scopes, actor: `token:${name}`, tokenId: id, tokenName: name, isOperator: false, ...(subject === undefined ? {} : { subject }) };
    }
    if (this.#listensBeyond || (await this.#any())) throw new RequestError("UNAUTHORIZED", "this API needs a token: send it as `authorization: Bearer cap_…`");
    refuseUnlessLocal(request);
    return OPERATOR;
  }

  #verify(token: string): Promise<TokenAccess | undefined> {
    const key = hashOf(token).toString("base64");
    const known = this.#known.get(key);
    if (known !== undefined && performance.now() - known.atMs < this.#cacheMs) return known.access;
    const access = this.#tokens.verify(token);
    this.#known.delete(key);
    this.#known.set(key, { atMs: performance.now(), access });
    if (this.#known.size > MAX_KNOWN) this.#known.delete(this.#known.keys().next().value as string);
    // What could not be asked is asked again by the next request.
    access.catch(() => this.#known.delete(key));
    return access;
  }

  /** Once there was one, there always was. */
  async #any(): Promise<boolean> {
    const asked = this.#anyTokens;
    if (asked !== undefined && (performance.now() - asked.atMs < this.#cacheMs || (await asked.any))) return await asked.any;
    const any = this.#tokens.any();
    this.#anyTokens = { atMs: performance.now(), any };
    any.catch(() => (this.#anyTokens = undefined));
    return await any;
  }
}

export function isLoopback(host: string): boolean {
  if (host === "localhost") return true;
  if (isIP(host) === 4) return host.startsWith("127.");
  return host === "::1" || /^::ffff:127\./i.test(host);
}

function bearerOf(header: string | undefined): string | undefined {
  if (header === undefined) return undefined;
  return /^bearer +([^ ]+) *$/i.exec(header)?.[1] ?? "";
}

/** A proxy on this machine would make everybody local; a page in a browser would act for whoever looks at it. */
function refuseUnlessLocal({ ip, headers }: FastifyRequest): void {
  const why = !isLoopback(ip)
    ? "requests from elsewhere need a token"
    : headers["forwarded"] !== undefined || headers["x-forwarded-for"] !== undefined
      ? "requests that come through a proxy need a token"
      : !isLocalName(headers.host)
        ? "without a token the API is reached as localhost or 127.0.0.1 only"
        : headers.origin !== undefined && !isLocalOrigin(headers.origin, headers.host)
          ? "pages of another origin need a token"
          : undefined;
  if (why !== undefined) throw new RequestError("FORBIDDEN", `${why}: capstan tokens create makes one`);
}

function isLocalName(host: string | undefined): boolean {
  const name = (host ?? "").replace(/:\d+$/, "").replace(/^\[(.*)\]$/, "$1");
  return isLoopback(name);
}

function isLocalOrigin(origin: string, host: string | undefined): boolean {
  return URL.canParse(origin) && new URL(origin).host === host;
}
