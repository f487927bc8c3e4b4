/** Large contents. */
import { sql } from "drizzle-orm";
import { index, integer, primaryKey, text, uuid } from "drizzle-orm/pg-core";
import { at, big, bytea, capstan } from "./base.ts";

/** Large contents, per tenant: sharing them across tenants would tell one what another holds. */
export const blobs = capstan.table(
  "blobs",
  {
    tenant: text("tenant").notNull(),
    sha256: text("sha256").notNull(),
    sizeBytes: big("size_bytes").notNull(),
    mediaType: text("media_type").notNull(),
    codec: text("codec"),
    keyId: text("key_id"),
    createdAt: at("created_at")
      .notNull()
      .default(sql`capstan.now()`),
  },
  (t) => [primaryKey({ columns: [t.tenant, t.sha256] })],
);

export const blobChunks = capstan.table(
  "blob_chunks",
  {
    tenant: text("tenant").notNull(),
    sha256: text("sha256").notNull(),
    n: integer("n").notNull(),
    bytes: bytea("bytes").notNull(),
  },
  (t) => [primaryKey({ columns: [t.tenant, t.sha256, t.n] })],
);

export const blobRefs = capstan.table(
  "blob_refs",
  {
    tenant: text("tenant").notNull(),
    sha256: text("sha256").notNull(),
    runId: uuid("run_id").notNull(),
  },
  (t) => [primaryKey({ columns: [t.tenant, t.sha256, t.runId] }), index("blob_refs_run").on(t.runId)],
);
