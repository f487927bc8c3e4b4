/** Handles of runs for commands: only the client's code, so that a listing starts without worker and queue. */
import { RunHandle } from "../client/handle.ts";
import { ResultPoller } from "../client/result-poller.ts";
import type { Database } from "./database.ts";

export function runHandle({ pool, named }: Pick<Database, "pool" | "named">, runId: string): RunHandle {
  return new RunHandle(runId, { db: pool, named, poller: new ResultPoller(pool, named) });
}
