/**
 * Tokens of the HTTP API. The token itself is shown once and kept nowhere: what is stored is its sha256, which is enough
 * because it holds 256 random bits and nobody can guess at it.
 */
import { createHash, randomBytes, timingSafeEqual } from "node:crypto";
import { recordAudit } from "./audit.ts";
import { ArgumentError, fromPostgres, TokenExistsError, TokenUnknownError } from "./errors.ts";
import { queryTx, type Tx } from "./transaction.ts";

/** `admin` is all of them, and what else an operator of the tenant does: tokens, quotas, pauses, webhooks, the audit log. */
export const tokenScopes = ["runs:create", "runs:read", "runs:steer", "approvals:decide", "agents:write", "admin"] as const;
export type TokenScope = (typeof tokenScopes)[number];

export interface CreateTokenOptions {
  /** Stands in journals and in the audit log for whoever uses the token. */
  readonly name: string;
  readonly scopes: readonly TokenScope[];
  /** Default `default`. */
  readonly tenant?: string;
  /** Runs that are started with it belong to this subject, and to no other. */
  readonly subject?: string;
  /** Default: never. */
  readonly expiresAt?: Date;
  readonly actor?: string;
  /** The token that this one was made with. */
  readonly byToken?: string;
}

export interface TokenView {
  readonly id: string;
  readonly name: string;
  readonly tenant: string;
  readonly subject?: string;
  readonly scopes: readonly TokenScope[];
  readonly created_at: string;
  readonly expires_at?: string;
  readonly revoked_at?: string;
  /** To the minute. */
  readonly last_used_at?: string;
  readonly state: "active" | "expired" | "revoked";
}

export type CreatedToken = TokenView & {
  /** Shown this once. */
  readonly token: string;
};

export interface TokenAccess {
  readonly id: string;
  readonly name: string;
  readonly tenant: string;
  readonly subject: string | undefined;
  readonly scopes: readonly TokenScope[];
}

/** With a prefix, so that scanners of repositories and logs know one when they see it. */
const PREFIX = "cap_";
const TOKEN = /^cap_[A-Za-z0-9_-]{43}$/;
const TIME = (column: string): string => `to_jsonb(t.${column}) #>> '{}' as ${column}`;
const VIEW = `t.id, t.name, t.tenant, t.subject, t.scopes, ${TIME("created_at")}, ${TIME("expires_at")}, ${TIME("revoked_at")}, ${TIME("last_used_at")},
  case when t.revoked_at is not null then 'revoked' when t.expires_at <= capstan.now() then 'expired' else 'active' end as state`;

/** Names of tokens that are in use are unique in a tenant: they say in journals who did something. */
const CREATE = `insert into capstan.api_tokens as t (id, name, hash, tenant, subject, scopes, expires_at)
  select capstan.uuid_v7(), $1, $2, $3, $4, $5::text[], $6::timestamptz
  where not exists (select from capstan.api_tokens o where o.tenant = $3 and o.name = $1 and o.revoked_at is null and (o.expires_at is null or o.expires_at > capstan.now()))
  returning ${VIEW}`;

/** When it was last used is kept to the minute: a write for every request would cost more than the request. */
const VERIFY = `with used as (
    update capstan.api_tokens t set last_used_at = capstan.now() where t.hash = $1 and t.revoked_at is null and (t.expires_at is null or t.expires_at > capstan.now())
      and (t.last_used_at is null or t.last_used_at < capstan.now() - interval '1 minute')
  )
  select t.id, t.name, t.tenant, t.subject, t.scopes, t.hash from capstan.api_tokens t
  where t.hash = $1 and t.revoked_at is null and (t.expires_at is null or t.expires_at > capstan.now())`;

type RawToken = { readonly [F in keyof Required<TokenView>]: Required<TokenView>[F] | null };

export class TokensClient {
  readonly #db: Tx;
  readonly #named: (text: string) => string;

  constructor(db: Tx, named: (text: string) => string) {
    this.#db = db;
    this.#named = named;
  }

