/**
 * Everything of one tenant, or of one subject, goes on demand. Nothing new first (schedules, tokens, webhooks), then runs:
 * those at work are cancelled, then deleted in bounded batches; then what is left beside them. Each step may be repeated:
 * killed at any point and started again it does the rest.
 */
import { createHash } from "node:crypto";
import { ContentCollector, type ContentCount } from "./content-collector.ts";
import { eraseCounts, eraseStatements, heldRuns } from "./erasure-sql.ts";
import { ArgumentError, fromPostgres, UnknownRunError } from "./errors.ts";
import { addTables, deleteRuns, type TableCount } from "./run-deletion.ts";
import { queryTx, type Tx } from "./transaction.ts";

export interface ErasureScope {
  readonly tenant: string;
  /** Left out: the whole tenant. */
  readonly subject?: string;
}

export interface ErasureOptions {
  /** Only says what there is. */
  readonly dryRun?: boolean;
  readonly actor?: string;
  /** Runs in one transaction; 1 to 1,000, default 100. */
  readonly batch?: number;
  readonly onProgress?: (deleted: number) => void;
  /** No batch more is begun once it has fired. */
  readonly signal?: AbortSignal;
}

export interface Remains {
  readonly what: string;
  readonly rows: number;
  readonly why: string;
}

export interface ErasureReport extends ErasureScope {
  readonly dry_run: boolean;
  readonly cancelled: number;
  /** Rows that went (dry run: that there are), and their bytes. */
  readonly tables: Readonly<Record<string, TableCount>>;
  readonly content: ContentCount;
  readonly remains: readonly Remains[];
  /** Nothing of it is left but what the audit log keeps. */
  readonly complete: boolean;
}

const DEFAULT_BATCH = 100;
/** What is enqueued meanwhile, or was in somebody's hands, goes in the next round. */
const MOST_ROUNDS = 10;
const ROUND_PAUSE_MS = 300;

const WHY: Readonly<Record<string, string>> = {
  hold: "they are held; release them first",
  referenced: "a run that stays begins with them",
  not_ended: "they have begun since; stop whoever enqueues and erase again",
  locked: "somebody held them all the while; erase again",
};

const MINE = "r.tenant = $1 and ($2::text is null or r.subject = $2)";

export class ErasureClient {
  readonly #db: Tx;
  readonly #named: (text: string) => string;

  constructor(db: Tx, named: (text: string) => string) {
    this.#db = db;
    this.#named = named;
  }

