/** What a cell has cost, read from the server. Differences of two readings count; the reader's own work is small and the same for all. */
import { readdir, readFile } from "node:fs/promises";
import type pg from "pg";
import { onServer } from "./server.ts";

export interface Counters {
  readonly walBytes: number;
  /** Transaction ids given out: transactions that wrote something, rolled back ones included. */
  readonly writingCommits: number;
  /** All commits in the cell's database, read-only ones too. */
  readonly commits: number;
  readonly fsyncs: number;
  /** Statements, begin and commit included; undefined without pg_stat_statements. */
  readonly statements: number | undefined;
  /** Milliseconds of CPU of all server processes; undefined where /proc does not tell. */
  readonly serverCpuMs: number | undefined;
}

/** Written ids and WAL are exact at once; commits and fsyncs once the cell's connections are closed (sessions report late). */
export async function readCounters(serverUrl: string, database: string, postmasterPid: number | undefined): Promise<Counters> {
  return await onServer(serverUrl, async (client) => {
    const { rows } = await client.query<{ wal: number; xid: number; commits: number }>(
      `select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8 as wal, pg_current_xact_id()::text::float8 as xid,
         (select xact_commit::float8 from pg_stat_database where datname = $1) as commits`,
      [database],
    );
    const row = rows[0] ?? { wal: 0, xid: 0, commits: 0 };
    return {
      walBytes: row.wal,
      writingCommits: row.xid,
      commits: row.commits,
      fsyncs: await readFsyncs(client),
      statements: await readStatements(client, database),
      serverCpuMs: postmasterPid === undefined ? undefined : await serverCpuMs(postmasterPid),
    };
  });
}

/** Postgres 18 moved the count of WAL flushes from pg_stat_wal to pg_stat_io. */
async function readFsyncs(client: pg.Client): Promise<number> {
  const { rows: where } = await client.query("select from information_schema.columns where table_name = 'pg_stat_wal' and column_name = 'wal_sync'");
  const text = where.length > 0 ? "select wal_sync::float8 as n from pg_stat_wal" : "select sum(fsyncs)::float8 as n from pg_stat_io where object = 'wal'";
  const { rows } = await client.query<{ n: number }>(text);
  return rows[0]?.n ?? 0;
}

async function readStatements(client: pg.Client, database: string): Promise<number | undefined> {
  try {
    const { rows } = await client.query<{ n: number | null }>(
      "select sum(calls)::float8 as n from pg_stat_statements s join pg_database d on d.oid = s.dbid where d.datname = $1 and s.toplevel",
      [database],
    );
    return rows[0]?.n ?? 0;
  } catch {
    // Not loaded on a server that is not ours: the table shows a dash.
    return undefined;
  }
}

/** A clock tick is 10 ms on Linux. The postmaster's own row holds the time of children that have ended. */
async function serverCpuMs(postmasterPid: number): Promise<number | undefined> {
  try {
    let ticks = 0;
    for (const pid of await readdir("/proc")) {
      if (!/^\d+$/.test(pid)) continue;
      const stat = await readFile(`/proc/${pid}/stat`, "utf8").catch(() => "");
      // After the name in parentheses: state, ppid, … utime (11), stime (12), cutime (13), cstime (14).
      const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
      if (Number(pid) === postmasterPid) ticks += Number(fields[11]) + Number(fields[12]) + Number(fields[13]) + Number(fields[14]);
      else if (Number(fields[1]) === postmasterPid) ticks += Number(fields[11]) + Number(fields[12]);
    }
    return ticks * 10;
  } catch {
    return undefined;
  }
}
