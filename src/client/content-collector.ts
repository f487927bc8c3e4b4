/** Deletes large contents once nothing refers to them, a few per transaction. */
import type { LooseContent } from "./run-deletion.ts";
import { fromPostgres } from "./errors.ts";
import { queryTx, type Tx } from "./transaction.ts";

export interface ContentCount {
  readonly blobs: number;
  readonly bytes: number;
  /** Somebody stored contents of the same tenant all the while: these are found by the next call. */
  readonly left: number;
}

/** Contents may have 64 MB each: so many rows at most go in one transaction. */
const PER_STATEMENT = 100;
/** Whoever stores a content holds its tenant's lock for a statement, or for as long as a caller's transaction is open. */
const BUSY_TRIES = 20;
const BUSY_PAUSE_MS = 50;

/** Heads without a reference: their last run is gone. */
const LOOSE_HEADS = `select b.tenant, b.sha256 from capstan.blobs b
  where ($1::text is null or b.tenant = $1) and not exists (select from capstan.blob_refs r where r.tenant = b.tenant and r.sha256 = b.sha256) and (b.tenant, b.sha256) > ($2, $3) order by b.tenant, b.sha256 limit ${PER_STATEMENT}`;
/** Parts of a content that was never stored as a whole. Whoever is about to, sees that they are gone and stores them again. */
const LOOSE_PARTS = `select c.tenant, c.sha256 from capstan.blob_chunks c
  where ($1::text is null or c.tenant = $1) and c.n = 0 and not exists (select from capstan.blobs b where b.tenant = c.tenant and b.sha256 = c.sha256) and (c.tenant, c.sha256) > ($2, $3) order by c.tenant, c.sha256 limit ${PER_STATEMENT}`;
/** References of runs that were to be enqueued and never were: ids are UUIDv7, which begin with their time. */
const STALE_REFS = `delete from capstan.blob_refs r
  where ($1::text is null or r.tenant = $1) and not exists (select from capstan.runs x where x.id = r.run_id)
    and ('x' || left(replace(r.run_id::text, '-', ''), 12))::bit(48)::bigint < extract(epoch from capstan.now() - interval '1 day') * 1000`;

export class ContentCollector {
  readonly #db: Tx;
  readonly #named: (text: string) => string;
  #blobs = 0;
  #bytes = 0;
  #left = 0;

  constructor(db: Tx, named: (text: string) => string) {
    this.#db = db;
    this.#named = named;
  }

  get count(): ContentCount {
    return { blobs: this.#blobs, bytes: this.#bytes, left: this.#left };
  }

  /** Those of them that nothing refers to. */
  async collect(loose: readonly LooseContent[]): Promise<void> {
    for (const [tenant, contents] of Map.groupBy(loose, (content) => content.tenant)) {
      for (let i = 0; i < contents.length; i += PER_STATEMENT) {
        await this.#delete(
          tenant,
          contents.slice(i, i + PER_STATEMENT).map(({ sha256 }) => sha256),
        );
      }
    }
  }

  /** Everything that is left without a reference, by whatever way; of one tenant or of all. */
  async sweep(signal?: AbortSignal, tenant?: string): Promise<void> {
    await this.#query(STALE_REFS, [tenant ?? null]);
    for (const find of [LOOSE_HEADS, LOOSE_PARTS]) {
      for (let last = { tenant: "", sha256: "" }; signal?.aborted !== true;) {
        const page: LooseContent[] = await this.#query<LooseContent>(find, [tenant ?? null, last.tenant, last.sha256]);
        await this.collect(page);
        const end = page.at(-1);
        if (end === undefined) break;
        last = end;
      }
    }
  }

  async #delete(tenant: string, sha256s: readonly string[]): Promise<void> {
    for (let attempt = 1; attempt <= BUSY_TRIES; attempt++) {
      const [row] = await this.#query<{ gone: { blobs: number; bytes: number } | null }>("select capstan.delete_blobs($1, $2::text[]) as gone", [tenant, sha256s]);
      if (row !== undefined && row.gone !== null) {
        this.#blobs += row.gone.blobs;
        this.#bytes += row.gone.bytes;
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, BUSY_PAUSE_MS));
    }
    this.#left += sha256s.length;
  }

  async #query<Row extends object>(text: string, values: readonly unknown[]): Promise<Row[]> {
    try {
      return await queryTx<Row & Record<string, unknown>>(this.#db, this.#named(text), values);
    } catch (error) {
      throw fromPostgres(error);
    }
  }
}
