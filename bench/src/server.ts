/** The one Postgres of a benchmark: our own embedded one, with fsync and synchronous_commit on, or the one of a URL. */
import { readFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import pg from "pg";
import { deleteEmbeddedPostgres, startEmbeddedPostgres } from "../../src/embedded/index.ts";
import { startGuardian } from "../../src/testing/guardian.ts";

export interface BenchServer {
  /** A database in which others can be created. */
  readonly url: string;
  /** "18.4 (embedded)". */
  readonly version: string;
  /** To read the server's CPU time from; undefined for a server that is not ours. */
  readonly postmasterPid: number | undefined;
  stop(): Promise<void>;
}

/** As a server of some size is set up: nothing here trades durability for speed. */
const settings = {
  fsync: "on",
  synchronous_commit: "on",
  full_page_writes: "on",
  shared_buffers: "1GB",
  max_wal_size: "4GB",
  checkpoint_timeout: "15min",
  max_connections: "200",
  shared_preload_libraries: "pg_stat_statements",
};

export async function openServer(url: string | undefined): Promise<BenchServer> {
  if (url !== undefined) return await given(url);
  // Not in the system's temporary folder: that is memory on many machines, where a flush costs nothing.
  const dir = resolve(fileURLToPath(new URL("../../.capstan/bench-postgres", import.meta.url)));
  await deleteEmbeddedPostgres(dir);
  const guardian = startGuardian({ kind: "embedded", dir });
  const server = await startEmbeddedPostgres({ dir, database: "postgres", settings });
  const postmasterPid = Number((await readFile(join(server.dataDir, "postmaster.pid"), "utf8").catch(() => "")).split("\n")[0]) || undefined;
  await onServer(server.url, (client) => client.query("create extension if not exists pg_stat_statements"));
  return {
    url: server.url,
    version: `${server.version} (embedded)`,
    postmasterPid,
    async stop() {
      await deleteEmbeddedPostgres(dir);
      guardian.dismiss();
    },
  };
}

async function given(url: string): Promise<BenchServer> {
  const version = await onServer(url, async (client) => {
    const { rows } = await client.query<{ version: string; fsync: string; commit: string }>(
      "select current_setting('server_version') as version, current_setting('fsync') as fsync, current_setting('synchronous_commit') as commit",
    );
    const row = rows[0];
    if (row?.fsync !== "on" || row.commit === "off")
      throw new Error(`fsync is ${row?.fsync} and synchronous_commit ${row?.commit}: numbers of such a server say nothing about durable work`);
    await client.query("create extension if not exists pg_stat_statements").catch(() => {});
    return row.version;
  });
  return { url, version, postmasterPid: undefined, async stop() {} };
}

export async function onServer<T>(url: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: url, application_name: "capstan bench" });
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}

export function urlOfDatabase(serverUrl: string, name: string): string {
  const url = new URL(serverUrl);
  url.pathname = name;
  return url.toString();
}

export async function dropDatabase(serverUrl: string, name: string): Promise<void> {
  await onServer(serverUrl, (client) => client.query(`drop database if exists ${pg.escapeIdentifier(name)} with (force)`));
}

/** Gives the new database's URL. */
export async function freshDatabase(serverUrl: string, name: string): Promise<string> {
  await dropDatabase(serverUrl, name);
  await onServer(serverUrl, (client) => client.query(`create database ${pg.escapeIdentifier(name)}`));
  return urlOfDatabase(serverUrl, name);
}

/** Commits a second of one client that writes one small row at a time: what this disk's flush allows. */
export async function commitFloor(serverUrl: string): Promise<number> {
  return await onServer(serverUrl, async (client) => {
    await client.query("create table if not exists bench_floor (n int)");
    const started = performance.now();
    const commits = 500;
    for (let n = 0; n < commits; n++) await client.query({ name: "floor", text: "insert into bench_floor values ($1)", values: [n] });
    const ms = performance.now() - started;
    await client.query("drop table bench_floor");
    return Math.round((commits / ms) * 1_000);
  });
}
