/** Who did what: written beside the act, never changed (migrations/0008_webhooks.sql), read and exported here. */
import { CapstanError } from "../domain/error.ts";
import type { JsonObject } from "../domain/json.ts";
import { ArgumentError, fromPostgres } from "./errors.ts";
import { queryTx, type Tx } from "./transaction.ts";

export interface AuditEntry {
  readonly tenant: string;
  /** A person's or a service's name. */
  readonly actor: string;
  /** The token that it was done with. */
  readonly tokenId?: string | undefined;
  /** `<what>.<deed>`: `run.cancel`, `quota.set`, `transcript.read`. */
  readonly action: string;
  /** Id or name of what it was done to. */
  readonly target: string;
  readonly detail?: JsonObject | undefined;
}

export interface AuditView {
  /** Grows with each entry: where the next page begins. */
  readonly id: number;
  readonly at: string;
  readonly tenant: string;
  readonly actor: string;
  readonly token_id?: string;
  readonly action: string;
  readonly target: string;
  readonly detail?: JsonObject;
}

export interface AuditFilter {
  readonly tenant?: string;
  readonly actor?: string;
  /** Exact, or with a final `*`: `run.*`. */
  readonly action?: string;
  readonly target?: string;
  readonly since?: Date;
  readonly until?: Date;
}

export interface AuditPageOptions extends AuditFilter {
  /** Entries older than this id: the last page's `next_before`. */
  readonly before?: number;
  /** 1 to 1,000; default 100. */
  readonly limit?: number;
}

export interface AuditPage {
  /** Newest first. */
  readonly items: readonly AuditView[];
  /** Absent on the last page. */
  readonly next_before?: number;
}

const INSERT = "insert into capstan.audit_log (tenant, actor, token_id, action, target, detail) values ($1, $2, $3::uuid, $4, $5, $6::jsonb)";
const COLUMNS = "a.id::float8 as id, to_jsonb(a.at) #>> '{}' as at, a.tenant, a.actor, a.token_id, a.action, a.target, a.detail";
const MATCH = `($1::text is null or a.tenant = $1) and ($2::text is null or a.actor = $2) and ($3::text is null or case when right($3, 1) = '*' then starts_with(a.action, left($3, -1)) else a.action = $3 end)
  and ($4::text is null or a.target = $4) and ($5::timestamptz is null or a.at >= $5) and ($6::timestamptz is null or a.at < $6)`;
const MAX_PAGE = 1_000;
const NEWEST = "select coalesce(max(a.id), 0)::float8 as id from capstan.audit_log a";
/** Whoever writes an entry has this lock before the entry has its id, and until its transaction ends. */
const WRITERS = `select distinct l.virtualtransaction as id from pg_locks l
  where l.locktype = 'relation' and l.relation = 'capstan.audit_log'::regclass and l.database = (select d.oid from pg_database d where d.datname = current_database())
    and l.mode = 'RowExclusiveLock' and l.granted and l.pid <> pg_backend_pid() and ($1::text[] is null or l.virtualtransaction = any($1))`;
/** Longer than transactions that write entries are open; one that is will end, and the export is asked for again. */
const WRITERS_TIMEOUT_MS = 30_000;
const WRITERS_PAUSE_MS = 50;

/** A transaction that may hold an entry has been open for long: an export now could miss that entry for ever. */
export class AuditBusyError extends CapstanError {
  override readonly name = "AuditBusyError";
  readonly code = "AUDIT_BUSY";
  override readonly retryable = true;
}

/** In the caller's transaction, if `db` is one: the entry is there exactly if the act is. */
export async function recordAudit(db: Tx, named: (text: string) => string, { tenant, actor, tokenId, action, target, detail }: AuditEntry): Promise<void> {
  await queryTx(db, named(INSERT), [tenant, actor, tokenId ?? null, action, target, detail === undefined ? null : JSON.stringify(detail)]);
}

export class AuditClient {
  readonly #db: Tx;
  readonly #named: (text: string) => string;

  constructor(db: Tx, named: (text: string) => string) {
    this.#db = db;
    this.#named = named;
  }

  record(entry: AuditEntry, { tx }: { readonly tx?: Tx } = {}): Promise<void> {
    return recordAudit(tx ?? this.#db, this.#named, entry);
  }

  /** Throws ArgumentError. */
  async list({ before, limit = 100, ...filter }: AuditPageOptions = {}): Promise<AuditPage> {
    if (!Number.isInteger(limit) || limit < 1 || limit > MAX_PAGE) throw new ArgumentError(`limit must be a whole number from 1 to ${MAX_PAGE}`);
    if (before !== undefined && !Number.isSafeInteger(before)) throw new ArgumentError("before must be the id of an entry");
    const rows = await this.#query(`select ${COLUMNS} from capstan.audit_log a where ${MATCH} and ($7::bigint is null or a.id < $7) order by a.id desc limit $8`, [
      ...valuesOf(filter),
      before ?? null,
      limit + 1,
    ]);
    const items = rows.slice(0, limit);
    const last = items.at(-1);
    return { items, ...(rows.length > limit && last !== undefined ? { next_before: last.id } : {}) };
  }

  /**
   * All that match, oldest first, read page by page; from behind entry `after`, so that the next export goes on where this
   * one ended and misses nothing: transactions that may hold an entry with a smaller id are waited for first. Throws
   * AuditBusyError.
   */
  async *export({ after = 0, ...filter }: AuditFilter & { readonly after?: number } = {}): AsyncGenerator<AuditView> {
    const upTo = await this.#settled();
    for (let last = after; ;) {
      const rows = await this.#query(`select ${COLUMNS} from capstan.audit_log a where ${MATCH} and a.id > $7::bigint and a.id <= $8::bigint order by a.id limit $9`, [
        ...valuesOf(filter),
        last,
        upTo,
        MAX_PAGE,
      ]);
      yield* rows;
      if (rows.length < MAX_PAGE) return;
      last = rows.at(-1)?.id ?? last;
    }
  }

  /** The newest id below which nothing is still to be committed. */
  async #settled(): Promise<number> {
    const newest = await this.#rows<{ id: number }>(NEWEST, []);
    let writers: readonly string[] | null = null;
    for (const startedMs = performance.now(); ;) {
      const rows: { id: string }[] = await this.#rows<{ id: string }>(WRITERS, [writers]);
      if (rows.length === 0) return newest[0]?.id ?? 0;
      writers = rows.map(({ id }) => id);
      if (performance.now() - startedMs > WRITERS_TIMEOUT_MS)
        throw new AuditBusyError(`a transaction that writes to the audit log has been open for more than ${WRITERS_TIMEOUT_MS / 1_000} s; export again when it has ended`);
      await new Promise((resolve) => setTimeout(resolve, WRITERS_PAUSE_MS));
    }
  }

  async #rows<Row extends object>(text: string, values: readonly unknown[]): Promise<Row[]> {
    try {
      return await queryTx<Row & Record<string, unknown>>(this.#db, this.#named(text), values);
    } catch (error) {
      throw fromPostgres(error);
    }
  }

  async #query(text: string, values: readonly unknown[]): Promise<AuditView[]> {
    const rows = await this.#rows<{ [Field in keyof Required<AuditView>]: AuditView[Field] | null }>(text, values);
    return rows.map((row) => Object.fromEntries(Object.entries(row).filter(([, value]) => value !== null)) as unknown as AuditView);
  }
}

function valuesOf({ tenant, actor, action, target, since, until }: AuditFilter): unknown[] {
  return [tenant ?? null, actor ?? null, action ?? null, target ?? null, since?.toISOString() ?? null, until?.toISOString() ?? null];
}
