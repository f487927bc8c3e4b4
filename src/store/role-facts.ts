/** What doctor asks of the roles: which there are, and whether a pinned one is held by its pin. */
import type pg from "pg";

export interface RoleFacts {
  readonly enqueuer_exists: boolean;
  /** The enqueuer role can read a table, or call what is not among its functions. */
  readonly enqueuer_reads: boolean;
  readonly pins: readonly PinFact[];
}

export interface PinFact {
  readonly role: string;
  readonly tenants: readonly string[];
  readonly exists: boolean;
  /** It can read tables, or is a superuser: its pin holds for functions only. */
  readonly reads_tables: boolean;
}

const EVENTS = "to_regclass(format('%I.events', $1::text))";

export async function roleFacts(db: Pick<pg.Pool, "query">, named: (text: string) => string, schema: string): Promise<RoleFacts> {
  const { rows } = await db.query<{ enqueuer_exists: boolean; enqueuer_reads: boolean }>(
    `select r.oid is not null as enqueuer_exists, coalesce(has_table_privilege(r.oid, ${EVENTS}, 'SELECT'), false) as enqueuer_reads
     from (select 1) x left join pg_roles r on r.rolname = $1 || '_enqueuer'`,
    [schema],
  );
  const { rows: pins } = await db.query<PinFact>(
    named(`select t.role, array_agg(t.tenant order by t.tenant) as tenants, r.oid is not null as exists,
             coalesce(has_table_privilege(r.oid, ${EVENTS}, 'SELECT'), false) as reads_tables
           from capstan.role_tenants t left join pg_roles r on r.rolname = t.role
           where $1::text is not null group by t.role, r.oid order by t.role`),
    [schema],
  );
  const facts = rows[0] as { enqueuer_exists: boolean; enqueuer_reads: boolean };
  return { ...facts, pins };
}
