/** One long run on a database of its own. */
import { inChild } from "../child.ts";
import { dropDatabase, freshDatabase, type BenchServer } from "../server.ts";
import type { LongRun, LongRunRequest } from "./long-run.ts";

const file = new URL("./long-run.ts", import.meta.url);
const DATABASE = "bench_compaction_long";

export async function measureLongRun(server: BenchServer, turns: number): Promise<LongRun> {
  const url = await freshDatabase(server.url, DATABASE);
  try {
    const stops = [10, 100, 1_000, 10_000, 100_000].filter((turn) => turn <= turns);
    if (!stops.includes(turns)) stops.push(turns);
    const outcome = await inChild<LongRun>(file, { kind: "run", url, turns, stops } satisfies LongRunRequest, { killAfterMs: 300_000 + turns * 200 });
    if (!outcome.ok) throw new Error(`the long run failed: ${outcome.error}`);
    return outcome.value;
  } finally {
    await dropDatabase(server.url, DATABASE);
  }
}
