/** Handles of runs for commands: only the client's code, so that a listing starts without worker and queue. */
import { DeltaListener } from "../client/delta-listener.ts";
import { RunHandle } from "../client/handle.ts";
import { ResultPoller } from "../client/result-poller.ts";
import type { Database } from "./database.ts";

/** One that is followed with live text: over one more connection, until the follower is through. */
export function followedRun({ pool, named, directUrl }: Pick<Database, "pool" | "named" | "directUrl">, runId: string): RunHandle {
  const listener = new DeltaListener({ connection: { connectionString: directUrl }, db: pool, named });
  return new RunHandle(runId, { db: pool, named, poller: new ResultPoller(pool, named), listener });
}

export function runHandle({ pool, named }: Pick<Database, "pool" | "named">, runId: string): RunHandle {
  return new RunHandle(runId, { db: pool, named, poller: new ResultPoller(pool, named) });
}
