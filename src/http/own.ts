/**
 * The one place where a run or a conversation that a request names is looked up under the token's tenant: neither ever
 * changes its tenant, so what was found once may be worked with by its id. Another tenant's is as one that does not exist.
 */
import { ConversationUnknownError, fromPostgres, UnknownRunError, WaitUnknownError } from "../client/errors.ts";
import type { Access } from "./auth.ts";
import type { ApiContext } from "./context.ts";

type Db = Pick<ApiContext, "db" | "named">;

export async function ownRun({ db, named }: Db, { tenant }: Pick<Access, "tenant">, runId: string): Promise<void> {
  if (!(await exists(db, named("select 1 from capstan.runs where id = $1::uuid and tenant = $2"), [runId, tenant]))) throw new UnknownRunError(`no run ${runId}`);
}

export async function ownConversation({ db, named }: Db, { tenant }: Pick<Access, "tenant">, id: string): Promise<void> {
  if (!(await exists(db, named("select 1 from capstan.conversations where id = $1::uuid and tenant = $2"), [id, tenant]))) {
    throw new ConversationUnknownError(`no conversation ${id}`);
  }
}

/** Of a run that was found to be the caller's. */
export async function ownWait({ db, named }: Db, runId: string, waitId: string): Promise<void> {
  if (!(await exists(db, named("select 1 from capstan.waits where id = $2::uuid and run_id = $1::uuid"), [runId, waitId]))) {
    throw new WaitUnknownError(`run ${runId} does not wait under ${waitId}; its waits are listed under /v1/runs/${runId}/waits`);
  }
}

async function exists(db: ApiContext["db"], text: string, values: readonly unknown[]): Promise<boolean> {
  try {
    return (await db.query(text, [...values])).rows.length > 0;
  } catch (error) {
    throw fromPostgres(error);
  }
}
