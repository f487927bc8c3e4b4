/** Large contents in chunks, once per tenant and content. */
import { createHash } from "node:crypto";
import type pg from "pg";
import type { BlobStore } from "../engine/ports.ts";

/** One row per chunk: small enough that no statement carries more than a few MB, large enough to keep rows few. */
const CHUNK_BYTES = 1024 * 1024;

export class PostgresBlobStore implements BlobStore {
  readonly #pool: pg.Pool;
  readonly #named: (text: string) => string;

  constructor(pool: pg.Pool, named: (text: string) => string) {
    this.#pool = pool;
    this.#named = named;
  }

  /**
   * Chunks first, the head row last: a blob exists when its head does. Each statement commits alone; a death in
   * between leaves chunks that the next put of the same content completes.
   */
  async put(tenant: string, runId: string, content: Uint8Array, mediaType: string): Promise<{ sha256: string; sizeBytes: number }> {
    const sha256 = createHash("sha256").update(content).digest("hex");
    const sizeBytes = content.byteLength;
    const { rowCount } = await this.#pool.query(this.#named("select 1 from capstan.blobs where tenant = $1 and sha256 = $2"), [tenant, sha256]);
    if (rowCount === 0) {
      for (let n = 0; n * CHUNK_BYTES < sizeBytes || n === 0; n++) {
        const bytes = Buffer.from(content.subarray(n * CHUNK_BYTES, (n + 1) * CHUNK_BYTES));
        await this.#pool.query(this.#named("insert into capstan.blob_chunks (tenant, sha256, n, bytes) values ($1, $2, $3, $4) on conflict do nothing"), [tenant, sha256, n, bytes]);
      }
      await this.#pool.query(this.#named("insert into capstan.blobs (tenant, sha256, size_bytes, media_type) values ($1, $2, $3, $4) on conflict do nothing"), [
        tenant,
        sha256,
        sizeBytes,
        mediaType,
      ]);
    }
    await this.#pool.query(this.#named("insert into capstan.blob_refs (tenant, sha256, run_id) values ($1, $2, $3) on conflict do nothing"), [tenant, sha256, runId]);
    return { sha256, sizeBytes };
  }

  async get(tenant: string, sha256: string): Promise<Uint8Array | undefined> {
    const { rowCount } = await this.#pool.query(this.#named("select 1 from capstan.blobs where tenant = $1 and sha256 = $2"), [tenant, sha256]);
    if (rowCount === 0) return undefined;
    const { rows } = await this.#pool.query<{ bytes: Buffer }>(this.#named("select bytes from capstan.blob_chunks where tenant = $1 and sha256 = $2 order by n"), [tenant, sha256]);
    return Buffer.concat(rows.map((row) => row.bytes));
  }
}
