/** One run of one length, on a database of its own. */
import { migrate } from "../../src/store/migrate.ts";
import { inChild } from "./child.ts";
import type { Grown, GrowRequest, Loaded, Resumed } from "./grow.ts";
import { dropDatabase, freshDatabase, type BenchServer } from "./server.ts";
import { median } from "./statistics.ts";
import { compressionOf, growthOf, largestValue, readStorage, runSize, type LargestValue, type RunSize, type Storage } from "./storage.ts";

export interface Length {
  readonly turns: number;
  readonly grownMs: number;
  readonly warnedAtTurn: number | undefined;
  readonly size: RunSize;
  /** What the run has added to an empty, migrated database. */
  readonly stored: Storage;
  readonly largest: LargestValue;
  readonly compression: string;
  /** A fresh process: load, fold, hash and render; median of three processes. */
  readonly resumeMs: number;
  readonly renderedBytes: number;
  /** A fresh worker: from its start to the model's call. */
  readonly workerToCallMs: number;
  readonly modelCalls: number;
}

const growFile = new URL("./grow.ts", import.meta.url);
const LOADS = 3;

export async function measureLength(server: BenchServer, turns: number): Promise<Length> {
  const database = `bench_growth_${turns}`;
  const url = await freshDatabase(server.url, database);
  try {
    await migrate({ connectionString: url });
    const before = await readStorage(url);
    const grown = await child<Grown>({ kind: "grow", url, turns }, 60_000 + turns * 500);
    const size = await runSize(url, grown.runId);
    const stored = growthOf(before, await readStorage(url));
    const loads: Loaded[] = [];
    for (let i = 0; i < LOADS; i++) loads.push(await child<Loaded>({ kind: "load", url, runId: grown.runId }, 120_000));
    const resumed = await child<Resumed>({ kind: "resume", url, runId: grown.runId }, 180_000);
    return {
      turns,
      grownMs: grown.ms,
      warnedAtTurn: grown.warnedAtTurn,
      size,
      stored,
      largest: await largestValue(url),
      compression: await compressionOf(url),
      resumeMs: median(loads.map((l) => l.ms)),
      renderedBytes: loads[0]?.callBytes ?? 0,
      workerToCallMs: resumed.ms,
      modelCalls: resumed.modelCalls,
    };
  } finally {
    await dropDatabase(server.url, database);
  }
}

async function child<T>(request: GrowRequest, killAfterMs: number): Promise<T> {
  const outcome = await inChild<T>(growFile, request, { killAfterMs });
  if (!outcome.ok) throw new Error(`growth, ${request.kind}: ${outcome.error}`);
  return outcome.value;
}