  async erase({ tenant, subject }: ErasureScope, { dryRun = false, actor, batch = DEFAULT_BATCH, onProgress, signal }: ErasureOptions = {}): Promise<ErasureReport> {
    if (tenant === "" || subject === "") throw new ArgumentError("tenant and subject are not empty");
    if (!Number.isInteger(batch) || batch < 1 || batch > 1_000) throw new ArgumentError(`batch is a whole number from 1 to 1000, not ${batch}`);
    const scope: Scope = [tenant, subject ?? null];
    const named = { tenant, ...(subject === undefined ? {} : { subject }) };
    const collector = new ContentCollector(this.#db, this.#named);
    if (dryRun) {
      const tables = await this.#counts(scope);
      return { ...named, dry_run: true, cancelled: 0, tables, content: collector.count, remains: await this.#remains(scope, {}), complete: false };
    }
    const tables: Record<string, TableCount> = {};
    await this.#statements("before", scope, tables);
    const { cancelled, kept } = await this.#runs(scope, { actor, batch, onProgress, signal, tables });
    const remains = await this.#remains(scope, kept);
    const isWhole = remains.length === 0 && signal?.aborted !== true;
    await this.#statements("after", scope, tables);
    // What makes the rest readable, and references of runs that never were, go when there is no rest.
    if (isWhole) await this.#statements("last", scope, tables);
    await collector.sweep(signal, tenant);
    await this.#query("select capstan.strip_audit($1, $2)", [tenant, subject !== undefined]);
    if (Object.values(tables).some(({ rows }) => rows > 0) || collector.count.blobs > 0) await this.#audit(scope, actor, tables);
    const content = collector.count;
    const left = [...remains, ...contentLeft(content), ...(await this.#keptOnPurpose(scope))];
    return { ...named, dry_run: false, cancelled, tables, content, remains: left, complete: isWhole && content.left === 0 };
  }

  async #runs(scope: Scope, { actor, batch, onProgress, signal, tables }: RunErasure): Promise<{ cancelled: number; kept: Readonly<Record<string, string>> }> {
    let cancelled = 0;
    let deleted = 0;
    let kept: Record<string, string> = {};
    const isStopped = (): boolean => signal?.aborted === true;
    for (let round = 1; round <= MOST_ROUNDS && !isStopped(); round++) {
      cancelled += await this.#cancel(scope, batch, actor, isStopped);
      kept = {};
      let went = 0;
      for (let last: string | null = null; !isStopped();) {
        const ids: string[] = await this.#ids(`${MINE} and ($3::uuid is null or r.id < $3) order by r.id desc limit $4`, [...scope, last, batch]);
        if (ids.length === 0) break;
        last = ids.at(-1) ?? null;
        const done = await deleteRuns(this.#db, this.#named, { ids, erasing: true });
        went += done.deleted.length;
        deleted += done.deleted.length;
        Object.assign(kept, done.kept);
        addTables(tables, done.tables);
        onProgress?.(deleted);
      }
      const reasons = new Set(Object.values(kept));
      const isUnsettled = reasons.has("locked") || reasons.has("not_ended") || (await this.#hasNew(scope, kept));
      // A run may have stayed for one that went later in the same round.
      if (!isUnsettled && !(went > 0 && reasons.has("referenced"))) break;
      if (isUnsettled && round < MOST_ROUNDS) await new Promise((resolve) => setTimeout(resolve, ROUND_PAUSE_MS));
    }
    return { cancelled, kept };
  }

  /** Whoever is at work on one of them stops: its next append is refused. */
  async #cancel(scope: Scope, batch: number, actor: string | undefined, isStopped: () => boolean): Promise<number> {
    let cancelled = 0;
    for (let last: string | null = null; !isStopped();) {
      const ids: string[] = await this.#ids(`${MINE} and r.finished_at is null and not r.hold and ($3::uuid is null or r.id > $3) order by r.id limit $4`, [...scope, last, batch]);
      if (ids.length === 0) break;
      last = ids.at(-1) ?? null;
      for (const id of ids) if (await this.#cancelOne(id, actor)) cancelled++;
    }
    return cancelled;
  }

  async #cancelOne(id: string, actor: string | undefined): Promise<boolean> {
    try {
      const [row] = await this.#query<{ ended: boolean }>("select capstan.cancel_run($1::uuid, 'erased', $2) as ended", [id, actor ?? null]);
      return row?.ended === true;
    } catch (error) {
      // Somebody else erases too: the statement of one that was killed may still be at work.
      if (error instanceof UnknownRunError) return false;
      throw error;
    }
  }

  async #hasNew(scope: Scope, kept: Readonly<Record<string, string>>): Promise<boolean> {
    return (await this.#ids(`${MINE} and r.id <> all($3::uuid[]) limit 1`, [...scope, Object.keys(kept)])).length > 0;
  }

  async #statements(when: "before" | "after" | "last", scope: Scope, tables: Record<string, TableCount>): Promise<void> {
    for (const { table, text, only } of eraseStatements.filter((statement) => statement.when === when)) {
      if (only === "tenant" && scope[1] !== null) continue;
      for (;;) {
        const [gone] = await this.#query<TableCount>(text, only === "tenant" ? [scope[0]] : scope);
        if (gone === undefined || gone.rows === 0) break;
        addTables(tables, { [table]: gone });
      }
    }
  }

  async #counts(scope: Scope): Promise<Record<string, TableCount>> {
    const tables: Record<string, TableCount> = {};
    for (const { table, text, only } of eraseCounts) {
      if (only === "tenant" && scope[1] !== null) continue;
      const [count] = await this.#query<TableCount>(text, only === "tenant" ? [scope[0]] : scope);
      if (count !== undefined) addTables(tables, { [table]: count });
    }
    return tables;
  }

  async #remains(scope: Scope, kept: Readonly<Record<string, string>>): Promise<Remains[]> {
    if (Object.keys(kept).length > 0) {
      const byReason = Map.groupBy(Object.values(kept), (reason) => reason);
      return [...byReason].map(([reason, runs]) => ({ what: "runs", rows: runs.length, why: WHY[reason] ?? reason }));
    }
    const [held] = await this.#query<{ rows: number }>(heldRuns, scope);
    return held === undefined || held.rows === 0 ? [] : [{ what: "runs", rows: held.rows, why: WHY["hold"] as string }];
  }

  /** Who did what stays, also this; a subject is named by a digest. */
  async #audit([tenant, subject]: Scope, actor: string | undefined, tables: Readonly<Record<string, TableCount>>): Promise<void> {
    const target = subject === null ? tenant : `subject sha256:${createHash("sha256").update(subject).digest("hex")}`;
    const rows = Object.fromEntries(Object.entries(tables).flatMap(([name, count]) => (count.rows === 0 ? [] : [[name, count.rows]])));
    await this.#query("insert into capstan.audit_log (tenant, actor, action, target, detail) values ($1, coalesce($2, session_user), 'erase', $3, $4::jsonb)", [
      tenant,
      actor ?? null,
      target,
      JSON.stringify({ rows }),
    ]);
  }

  /** What stays on purpose, of a whole tenant. */
  async #keptOnPurpose([tenant, subject]: Scope): Promise<Remains[]> {
    if (subject !== null) return [];
    const rows = await this.#query<{ what: string; rows: number }>(
      `select 'audit_log' as what, count(*)::int as rows from capstan.audit_log a where a.tenant = $1
       union all select 'role_tenants', count(*)::int from capstan.role_tenants t where t.tenant = $1`,
      [tenant],
    );
    const why: Readonly<Record<string, string>> = {
      audit_log: "who did what and when, without content",
      role_tenants: "a database role without its pin would reach every tenant: capstan.unpin_role, when the role is gone",
    };
    return rows.flatMap(({ what, rows: left }) => (left === 0 ? [] : [{ what, rows: left, why: why[what] ?? "" }]));
  }

  async #ids(where: string, values: readonly unknown[]): Promise<string[]> {
    return (await this.#query<{ id: string }>(`select r.id from capstan.runs r where ${where}`, values)).map(({ id }) => id);
  }

  async #query<Row extends object>(text: string, values: readonly unknown[]): Promise<Row[]> {
    try {
      return await queryTx<Row & Record<string, unknown>>(this.#db, this.#named(text), values);
    } catch (error) {
      throw fromPostgres(error);
    }
  }
}

interface RunErasure {
  readonly actor: string | undefined;
  readonly batch: number;
  readonly onProgress: ErasureOptions["onProgress"];
  readonly signal: AbortSignal | undefined;
  readonly tables: Record<string, TableCount>;
}

type Scope = readonly [tenant: string, subject: string | null];

function contentLeft({ left }: ContentCount): Remains[] {
  return left === 0 ? [] : [{ what: "blobs", rows: left, why: "somebody stored contents of the tenant all the while; erase again" }];
}
