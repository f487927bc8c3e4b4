import type { Command } from "commander";
import { ErasureClient, type ErasureReport } from "../client/erasure.ts";
import { actorName } from "./actor.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes, usageError } from "./exit.ts";
import { bytes, parseCount } from "./format.ts";
import { printable, type Output } from "./output.ts";
import { startProgress } from "./progress.ts";
import { tableLines, type Column } from "./table.ts";

interface EraseFlags {
  readonly tenant?: string;
  readonly subject?: string;
  readonly batch?: number;
  readonly dryRun?: boolean;
  readonly yes?: boolean;
}

export function addErase(program: Command): void {
  addCommand(program, "erase", {
    summary: "delete everything of one tenant, or of one subject",
    description:
      "Deletes everything of one tenant, or of one subject of it: runs (those at work are cancelled first), conversations, schedules, tokens and contents; of a tenant also its webhooks, limits and usage. Says what went, what remains and why. Held runs stay. Without --yes it only says what there is. Stopped at any point and started again it does the rest.",
    examples: ["erase --tenant acme --subject user-17", "erase --tenant acme --subject user-17 --yes", "erase --tenant acme --yes --json"],
  })
    .option("--tenant <name>")
    .option("--subject <name>", "only what is this subject's")
    .option("--batch <n>", "runs in one transaction (default: 100)", parseCount("--batch", { min: 1, max: 1_000 }))
    .option("--dry-run", "only say what there is")
    .option("--yes", "do it")
    .action(
      action(async (out, { tenant, subject, batch, dryRun = false, yes = false }: EraseFlags) => {
        if (tenant === undefined) throw usageError("say whose data is to go: --tenant acme, and --subject user-17 for one subject of it");
        if (dryRun && yes) throw usageError("give --dry-run or --yes, and not both");
        return await withDatabase(
          out,
          async ({ pool, named, signal }) => {
            const client = new ErasureClient(pool, named);
            const scope = { tenant, ...(subject === undefined ? {} : { subject }) };
            const before = await client.erase(scope, { dryRun: true });
            if (!yes) return await report(out, before);
            const bar = await startProgress("runs", before.tables["runs"]?.rows ?? 0);
            try {
              const options = { actor: actorName(), signal, onProgress: (deleted: number) => bar.update(deleted), ...(batch === undefined ? {} : { batch }) };
              return await report(out, await client.erase(scope, options));
            } finally {
              bar.stop();
            }
          },
          { handlesStop: true },
        );
      }),
    );
}

interface Line {
  readonly table: string;
  readonly rows: number;
  readonly bytes: number;
}

const columns: readonly Column<Line>[] = [
  { title: "TABLE", value: ({ table }) => table },
  { title: "ROWS", align: "right", value: ({ rows }) => String(rows) },
  { title: "BYTES", align: "right", value: (line) => bytes(line.bytes) },
];

async function report(out: Output, erased: ErasureReport): Promise<number> {
  const lines = Object.entries(erased.tables).flatMap(([table, { rows, bytes: size }]) => (rows === 0 ? [] : [{ table, rows, bytes: size }]));
  if (erased.content.blobs > 0) lines.push({ table: "blobs", rows: erased.content.blobs, bytes: erased.content.bytes });
  if (out.isJson) await out.value(erased);
  else if (lines.length > 0) for (const line of tableLines(columns, lines, out.colors.bold)) await out.line(line);
  for (const { what, rows, why } of erased.remains) out.note(`${rows} of ${what} ${erased.dry_run ? "would stay" : "stay"}: ${printable(why)}`);
  if (lines.length === 0) out.note("nothing is there");
  else if (erased.dry_run) out.note("nothing was deleted; --yes does it");
  if (!erased.dry_run && !erased.complete) out.note("not all of it is gone; the same command does the rest once that is possible");
  return erased.dry_run || erased.complete ? exitCodes.ok : exitCodes.failed;
}