  /** Throws ArgumentError, TokenExistsError. */
  async create({ name, scopes, tenant = "default", subject, expiresAt, actor, byToken }: CreateTokenOptions): Promise<CreatedToken> {
    for (const [field, text] of Object.entries({ name, tenant, subject })) {
      if (text !== undefined && (text.length < 1 || text.length > 200)) throw new ArgumentError(`${field} must have 1 to 200 characters`);
    }
    const strange = scopes.filter((scope) => !tokenScopes.includes(scope));
    if (strange.length > 0 || scopes.length === 0) throw new ArgumentError(`scopes: ${strange.join(", ") || "none"}; there are ${tokenScopes.join(", ")}`);
    if (expiresAt !== undefined && Number.isNaN(expiresAt.getTime())) throw new ArgumentError("expiresAt is no point in time");
    const token = `${PREFIX}${randomBytes(32).toString("base64url")}`;
    const [row] = await this.#query<RawToken>(CREATE, [name, hashOf(token), tenant, subject ?? null, [...new Set(scopes)], expiresAt?.toISOString() ?? null]);
    if (row === undefined) throw new TokenExistsError(`tenant ${tenant} has a token ${name} in use: revoke it, or take another name`);
    const view = toView(row);
    if (view.state === "expired") throw new ArgumentError("expiresAt is in the past");
    await recordAudit(this.#db, this.#named, {
      tenant,
      actor: actor ?? "client",
      tokenId: byToken,
      action: "token.create",
      target: view.id,
      detail: { name, scopes: view.scopes },
    });
    return { ...view, token };
  }

  /** Newest first; all tenants' unless one is given. */
  async list({ tenant }: { readonly tenant?: string } = {}): Promise<TokenView[]> {
    const rows = await this.#query<RawToken>(`select ${VIEW} from capstan.api_tokens t where $1::text is null or t.tenant = $1 order by t.id desc limit 1000`, [tenant ?? null]);
    return rows.map(toView);
  }

  /** From then on it opens nothing; streams that it has open end within seconds. False when it was revoked already. Throws TokenUnknownError. */
  async revoke(id: string, { tenant, actor, byToken }: { readonly tenant?: string; readonly actor?: string; readonly byToken?: string } = {}): Promise<boolean> {
    const where = "t.id = $1::uuid and ($2::text is null or t.tenant = $2)";
    const [row] = await this.#query<{ tenant: string; name: string }>(
      `update capstan.api_tokens t set revoked_at = capstan.now() where ${where} and t.revoked_at is null returning t.tenant, t.name`,
      [id, tenant ?? null],
    );
    if (row === undefined) {
      const known = await this.#query(`select 1 from capstan.api_tokens t where ${where}`, [id, tenant ?? null]);
      if (known.length === 0) throw new TokenUnknownError(`no token ${id}`);
      return false;
    }
    await recordAudit(this.#db, this.#named, { tenant: row.tenant, actor: actor ?? "client", tokenId: byToken, action: "token.revoke", target: id, detail: { name: row.name } });
    return true;
  }

  /** What a token allows; undefined for one that is unknown, expired or revoked, whichever it is. */
  async verify(token: string): Promise<TokenAccess | undefined> {
    if (!TOKEN.test(token)) return undefined;
    const hash = hashOf(token);
    const [row] = await this.#query<{ id: string; name: string; tenant: string; subject: string | null; scopes: TokenScope[]; hash: Buffer }>(VERIFY, [hash]);
    // Found by its hash, which tells a caller nothing of other tokens; compared once more in a time that does not depend on it.
    if (row === undefined || !timingSafeEqual(row.hash, hash)) return undefined;
    return { id: row.id, name: row.name, tenant: row.tenant, subject: row.subject ?? undefined, scopes: row.scopes };
  }

  /** Whether a token was ever made, also one that is revoked or expired by now. */
  async any(): Promise<boolean> {
    const [row] = await this.#query<{ any: boolean }>("select exists (select from capstan.api_tokens) as any", []);
    return row?.any === true;
  }

  async #query<Row extends object>(text: string, values: readonly unknown[]): Promise<Row[]> {
    try {
      return await queryTx<Row & Record<string, unknown>>(this.#db, this.#named(text), values);
    } catch (error) {
      throw fromPostgres(error);
    }
  }
}

export function hashOf(token: string): Buffer {
  return createHash("sha256").update(token).digest();
}

function toView(row: RawToken): TokenView {
  return Object.fromEntries(Object.entries(row).filter(([, value]) => value !== null)) as unknown as TokenView;
}
