/** Bytes as Postgres stores them. Never counted from objects in memory: shared ones would be counted once where the table holds them twice. */
import { onServer } from "./server.ts";

export interface Storage {
  /** Heap and TOAST of the events' partitions: their main forks, without indexes. */
  readonly events: number;
  /** All indexes of events, TOAST's own included. */
  readonly eventIndexes: number;
  /** Every other table of both schemas with its indexes (runs, wishes, workers, the queue's), and the free space and visibility maps of all. */
  readonly rest: number;
}

/** Vacuumed first, so that dead row versions are counted as the space that they leave behind, not twice. VACUUM gives no page back inside a table. */
export async function readStorage(url: string): Promise<Storage> {
  return await onServer(url, async (client) => {
    await client.query("vacuum analyze");
    const { rows } = await client.query<{ heap: number; indexes: number; total: number }>(`
      select sum(pg_relation_size(c.oid) + coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0)) filter (where is_events)::float8 as heap,
        sum(pg_indexes_size(c.oid) + coalesce(pg_indexes_size(nullif(c.reltoastrelid, 0)), 0)) filter (where is_events)::float8 as indexes,
        sum(pg_total_relation_size(c.oid))::float8 as total
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
      cross join lateral (select n.nspname = 'capstan' and exists (
        select from pg_inherits i where i.inhrelid = c.oid and i.inhparent = 'capstan.events'::regclass) as is_events) as e
      where c.relkind in ('r', 'm') and n.nspname in ('capstan', 'graphile_worker')`);
    const { heap = 0, indexes = 0, total = 0 } = rows[0] ?? {};
    return { events: heap, eventIndexes: indexes, rest: total - heap - indexes };
  });
}

export function growthOf(before: Storage, after: Storage): Storage {
  return { events: after.events - before.events, eventIndexes: after.eventIndexes - before.eventIndexes, rest: after.rest - before.rest };
}

export interface LargestValue {
  readonly bytes: number;
  readonly column: string;
}

/** The largest value of any json, jsonb, text or bytea column: what must not grow with the number of turns. */
export async function largestValue(url: string): Promise<LargestValue> {
  return await onServer(url, async (client) => {
    const { rows: columns } = await client.query<{ relation: string; name: string; type: string }>(`
      select c.oid::regclass::text as relation, quote_ident(a.attname) as name, t.typname as type
      from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace join pg_type t on t.oid = a.atttypid
      where c.relkind = 'r' and a.attnum > 0 and not a.attisdropped and n.nspname in ('capstan', 'graphile_worker') and t.typname in ('json', 'jsonb', 'text', 'bytea')`);
    let largest: LargestValue = { bytes: 0, column: "none" };
    for (const { relation, name, type } of columns) {
      const size = type === "bytea" ? `octet_length(${name})` : `octet_length(${name}::text)`;
      const { rows } = await client.query<{ bytes: number }>(`select coalesce(max(${size}), 0)::float8 as bytes from ${relation}`);
      const bytes = rows[0]?.bytes ?? 0;
      if (bytes > largest.bytes) largest = { bytes, column: `${relation}.${name}` };
    }
    return largest;
  });
}

/** The method, and for how many payloads Postgres used it. */
export async function compressionOf(url: string): Promise<string> {
  return await onServer(url, async (client) => {
    const { rows } = await client.query<{ setting: string; used: string; n: number }>(`
      select current_setting('default_toast_compression') as setting, coalesce(pg_column_compression(payload), 'stored as is') as used, count(*)::float8 as n
      from capstan.events group by 2 order by n desc`);
    return `${rows[0]?.setting ?? "?"} (payloads: ${rows.map(({ used, n }) => `${n.toLocaleString("en-US")} ${used}`).join(", ")})`;
  });
}

export interface RunSize {
  readonly transcriptBytes: number;
  readonly journalBytes: number;
  readonly turn: number;
}

export async function runSize(url: string, runId: string): Promise<RunSize> {
  return await onServer(url, async (client) => {
    const { rows } = await client.query<{ transcript: number; journal: number; turn: number }>(
      "select transcript_bytes::float8 as transcript, journal_bytes::float8 as journal, turn from capstan.runs where id = $1",
      [runId],
    );
    const row = rows[0];
    if (row === undefined) throw new Error(`there is no run ${runId}`);
    return { transcriptBytes: row.transcript, journalBytes: row.journal, turn: row.turn };
  });
}
