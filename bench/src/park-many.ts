/**
 * Parked runs by the ten thousand: one of each kind is really run and parked by the engine, and its rows are copied, ids
 * replaced by new ones wherever they stand. What is copied is so what the engine makes, event for event.
 */
import type pg from "pg";

/** `{table, row}` of everything that a parked tree of runs has left. */
const ROWS_SQL = `
with tree as (select id from capstan.runs where id = $1 or root_run_id = $1)
select 'runs' as "table", to_jsonb(r) as row, null as payload from capstan.runs r where r.id in (select id from tree)
union all select 'events', to_jsonb(e) - 'payload', e.payload::text from capstan.events e where e.run_id in (select id from tree)
union all select 'waits', to_jsonb(w), null from capstan.waits w where w.run_id in (select id from tree)
union all select 'wishes', to_jsonb(w), null from capstan.wishes w where w.run_id in (select id from tree)
union all select 'inbox', to_jsonb(i), null from capstan.inbox i where i.run_id in (select id from tree)`;

interface TemplateRow {
  readonly table: "runs" | "events" | "waits" | "wishes" | "inbox";
  readonly row: Readonly<Record<string, unknown>>;
  readonly payload: string | null;
}

/** Copies of one parked run and its descendants, in one transaction. */
export async function copyParked(client: pg.ClientBase, runId: string, copies: number): Promise<void> {
  const { rows } = await client.query<TemplateRow>(ROWS_SQL, [runId]);
  const ids = [...new Set(rows.filter(({ table }) => table !== "events" && table !== "wishes").map(({ row }) => String(row["id"])))];
  /** A text with every id of the template replaced by the copy's own. */
  const copied = (text: string): string => ids.reduce((made, id, i) => `replace(${made}, '${id}', ids.id_${i})`, text);
  await client.query("begin");
  // As an import: the events bring the rows beside the journal along.
  await client.query("select set_config('capstan_import.running', 'on', true)");
  await client.query(
    `create temporary table ids on commit drop as select n, ${ids.map((_, i) => `capstan.uuid_v7()::text as id_${i}`).join(", ")} from generate_series(1, ${copies}) n`,
  );
  for (const { table, row, payload } of rows) {
    if (table === "events") {
      const columns = Object.keys(row).map((name) => `"${name}"`);
      await client.query(
        `insert into capstan.events (${columns.join(", ")}, payload)
         select ${columns.map((name) => `r.${name}`).join(", ")}, (${copied("$2::text")})::json from ids cross join lateral jsonb_populate_record(null::capstan.events, (${copied("$1::text")})::jsonb) r`,
        [JSON.stringify(row), payload],
      );
    } else
      await client.query(`insert into capstan.${table} select r.* from ids cross join lateral jsonb_populate_record(null::capstan.${table}, (${copied("$1::text")})::jsonb) r`, [
        JSON.stringify(row),
      ]);
  }
  await client.query("commit");
}
