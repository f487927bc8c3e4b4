/** Brings a database to this build's schema: ours, graphile-worker's, and the two roles. Forward only. */
import { fileURLToPath } from "node:url";
import type { MigrationMeta as MigrationFile } from "drizzle-orm/migrator";
import { Logger, makeWorkerUtils } from "graphile-worker";
import pg from "pg";
import { CapstanError } from "../domain/error.ts";
import { defaultNames, namedSql, type SchemaNames } from "./names.ts";
import { setUpRoles, type RoleReport } from "./roles.ts";

const migrationsFolder = fileURLToPath(new URL("../../migrations", import.meta.url));

/** Any two migrators of one database take the same lock; the number is arbitrary and only ours ("caps" in ASCII). */
const MIGRATION_LOCK = 0x63617073;
const OLDEST_SUPPORTED_MAJOR = 15;

export class PostgresVersionError extends CapstanError {
  override readonly name = "PostgresVersionError";
  readonly code = "POSTGRES_UNSUPPORTED";
}

export interface MigrateOptions {
  readonly connectionString: string;
  readonly names?: SchemaNames;
  readonly log?: (line: string) => void;
}

export interface MigrateReport {
  readonly serverVersion: string;
  /** Migrations that were applied now. */
  readonly applied: number;
  readonly known: number;
  readonly roles: RoleReport;
}

/** Safe to call from any number of processes at once: the first migrates, the rest wait and find nothing to do. */
export async function migrate({ connectionString, names = defaultNames, log = () => {} }: MigrateOptions): Promise<MigrateReport> {
  const named = namedSql(names);
  const client = new pg.Client({ connectionString, application_name: "capstan migrate" });
  client.on("error", (error) => log(`connection lost while migrating: ${error.message}`));
  await client.connect();
  try {
    const serverVersion = await supportedVersion(client);
    // Session-scoped on purpose: graphile-worker migrates on connections of its own while we hold it. Migrations need a
    // direct connection, not a pooler in transaction mode.
    await client.query("select pg_advisory_lock($1)", [MIGRATION_LOCK]);
    try {
      const before = await appliedCount(client, named);
      const files = (await migrationFiles()).map((file) => ({ ...file, sql: file.sql.map(named) }));
      await applyMigrations(client, files, names);
      await migrateQueue(connectionString, names);
      const roles = await setUpRoles(client, names, named);
      const applied = files.length - before;
      if (applied > 0) log(`applied ${applied} of ${files.length} migrations to schema ${names.schema}`);
      return { serverVersion, applied, known: files.length, roles };
    } finally {
      await client.query("select pg_advisory_unlock($1)", [MIGRATION_LOCK]);
    }
  } finally {
    await client.end();
  }
}

/** What `capstan migrate --check` reports: how many migrations the database lacks, or has that this build does not know. */
export async function migrationStatus({ connectionString, names = defaultNames }: MigrateOptions): Promise<{ applied: number; known: number }> {
  const client = new pg.Client({ connectionString, application_name: "capstan migrate --check" });
  await client.connect();
  try {
    return { applied: await appliedCount(client, namedSql(names)), known: (await migrationFiles()).length };
  } finally {
    await client.end();
  }
}

/** The same over a connection of the caller's, for a service that is asked whether it is ready. */
export async function migrationCounts(db: Pick<pg.ClientBase, "query">, named: (text: string) => string): Promise<{ applied: number; known: number }> {
  return { applied: await appliedCount(db, named), known: (await migrationFiles()).length };
}

async function appliedCount(client: Pick<pg.ClientBase, "query">, named: (text: string) => string): Promise<number> {
  const table = named("capstan.migrations");
  const { rows } = await client.query<{ there: boolean }>("select to_regclass($1) is not null as there", [table]);
  if (rows[0]?.there !== true) return 0;
  const count = await client.query<{ n: number }>(`select count(*)::int as n from ${table}`);
  return count.rows[0]?.n ?? 0;
}

/** drizzle is imported only where migrations are run: it is by far the largest module, and workers need none of it. */
async function migrationFiles(): Promise<MigrationFile[]> {
  const { readMigrationFiles } = await import("drizzle-orm/migrator");
  return readMigrationFiles({ migrationsFolder });
}

/**
 * drizzle's own migrator reads a folder; ours hands it the same files with the schema's name put in, through the same
 * dialect call that `drizzle-orm/node-postgres/migrator` makes.
 */
async function applyMigrations(client: pg.Client, files: MigrationFile[], names: SchemaNames): Promise<void> {
  const { drizzle } = await import("drizzle-orm/node-postgres");
  const db = drizzle(client) as unknown as {
    dialect: { migrate(files: MigrationFile[], session: unknown, config: { migrationsFolder: string; migrationsSchema: string; migrationsTable: string }): Promise<void> };
    session: unknown;
  };
  await db.dialect.migrate(files, db.session, { migrationsFolder, migrationsSchema: names.schema, migrationsTable: "migrations" });
}

async function migrateQueue(connectionString: string, names: SchemaNames): Promise<void> {
  const utils = await makeWorkerUtils({ connectionString, schema: names.workerSchema, logger: new Logger(() => () => {}) });
  try {
    await utils.migrate();
  } finally {
    await utils.release();
  }
}

async function supportedVersion(client: pg.Client): Promise<string> {
  const { rows } = await client.query<{ version: string; number: number }>(
    "select current_setting('server_version') as version, current_setting('server_version_num')::int as number",
  );
  const { version = "?", number = 0 } = rows[0] ?? {};
  if (Math.floor(number / 10_000) < OLDEST_SUPPORTED_MAJOR) {
    throw new PostgresVersionError(`Postgres ${version} is too old: Capstan needs ${OLDEST_SUPPORTED_MAJOR} or newer`);
  }
  return version;
}
