/** Where a run, a tenant or a text is found, whatever tables there are. */
import type pg from "pg";

interface Column {
  readonly table_name: string;
  readonly column_name: string;
  readonly data_type: string;
}

async function columns(client: pg.Client): Promise<Column[]> {
  const { rows } = await client.query<Column>(
    `select c.table_name, c.column_name, c.data_type from information_schema.columns c join information_schema.tables t using (table_schema, table_name)
     where c.table_schema = 'capstan' and t.table_type = 'BASE TABLE' order by 1, 2`,
  );
  return rows;
}

/** Tables that say the run's id in a column of ids; what only points to it is no row of its own. */
export async function rowsOfRun(client: pg.Client, runId: string): Promise<string[]> {
  const found: string[] = [];
  for (const { table_name: table, column_name: column } of (await columns(client)).filter(({ data_type }) => data_type === "uuid")) {
    if (((await client.query(`select from capstan."${table}" where "${column}" = $1`, [runId])).rowCount ?? 0) > 0) found.push(`${table}.${column}`);
  }
  return found;
}

export async function tablesWithRows(client: pg.Client, tenant: string): Promise<string[]> {
  const found = new Set<string>();
  for (const { table_name: table, column_name: column } of await columns(client)) {
    if (!["tenant", "value"].includes(column)) continue;
    if (((await client.query(`select from capstan."${table}" where "${column}" = $1`, [tenant])).rowCount ?? 0) > 0) found.add(table);
  }
  return [...found].toSorted();
}

/** `table.column` wherever the text is found, in whatever form the column has. */
export async function whereTextIs(client: pg.Client, text: string): Promise<string[]> {
  const found: string[] = [];
  for (const { table_name: table, column_name: column, data_type: type } of await columns(client)) {
    const content = type === "bytea" ? `position(convert_to($1, 'UTF8') in "${column}") > 0` : `position($1 in "${column}"::text) > 0`;
    if (((await client.query(`select from capstan."${table}" where ${content} limit 1`, [text])).rowCount ?? 0) > 0) found.push(`${table}.${column}`);
  }
  return found;
}
