import type { Command } from "commander";
import { AuditClient, type AuditFilter, type AuditView } from "../client/audit.ts";
import { action, addCommand, addGroup } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes } from "./exit.ts";
import { age, parseCount, parseWhen } from "./format.ts";
import { brief } from "./output.ts";
import { tableLines, type Column } from "./table.ts";

interface FilterFlags {
  readonly tenant?: string;
  readonly actor?: string;
  readonly action?: string;
  readonly target?: string;
  readonly since?: string;
  readonly until?: string;
}

const columns: readonly Column<AuditView>[] = [
  { title: "ID", align: "right", value: ({ id }) => String(id) },
  { title: "AGE", align: "right", value: ({ at }) => age(at) },
  { title: "TENANT", value: ({ tenant }) => tenant },
  { title: "ACTOR", value: ({ actor }) => brief(actor, 30) },
  { title: "ACTION", value: ({ action: deed }) => deed },
  { title: "TARGET", value: ({ target }) => brief(target, 40) },
  { title: "DETAIL", value: ({ detail }) => (detail === undefined ? "" : brief(JSON.stringify(detail), 60)) },
];

export function addAuditCommands(program: Command): void {
  const audit = addGroup(program, "audit", "who did what");
  filtered(addCommand(audit, "list", { summary: "list what people and tokens did, newest first", examples: ["audit list", "audit list --action 'approval.*' --actor ada"] }))
    .option("--limit <n>", "1 to 1,000 (default: 100)", parseCount("--limit", { min: 1, max: 1_000 }))
    .option("--before <id>", "entries that are older", parseCount("--before", { min: 1, max: Number.MAX_SAFE_INTEGER }))
    .action(
      action(async (out, { limit, before, ...flags }: FilterFlags & { readonly limit?: number; readonly before?: number }) =>
        withDatabase(out, async ({ pool, named }) => {
          const page = await new AuditClient(pool, named).list({ ...filterOf(flags), ...(limit === undefined ? {} : { limit }), ...(before === undefined ? {} : { before }) });
          if (out.isJson) await out.value(page);
          else if (page.items.length === 0) out.note("no entries");
          else {
            for (const line of tableLines(columns, page.items, out.colors.bold)) await out.line(line);
            if (page.next_before !== undefined) out.note(`older ones: --before ${page.next_before}`);
          }
          return exitCodes.ok;
        }),
      ),
    );

  filtered(
    addCommand(audit, "export", {
      summary: "write entries as JSON, one a line, oldest first",
      description:
        "Writes entries as JSON, one a line, oldest first. With --after, the id of the last line that an earlier export wrote, it goes on from there and misses nothing: transactions that are writing an entry are waited for.",
      examples: ["audit export --since 2026-12-01T00:00:00Z > audit.ndjson", "audit export --after 41023 >> audit.ndjson"],
    }),
  )
    .option("--after <id>", "entries behind this one", parseCount("--after", { min: 0, max: Number.MAX_SAFE_INTEGER }))
    .action(
      action(async (out, { after, ...flags }: FilterFlags & { readonly after?: number }) =>
        withDatabase(out, async ({ pool, named }) => {
          for await (const entry of new AuditClient(pool, named).export({ ...filterOf(flags), ...(after === undefined ? {} : { after }) })) await out.value(entry);
          return exitCodes.ok;
        }),
      ),
    );
}

function filtered(command: Command): Command {
  return command
    .option("--tenant <name>", "only this tenant's; * is what concerns all")
    .option("--actor <name>", "only what this person or service did")
    .option("--action <action>", "only this action; run.* is all of runs")
    .option("--target <id>", "only what was done to this")
    .option("--since <when>", "an ISO 8601 time with a zone")
    .option("--until <when>", "an ISO 8601 time with a zone");
}

function filterOf({ since, until, ...flags }: FilterFlags): AuditFilter {
  return { ...flags, ...(since === undefined ? {} : { since: parseWhen("--since", since) }), ...(until === undefined ? {} : { until: parseWhen("--until", until) }) };
}
