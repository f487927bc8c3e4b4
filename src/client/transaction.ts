/** Anything by which a caller's own transaction can be joined: a pg client, a drizzle transaction, or an object with `query`. */
import type { QueryResultRow } from "pg";

export interface QueryableTx {
  query(text: string, values?: unknown[]): Promise<unknown>;
}

/** A drizzle transaction or database: structural, so that the client does not depend on drizzle. */
export interface DrizzleTx {
  execute(query: never): PromiseLike<unknown>;
}

export type Tx = QueryableTx | DrizzleTx;

export async function queryTx<Row extends QueryResultRow>(tx: Tx, text: string, values: readonly unknown[]): Promise<Row[]> {
  const result = "query" in tx && typeof tx.query === "function" ? await tx.query(text, [...values]) : await (tx as DrizzleTx).execute((await drizzleSql(text, values)) as never);
  if (Array.isArray(result)) return result as Row[];
  return (result as { rows: Row[] }).rows;
}

/** The caller hands us a drizzle transaction, so drizzle is installed: it is imported only then. */
async function drizzleSql(text: string, values: readonly unknown[]): Promise<unknown> {
  const { sql } = await import("drizzle-orm");
  // As a param: drizzle would write an array as a list of its own parameters.
  const chunks = text.split(/\$(\d+)/).map((piece, i) => (i % 2 === 0 ? sql.raw(piece) : sql`${sql.param(values[Number(piece) - 1])}`));
  return sql.join(chunks);
}
