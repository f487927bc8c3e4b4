/** What an assistant changes: one transaction holds the change and what the audit log says of it. */
import type pg from "pg";
import { recordAudit } from "../../client/audit.ts";
import { fromPostgres } from "../../client/errors.ts";
import type { JsonObject } from "../../domain/json.ts";
import type { McpAccess } from "./access.ts";

export interface Deed {
  /** As over HTTP: `run.cancel`. */
  readonly action: string;
  readonly target: string;
  readonly detail?: JsonObject;
}

export interface ActContext {
  readonly db: pg.Pool;
  readonly named: (text: string) => string;
  readonly access: McpAccess;
}

/** `deedOf` gives undefined where nothing was changed. */
export async function act<T>({ db, named, access }: ActContext, work: (tx: pg.PoolClient) => Promise<T>, deedOf: (result: T) => Deed | undefined): Promise<T> {
  let tx: pg.PoolClient;
  try {
    tx = await db.connect();
  } catch (error) {
    throw fromPostgres(error);
  }
  let broken: Error | undefined;
  try {
    await tx.query("begin");
    const result = await work(tx);
    const deed = deedOf(result);
    if (deed !== undefined) await recordAudit(tx, named, { tenant: access.tenant, actor: access.actor, tokenId: access.tokenId, ...deed });
    await tx.query("commit");
    return result;
  } catch (error) {
    // A connection that cannot even roll back is not used again; the server rolls back when it is closed.
    await tx.query("rollback").catch((failed: unknown) => (broken = failed instanceof Error ? failed : new Error(String(failed))));
    throw fromPostgres(error);
  } finally {
    tx.release(broken);
  }
}
