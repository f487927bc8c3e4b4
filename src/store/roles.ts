/**
 * Three roles: `<schema>_owner` owns the tables, `<schema>_app` is what applications and workers are granted. The
 * application role can insert events but never change or remove them. `<schema>_enqueuer` is for applications that enqueue
 * and steer runs and read no journal: it calls a few functions, which run with the owner's rights, and sees no table. Where the migrating user may not make roles
 * (a managed database), one role does all and the triggers on `events` guard against mistakes; `doctor` says which holds.
 */
import type pg from "pg";
import type { SchemaNames } from "./names.ts";

export type RoleReport =
  | { readonly kind: "roles"; readonly owner: string; readonly app: string; readonly enqueuer: string }
  | { readonly kind: "one_role"; readonly reason: string };

export async function setUpRoles(client: pg.Client, names: SchemaNames, named: (text: string) => string): Promise<RoleReport> {
  const owner = `${names.schema}_owner`;
  const app = `${names.schema}_app`;
  const enqueuer = `${names.schema}_enqueuer`;
  await client.query("begin");
  try {
    for (const role of [owner, app, enqueuer]) await createRole(client, role);
    await giveToOwner(client, names, owner);
    await client.query([...grants(names, app), ...enqueuerGrants(names, enqueuer)].map(named).join(";\n"));
    await openQueueTables(client, names, app);
    await client.query("commit");
    return { kind: "roles", owner, app, enqueuer };
  } catch (error) {
    await client.query("rollback");
    const code = (error as { code?: string }).code;
    if (code === "42501") return { kind: "one_role", reason: (error as Error).message };
    throw error;
  }
}

/** Roles are shared by all databases of a server: another database's migration may make the same one at the same moment. */
async function createRole(client: pg.Client, role: string): Promise<void> {
  const { rowCount } = await client.query("select 1 from pg_roles where rolname = $1", [role]);
  if (rowCount !== 0) return;
  await client.query("savepoint make_role");
  try {
    await client.query(`create role "${role}" nologin`);
    await client.query("release savepoint make_role");
  } catch (error) {
    await client.query("rollback to savepoint make_role");
    const code = (error as { code?: string }).code;
    if (code !== "42710" && code !== "23505") throw error;
  }
}

/** The migrating user stays able to migrate: it is made a member of the owner first. */
async function giveToOwner(client: pg.Client, names: SchemaNames, owner: string): Promise<void> {
  await client.query(`grant "${owner}" to current_user`);
  await client.query(`alter schema "${names.schema}" owner to "${owner}"`);
  const { rows } = await client.query<{ statement: string }>(
    `select format('alter %s %s owner to %I', case when c.relkind = 'v' then 'view' else 'table' end, c.oid::regclass, $2::text) as statement
       from pg_class c where c.relnamespace = $1::regnamespace and c.relkind in ('r', 'p', 'v') and pg_get_userbyid(c.relowner) <> $2
     union all
     select format('alter function %s owner to %I', p.oid::regprocedure, $2::text)
       from pg_proc p where p.pronamespace = $1::regnamespace and pg_get_userbyid(p.proowner) <> $2`,
    [names.schema, owner],
  );
  if (rows.length > 0) await client.query(rows.map((row) => row.statement).join(";\n"));
}

/** graphile-worker switches row security on for its tables and gives no policy: rights alone would leave them empty for everybody but their owner. */
async function openQueueTables(client: pg.Client, names: SchemaNames, app: string): Promise<void> {
  const { rows } = await client.query<{ statement: string }>(
    `select format('create policy %I on %s to %I using (true) with check (true)', $2::text, c.oid::regclass, $2::text) as statement
       from pg_class c where c.relnamespace = $1::regnamespace and c.relrowsecurity
         and not exists (select from pg_policy p where p.polrelid = c.oid and p.polname = $2)`,
    [names.workerSchema, app],
  );
  if (rows.length > 0) await client.query(rows.map((row) => row.statement).join(";\n"));
}

function grants(names: SchemaNames, app: string): string[] {
  return [
    `grant usage on schema "${names.schema}" to "${app}"`,
    `grant select, insert, update, delete on all tables in schema "${names.schema}" to "${app}"`,
    `revoke update, delete, truncate on capstan.events, capstan.events_default from "${app}"`,
    `revoke update, delete on capstan.agent_definitions from "${app}"`,
    `revoke update, delete, truncate on capstan.audit_log from "${app}"`,
    `revoke insert, update, delete on capstan.role_tenants from "${app}"`,
    // Functions are everybody's by default, which is harmless only while nobody else may use the schema.
    `revoke execute on all functions in schema "${names.schema}" from public`,
    `grant usage on all sequences in schema "${names.schema}" to "${app}"`,
    `grant execute on all functions in schema "${names.schema}" to "${app}"`,
    // What removes events is for the owner, and for whoever is a member of it.
    ...removers.map((name) => `revoke execute on function capstan.${name} from "${app}"`),
    `grant usage on schema "${names.workerSchema}" to "${app}"`,
    `grant select, insert, update, delete on all tables in schema "${names.workerSchema}" to "${app}"`,
    `grant usage on all sequences in schema "${names.workerSchema}" to "${app}"`,
    `grant execute on all functions in schema "${names.workerSchema}" to "${app}"`,
  ];
}

const removers = ["delete_runs", "drop_partition", "strip_audit"];

/** What the enqueuer may call. Each runs with its owner's rights and looks at the tenant that the caller is pinned to (migrations/0010_access.sql). */
const enqueuerFunctions = ["enqueue_run", "enqueue_runs", "send", "cancel_run", "run_status", "run_ends", "decide", "answer", "signal", "compact_run"];

function enqueuerGrants(names: SchemaNames, enqueuer: string): string[] {
  return [`grant usage on schema "${names.schema}" to "${enqueuer}"`, ...enqueuerFunctions.map((name) => `grant execute on function capstan.${name} to "${enqueuer}"`)];
}
