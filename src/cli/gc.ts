import type { Command } from "commander";
import { RetentionClient, type RetentionFilter, type RetentionPreview, type RetentionReport } from "../client/retention.ts";
import type { RunStatus } from "../domain/run.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes, usageError } from "./exit.ts";
import { bytes, parseCount, parseDuration } from "./format.ts";
import { RunArchive } from "./gc-archive.ts";
import { dropPartitions, type PartitionsReport } from "./gc-partitions.ts";
import { printable, type Output } from "./output.ts";
import { startProgress } from "./progress.ts";

interface GcFlags {
  readonly olderThan?: string;
  readonly tenant?: string;
  readonly agent?: string;
  readonly state?: string;
  readonly conversations?: boolean;
  readonly export?: string;
  readonly partitions?: boolean;
  readonly batch?: number;
  readonly dryRun?: boolean;
}

export function addGc(program: Command): void {
  addCommand(program, "gc", {
    summary: "delete ended runs that are old enough, with everything that is theirs",
    description:
      "Deletes runs that ended long enough ago, with everything that is theirs, in bounded batches; usage stays as totals by day. A run stays while it is held, while a run that stays begins with it, while its conversation can go on, while its parent or a child is at work, and while a compaction or a webhook of it is still to be done. With --export each run is written down first, read back and compared with its digests. Stopped at any point and started again it does the rest.",
    examples: [
      "gc --older-than 30d --dry-run",
      "gc --older-than 30d --export /backup/runs",
      "gc --older-than 90d --tenant acme --state failed,cancelled --json",
      "gc --older-than 90d --partitions",
    ],
  })
    .option("--older-than <duration>", "runs that ended at least so long ago: 12h, 30d")
    .option("--tenant <name>")
    .option("--agent <name>")
    .option("--state <states>", "completed, failed or cancelled: one or more, with commas (default: all)")
    .option("--conversations", "also whole conversations in which nothing was said for as long")
    .option("--export <folder>", "write each run there before it goes")
    .option("--partitions", "first drop partitions of the journal whose runs may all go")
    .option("--batch <n>", "runs in one transaction (default: 100)", parseCount("--batch", { min: 1, max: 1_000 }))
    .option("--dry-run", "only say what would go, and why the rest stays")
    .action(action(gc));
}

async function gc(out: Output, flags: GcFlags): Promise<number> {
  const filter = filterOf(flags);
  if (flags.partitions === true && (flags.tenant ?? flags.agent ?? flags.state) !== undefined) {
    throw usageError("--partitions drops the runs of all tenants, agents and states: leave --tenant, --agent and --state out");
  }
  return await withDatabase(
    out,
    async (database) => {
      const client = new RetentionClient(database.pool, database.named);
      const preview = await client.preview(filter);
      const archive = flags.export === undefined ? undefined : new RunArchive(flags.export, database);
      const dryRun = flags.dryRun === true;
      const partitions =
        flags.partitions === true
          ? await dropPartitions(database, { endedBefore: preview.ended_before, withConversations: filter.conversations === true, dryRun, archive })
          : undefined;
      if (partitions !== undefined) await sayPartitions(out, partitions, dryRun);
      if (dryRun) return await sayPreview(out, preview, partitions);
      const bar = await startProgress("runs", preview.deletable);
      let report: RetentionReport;
      try {
        report = await client.deleteEnded(filter, {
          signal: database.signal,
          onProgress: (looked) => bar.update(looked),
          ...(flags.batch === undefined ? {} : { batch: flags.batch }),
          ...(archive === undefined ? {} : { archive: (runId) => archive.write(runId) }),
        });
      } finally {
        bar.stop();
      }
      return await sayReport(out, report, archive, partitions);
    },
    { handlesStop: true },
  );
}

function filterOf({ olderThan, tenant, agent, state, conversations = false }: GcFlags): RetentionFilter {
  if (olderThan === undefined) throw usageError("say how long ago runs have ended that may go: --older-than 30d");
  return {
    olderThanMs: parseDuration("--older-than", olderThan),
    conversations,
    ...(tenant === undefined ? {} : { tenant }),
    ...(agent === undefined ? {} : { agent }),
    ...(state === undefined ? {} : { states: state.split(",") as RunStatus[] }),
  };
}

/** What a reason means, for people. */
const reasons: Readonly<Record<string, string>> = {
  hold: "are held",
  referenced: "are what a run that stays begins with",
  conversation: "are the last of a conversation (--conversations)",
  parent_alive: "were started by a run that has not ended",
  child_alive: "have started a run that has not ended",
  compaction: "are to be compacted",
  webhook: "have webhooks to be delivered",
};

async function sayKept(out: Output, kept: Readonly<Record<string, number>>): Promise<void> {
  for (const [reason, runs] of Object.entries(kept)) out.note(`${runs} stay: they ${reasons[reason] ?? printable(reason)}`);
}

async function sayPreview(out: Output, preview: RetentionPreview, partitions: PartitionsReport | undefined): Promise<number> {
  if (out.isJson) await out.value({ dry_run: true, ...preview, ...(partitions === undefined ? {} : { partitions }) });
  else await out.line(`${preview.deletable} of ${preview.matched} runs that ended before ${preview.ended_before} would go`);
  await sayKept(out, preview.kept);
  return exitCodes.ok;
}

async function sayPartitions(out: Output, { dropped, kept }: PartitionsReport, dryRun: boolean): Promise<void> {
  for (const { name, runs, bytes: size } of dropped) out.note(`partition ${name} with ${runs} runs, ${bytes(size)}: ${dryRun ? "would be dropped" : "dropped"}`);
  for (const { name, keeps } of kept) {
    out.note(
      `partition ${name} stays: ${Object.entries(keeps)
        .map(([reason, runs]) => `${runs} ${reason}`)
        .join(", ")}`,
    );
  }
}

async function sayReport(out: Output, report: RetentionReport, archive: RunArchive | undefined, partitions: PartitionsReport | undefined): Promise<number> {
  const exported = archive === undefined ? undefined : { files: archive.files, bytes: archive.bytes };
  if (out.isJson) await out.value({ dry_run: false, ...report, ...(exported === undefined ? {} : { exported }), ...(partitions === undefined ? {} : { partitions }) });
  else {
    const size = Object.values(report.tables).reduce((sum, table) => sum + table.bytes, report.content.bytes);
    await out.line(`${report.deleted} runs deleted, ${bytes(size)}${exported === undefined ? "" : `; ${exported.files} files written, ${bytes(exported.bytes)}`}`);
  }
  for (const { run_id: id, code, message } of report.refused) out.note(`${id} stays: ${code}: ${printable(message)}`);
  await sayKept(out, report.kept);
  if (report.content.left > 0) out.note(`${report.content.left} contents are left for the next time: somebody stored others of the same tenant all the while`);
  if (!report.complete) out.note("stopped before the end; the same command does the rest");
  return report.refused.length > 0 || !report.complete ? exitCodes.failed : exitCodes.ok;
}
