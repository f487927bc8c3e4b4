import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";
import { superuser } from "./cluster.ts";

export interface ServerAddress {
  readonly port: number;
  readonly password: string;
}

export function databaseUrl(address: ServerAddress, database: string): string {
  const url = new URL("postgres://127.0.0.1");
  url.username = superuser;
  url.password = address.password;
  url.port = `${address.port}`;
  url.pathname = encodeURIComponent(database);
  return url.toString();
}

/** What the running server says it is: "18.4". */
export function readServerVersion(address: ServerAddress): Promise<string> {
  return withClient(address, async (client) => {
    const { rows } = await client.query<{ server_version: string }>("show server_version");
    // Distributions append their package: "15.18 (Debian 15.18-0+deb12u1)".
    return rows[0]?.server_version.split(" ")[0] ?? "unknown";
  });
}

export function createDatabaseIfAbsent(address: ServerAddress, database: string): Promise<void> {
  return withClient(address, async (client) => {
    const { rowCount } = await client.query("select from pg_database where datname = $1", [database]);
    if (rowCount) return;
    try {
      await client.query(`create database ${client.escapeIdentifier(database)}`);
    } catch (error) {
      // Another start made it between our look and our statement; Postgres reports that in two ways.
      if (!["42P04", "23505"].includes((error as pg.DatabaseError).code ?? "")) throw error;
    }
  });
}

async function withClient<T>(address: ServerAddress, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = await connect(databaseUrl(address, "postgres"));
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}

/** Tries again for ten seconds while the server says that it is starting up (57P03) or has no slot free (53300). */
async function connect(connectionString: string): Promise<pg.Client> {
  const deadline = performance.now() + 10_000;
  for (;;) {
    const client = new pg.Client({ connectionString, connectionTimeoutMillis: 5_000 });
    // A server that goes away in mid-connection is reported by the query; the event must only not be unhandled.
    client.on("error", () => {});
    try {
      await client.connect();
      return client;
    } catch (error) {
      await client.end().catch(() => {});
      const mayPass = ["57P03", "53300"].includes((error as pg.DatabaseError).code ?? "");
      if (!mayPass || performance.now() > deadline) throw error;
      await sleep(50);
    }
  }
}
