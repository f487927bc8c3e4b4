import type { CellRequest, CellResult } from "./cell.ts";
import { inChild, type ChildOutcome } from "./child.ts";
import { dropDatabase, freshDatabase, type BenchServer } from "./server.ts";

const cellFile = new URL("./cell.ts", import.meta.url);
const KILL_AFTER_MS = 400_000;

export type CellPlan = Omit<CellRequest, "url" | "serverUrl" | "database" | "postmasterPid">;

export interface RunCellOptions {
  /** For the child, e.g. --cpu-prof. */
  readonly execArgv?: readonly string[];
  /** Called before the cell's database is dropped. */
  readonly inspect?: (databaseUrl: string) => Promise<void>;
}

/** A fresh database and a fresh process; both are gone afterwards. */
export async function runCell(server: BenchServer, plan: CellPlan, { execArgv = [], inspect }: RunCellOptions = {}): Promise<ChildOutcome<CellResult>> {
  const database = `bench_${plan.engine.replaceAll("-", "_")}`;
  const url = await freshDatabase(server.url, database);
  const request: CellRequest = { ...plan, url, serverUrl: server.url, database, ...(server.postmasterPid === undefined ? {} : { postmasterPid: server.postmasterPid }) };
  const result = await inChild<CellResult>(cellFile, request, { execArgv, killAfterMs: KILL_AFTER_MS });
  await inspect?.(url);
  await dropDatabase(server.url, database);
  return result;
}
