/**
 * What changes something: one transaction holds the change and what the audit log says of it. Some functions of the database
 * write their line themselves (cancel, pause, decisions, quotas, promotions): then nothing is said here.
 */
import type pg from "pg";
import { recordAudit } from "../client/audit.ts";
import { fromPostgres } from "../client/errors.ts";
import type { JsonObject } from "../domain/json.ts";
import { isRetryableConflict } from "../store/pg-errors.ts";
import type { Access } from "./auth.ts";
import type { ApiContext } from "./context.ts";

export interface Deed {
  /** `<what>.<deed>`. */
  readonly action: string;
  readonly target: string;
  readonly detail?: JsonObject;
}

type Say = (deed: Deed) => Promise<void>;

const MAX_TRIES = 3;

/**
 * `work` does it on the connection that it is given, and says what it has done; when nothing was done it says nothing. What
 * was in somebody else's way (a deadlock, a serialization failure) did not happen and is done again.
 */
export async function act<T>({ db, named }: Pick<ApiContext, "db" | "named">, access: Access, work: (tx: pg.PoolClient, say: Say) => Promise<T>): Promise<T> {
  for (let tried = 1; ; tried++) {
    try {
      return await once(db, access.tokenId, (tx) => work(tx, (deed) => recordAudit(tx, named, { tenant: access.tenant, actor: access.actor, tokenId: access.tokenId, ...deed })));
    } catch (error) {
      if (!isRetryableConflict(error) || tried === MAX_TRIES) throw error;
    }
  }
}

async function once<T>(db: pg.Pool, tokenId: string | undefined, work: (tx: pg.PoolClient) => Promise<T>): Promise<T> {
  let tx: pg.PoolClient;
  try {
    tx = await db.connect();
  } catch (error) {
    throw fromPostgres(error);
  }
  let broken: Error | undefined;
  try {
    // An id that the database gave us. What functions write into the audit log by themselves names the token by it.
    await tx.query(tokenId === undefined ? "begin" : `begin; set local capstan_audit.token = '${tokenId}'`);
    const result = await work(tx);
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
