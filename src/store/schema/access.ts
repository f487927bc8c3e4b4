/** Who may do what, and who did. */
import { sql } from "drizzle-orm";
import { index, integer, jsonb, primaryKey, text, unique, uuid } from "drizzle-orm/pg-core";
import type { JsonObject } from "../../domain/json.ts";
import { at, big, bytea, capstan } from "./base.ts";

export const apiTokens = capstan.table(
  "api_tokens",
  {
    id: uuid("id").primaryKey(),
    name: text("name").notNull(),
    /** sha256 of the token; the token itself is shown once and not kept. */
    hash: bytea("hash").notNull(),
    tenant: text("tenant").notNull(),
    subject: text("subject"),
    scopes: text("scopes").array().notNull(),
    createdAt: at("created_at")
      .notNull()
      .default(sql`capstan.now()`),
    expiresAt: at("expires_at"),
    revokedAt: at("revoked_at"),
    lastUsedAt: at("last_used_at"),
  },
  (t) => [unique("api_tokens_hash").on(t.hash)],
);

/** What people and tokens did. */
export const auditLog = capstan.table(
  "audit_log",
  {
    id: big("id").primaryKey().generatedAlwaysAsIdentity(),
    at: at("at")
      .notNull()
      .default(sql`capstan.now()`),
    tenant: text("tenant").notNull(),
    actor: text("actor").notNull(),
    tokenId: uuid("token_id"),
    action: text("action").notNull(),
    target: text("target").notNull(),
    detail: jsonb("detail").$type<JsonObject>(),
  },
  (t) => [index("audit_log_tenant").on(t.tenant, t.id)],
);

/**
 * Keys by which a tenant's payloads are encrypted, each wrapped by a master key that is not in the database. Rotation
 * wraps them anew and touches no payload; what a destroyed key had encrypted cannot be read again by anybody.
 */
export const tenantKeys = capstan.table(
  "tenant_keys",
  {
    tenant: text("tenant").notNull(),
    version: integer("version").notNull(),
    /** Null once destroyed. */
    wrapped: bytea("wrapped"),
    /** Which master key wraps it. */
    masterKey: text("master_key").notNull(),
    createdAt: at("created_at")
      .notNull()
      .default(sql`capstan.now()`),
    destroyedAt: at("destroyed_at"),
  },
  (t) => [primaryKey({ columns: [t.tenant, t.version] })],
);

/**
 * Database roles that reach these tenants only (migrations/0010_access.sql). By name, as in a dump: a role that is renamed
 * has to be pinned anew, `capstan doctor` finds pins of roles that are gone.
 */
export const roleTenants = capstan.table(
  "role_tenants",
  {
    role: text("role").notNull(),
    tenant: text("tenant").notNull(),
    createdAt: at("created_at")
      .notNull()
      .default(sql`capstan.now()`),
  },
  (t) => [primaryKey({ columns: [t.role, t.tenant] })],
);
