/** The part of `gc` that drops whole partitions of the journal. */
import { addTables, type TableCount } from "../client/run-deletion.ts";
import { ContentCollector } from "../client/content-collector.ts";
import { dropPartition, eventPartitions, partitionKeeps, runsOfPartition, type EventPartition } from "../store/partitions.ts";
import type { Database } from "./database.ts";
import type { RunArchive } from "./gc-archive.ts";

export interface PartitionsReport {
  readonly dropped: readonly { readonly name: string; readonly runs: number; readonly bytes: number }[];
  readonly kept: readonly { readonly name: string; readonly keeps: Readonly<Record<string, number>> }[];
  readonly tables: Readonly<Record<string, TableCount>>;
}

export interface PartitionsOptions {
  readonly endedBefore: string;
  readonly withConversations: boolean;
  readonly dryRun: boolean;
  readonly archive: RunArchive | undefined;
}

export async function dropPartitions({ pool, named, signal }: Database, { endedBefore, withConversations, dryRun, archive }: PartitionsOptions): Promise<PartitionsReport> {
  const report = { dropped: [] as { name: string; runs: number; bytes: number }[], kept: [] as { name: string; keeps: Readonly<Record<string, number>> }[], tables: {} };
  const collector = new ContentCollector(pool, named);
  // One that takes new runs is never whole.
  const bounded = (await eventPartitions(pool, named)).filter(({ from_id: from, below_id: below }) => from !== null && below !== null);
  for (const partition of bounded) {
    if (signal.aborted) break;
    const { name, bytes } = partition;
    const keeps = await partitionKeeps(pool, named, partition, { endedBefore, withConversations });
    if (Object.keys(keeps).length > 0) {
      report.kept.push({ name, keeps });
      continue;
    }
    if (dryRun) {
      report.dropped.push({ name, runs: await countRuns({ pool, named }, partition), bytes });
      continue;
    }
    const lastSeqs = archive && (await written({ pool, named }, partition, archive));
    if (signal.aborted) break;
    const done = await dropPartition(pool, named, { name, endedBefore, withConversations, ...(lastSeqs === undefined ? {} : { lastSeqs }) });
    if ("keeps" in done) {
      report.kept.push({ name, keeps: done.keeps });
      continue;
    }
    report.dropped.push({ name, runs: done.deleted, bytes });
    addTables(report.tables, done.tables);
    await collector.collect(done.blobs);
  }
  return report;
}

type Db = Pick<Database, "pool" | "named">;

async function countRuns({ pool, named }: Db, partition: EventPartition): Promise<number> {
  let runs = 0;
  for await (const _ of runsOfPartition(pool, named, partition)) runs++;
  return runs;
}

async function written({ pool, named }: Db, partition: EventPartition, archive: RunArchive): Promise<Map<string, number>> {
  const lastSeqs = new Map<string, number>();
  for await (const id of runsOfPartition(pool, named, partition)) lastSeqs.set(id, await archive.write(id));
  return lastSeqs;
}
