/** Large contents in chunks, once per tenant and content. */
import { createHash } from "node:crypto";
import type pg from "pg";
import type { QueryResultRow } from "pg";
import { RunMissingError } from "../domain/append-error.ts";
import type { BlobPage, BlobStore } from "../engine/ports.ts";
import { untilConnected, type Outage } from "./until-connected.ts";

/** One row per chunk: small enough that no statement carries more than a few MB, large enough to keep rows few. */
const CHUNK_BYTES = 1024 * 1024;

export interface BlobContent {
  readonly tenant: string;
  readonly runId: string;
  readonly content: Uint8Array;
  readonly mediaType: string;
  /** `unborn`: the reference may come before its run does. Default. */
  readonly run?: "there" | "unborn";
}

type Query = <Row extends QueryResultRow>(text: string, values: unknown[]) => Promise<readonly Row[]>;

/** With a hash of the tenant: shared by all who store a content until its reference is committed, taken alone by capstan.delete_blobs. */
const BLOB_LOCK = 1667330146;
/** Each try but the first meets a deletion of the same content at the same moment. */
const MOST_TRIES = 5;

/**
 * Stores once per tenant and content, and notes which run refers to it. Chunks first, head and reference last, in one
 * statement: a blob exists when its head does, and no head is without a reference unless the last one was deleted. Whether
 * chunks that were there before are there still is asked behind that: from then on nobody deletes them. `run` is `there`:
 * nothing is stored for a run that has been deleted; RunMissingError then.
 */
export async function putBlob(query: Query, { tenant, runId, content, mediaType, run = "unborn" }: BlobContent): Promise<{ sha256: string; sizeBytes: number }> {
  const sha256 = createHash("sha256").update(content).digest("hex");
  const sizeBytes = content.byteLength;
  const parts = Math.max(1, Math.ceil(sizeBytes / CHUNK_BYTES));
  const [from, also] = run === "there" ? [", (select from capstan.runs r where r.id = $4 for key share) there", [runId]] : ["", []];
  for (let attempt = 1; attempt <= MOST_TRIES; attempt++) {
    for (let n = 0; n < parts; n++) {
      const bytes = Buffer.from(content.subarray(n * CHUNK_BYTES, (n + 1) * CHUNK_BYTES));
      // A blob that is there already is not sent again; its chunks are complete by the order of writing.
      await query(
        `insert into capstan.blob_chunks (tenant, sha256, n, bytes) select $1, $2, $3::int, c.bytes from (select $${4 + also.length}::bytea as bytes) c${from}
         where ${attempt > 1 ? "true" : "not exists (select from capstan.blobs where tenant = $1 and sha256 = $2)"} on conflict do nothing`,
        [tenant, sha256, n, ...also, bytes],
      );
    }
    const kept = await query(
      `with held as materialized (select pg_advisory_xact_lock_shared(${BLOB_LOCK}, hashtext($1)) ${run === "there" ? "from capstan.runs r where r.id = $3 for key share" : ""}),
       head as (insert into capstan.blobs (tenant, sha256, size_bytes, media_type) select $1, $2, $4::bigint, $5 from held on conflict do nothing),
       ref as (insert into capstan.blob_refs (tenant, sha256, run_id) select $1, $2, $3::uuid from held on conflict do nothing)
       select from held`,
      [tenant, sha256, runId, sizeBytes, mediaType],
    );
    if (kept.length === 0) throw new RunMissingError(runId);
    const [there] = await query<{ n: number }>("select count(*)::int as n from capstan.blob_chunks where tenant = $1 and sha256 = $2", [tenant, sha256]);
    if (there?.n === parts) return { sha256, sizeBytes };
  }
  throw new Error(`blob ${sha256} of tenant ${tenant} is deleted as often as it is stored`);
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
    return untilConnected(this.#outage, "storing a blob", () =>
      putBlob(async (text, values) => (await this.#pool.query(this.#named(text), values)).rows, { tenant, runId, content, mediaType, run: "there" }),
    );
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
