/** Large contents in chunks, once per tenant and content. */
import { createHash } from "node:crypto";
import type pg from "pg";
import type { BlobPage, BlobStore } from "../engine/ports.ts";
import { untilConnected, type Outage } from "./until-connected.ts";

/** One row per chunk: small enough that no statement carries more than a few MB, large enough to keep rows few. */
const CHUNK_BYTES = 1024 * 1024;

export interface BlobContent {
  readonly tenant: string;
  readonly runId: string;
  readonly content: Uint8Array;
  readonly mediaType: string;
}

type Query = (text: string, values: unknown[]) => Promise<unknown>;

/** Stores once per tenant and content, and notes which run refers to it. Chunks first, the head row last: a blob exists when its head does. */
export async function putBlob(query: Query, { tenant, runId, content, mediaType }: BlobContent): Promise<{ sha256: string; sizeBytes: number }> {
  const sha256 = createHash("sha256").update(content).digest("hex");
  const sizeBytes = content.byteLength;
  for (let n = 0; n * CHUNK_BYTES < sizeBytes || n === 0; n++) {
    const bytes = Buffer.from(content.subarray(n * CHUNK_BYTES, (n + 1) * CHUNK_BYTES));
    // A blob that is there already is not sent again; its chunks are complete by the order of writing.
    await query(
      `insert into capstan.blob_chunks (tenant, sha256, n, bytes) select $1, $2, $3, $4::bytea
       where not exists (select from capstan.blobs where tenant = $1 and sha256 = $2) on conflict do nothing`,
      [tenant, sha256, n, bytes],
    );
  }
  await query("insert into capstan.blobs (tenant, sha256, size_bytes, media_type) values ($1, $2, $3, $4) on conflict do nothing", [tenant, sha256, sizeBytes, mediaType]);
  await query("insert into capstan.blob_refs (tenant, sha256, run_id) values ($1, $2, $3) on conflict do nothing", [tenant, sha256, runId]);
  return { sha256, sizeBytes };
}

export class PostgresBlobStore implements BlobStore {
  readonly #pool: pg.Pool;
  readonly #named: (text: string) => string;
  readonly #outage: Outage;

  constructor(pool: pg.Pool, named: (text: string) => string, outage: Outage) {
    this.#pool = pool;
    this.#outage = outage;
    this.#named = named;
  }

  /**
   * Each statement commits alone; a death in between leaves chunks that the next put of the same content completes.
   * Waits for a database that is away: what is put is a tool's result, and the tool cannot be asked again.
   */
  put(tenant: string, runId: string, content: Uint8Array, mediaType: string): Promise<{ sha256: string; sizeBytes: number }> {
    return untilConnected(this.#outage, "storing a blob", () => putBlob((text, values) => this.#pool.query(this.#named(text), values), { tenant, runId, content, mediaType }));
  }

  async get(tenant: string, sha256: string): Promise<Uint8Array | undefined> {
    const { rowCount } = await this.#pool.query(this.#named("select 1 from capstan.blobs where tenant = $1 and sha256 = $2"), [tenant, sha256]);
    if (rowCount === 0) return undefined;
    const { rows } = await this.#pool.query<{ bytes: Buffer }>(this.#named("select bytes from capstan.blob_chunks where tenant = $1 and sha256 = $2 order by n"), [tenant, sha256]);
    return Buffer.concat(rows.map((row) => row.bytes));
  }

  /** Cut in the database: of a blob of 64 MB a page is some KB. */
  async page({ tenant, runId, sha256 }: Parameters<BlobStore["page"]>[0], from: number, limit: number): Promise<BlobPage | undefined> {
    const { rows } = await this.#pool.query<{ size_bytes: string; media_type: string; bytes: Buffer | null }>(
      this.#named(`
        select b.size_bytes::text as size_bytes, b.media_type, p.bytes
        from capstan.blob_refs r
        join capstan.blobs b on b.tenant = r.tenant and b.sha256 = r.sha256
        cross join lateral (
          select string_agg(substring(c.bytes from greatest($4::int - c.n * ${CHUNK_BYTES}, 0) + 1
                                              for least($4::int + $5::int - c.n * ${CHUNK_BYTES}, ${CHUNK_BYTES}) - greatest($4::int - c.n * ${CHUNK_BYTES}, 0)), ''::bytea order by c.n) as bytes
          from capstan.blob_chunks c
          where c.tenant = r.tenant and c.sha256 = r.sha256 and c.n between $4::int / ${CHUNK_BYTES} and ($4::int + $5::int - 1) / ${CHUNK_BYTES}
        ) p
        where r.tenant = $1 and r.sha256 = $2 and r.run_id = $3`),
      [tenant, sha256, runId, from, limit],
    );
    const row = rows[0];
    return row && { sizeBytes: Number(row.size_bytes), mediaType: row.media_type, bytes: row.bytes ?? new Uint8Array() };
  }
}
