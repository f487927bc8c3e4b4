import { InvalidArgumentError, Option, type Command } from "commander";
import { UsageClient, usageGroups, type RunUsage, type UsageRow, type UsageTotals } from "../client/usage.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase, type Database } from "./database.ts";
import { exitCodes, usageError } from "./exit.ts";
import { parseDuration, parseRunId, parseWhen, short, usd } from "./format.ts";
import { printable, type Output } from "./output.ts";
import { tableLines, type Column } from "./table.ts";

interface UsageFlags {
  readonly by: (typeof usageGroups)[number];
  readonly since: string;
  readonly until?: string;
  readonly tenant?: string;
  readonly run?: string;
}

const totals: Column<UsageTotals>[] = [
  { title: "CALLS", align: "right", value: ({ calls }) => String(calls) },
  { title: "TOOLS", align: "right", value: ({ tool_calls: calls }) => String(calls) },
  { title: "INPUT", align: "right", value: ({ input_tokens: tokens }) => short(tokens) },
  { title: "CACHED", align: "right", value: ({ cache_read_tokens: tokens }) => short(tokens) },
  { title: "OUTPUT", align: "right", value: ({ output_tokens: tokens }) => short(tokens) },
  { title: "COST", align: "right", value: ({ cost_usd_micros: cost }) => (cost === 0 ? "" : usd(cost)) },
];

export function addUsage(program: Command): void {
  addCommand(program, "usage", {
    summary: "show what runs have used",
    description:
      "Shows calls, tokens and cost by tenant, agent, model or day (UTC), of a time; or of one run with all that it has started. Failed and aborted calls count, replays do not. Deleted runs count with their whole days.",
    examples: [
      "usage --by tenant --since 24h",
      "usage --by model --since 2026-12-01T00:00:00Z --until 2027-01-01T00:00:00Z",
      "usage --by day --since 30d --tenant acme --json | jq '.usage[].cost_usd_micros'",
      "usage --run 0190…",
    ],
  })
    .addOption(new Option("--by <what>", "tenant, agent, model or day").choices([...usageGroups]).default("tenant"))
    .option("--since <when>", "a distance back from now (24h, 7d) or an ISO 8601 time with a zone", "24h")
    .option("--until <when>", "an ISO 8601 time with a zone (default: now)")
    .option("--tenant <name>", "only this tenant's")
    .option("--run <id>", "one run with all that it has started", (id) => {
      if (id === "") throw new InvalidArgumentError("must be a run id");
      return id;
    })
    .action(
      action(async (out, flags: UsageFlags) => {
        const runId = flags.run === undefined ? undefined : parseRunId(flags.run);
        if (runId !== undefined && (flags.tenant !== undefined || flags.until !== undefined)) throw usageError("--run stands alone");
        const since = sinceOf(flags.since);
        const until = flags.until === undefined ? undefined : parseWhen("--until", flags.until);
        return await withDatabase(out, async (database) =>
          runId === undefined
            ? await showGroups(out, database, { by: flags.by, since, ...(until === undefined ? {} : { until }), ...(flags.tenant === undefined ? {} : { tenant: flags.tenant }) })
            : await showTree(out, database, runId),
        );
      }),
    );
}

function sinceOf(text: string): Date {
  return /^\d/.test(text) && !text.includes("T") ? new Date(Date.now() - parseDuration("--since", text)) : parseWhen("--since", text);
}

async function showGroups(out: Output, { pool, named }: Database, filter: Parameters<UsageClient["by"]>[0]): Promise<number> {
  const rows = await new UsageClient(pool, named).by(filter);
  if (out.isJson) {
    await out.value({ by: filter.by, since: filter.since.toISOString(), until: filter.until?.toISOString() ?? null, usage: rows });
    return exitCodes.ok;
  }
  if (rows.length === 0) out.note("nothing was used in that time");
  else {
    const columns: Column<UsageRow>[] = [{ title: filter.by.toUpperCase(), value: ({ key }) => (key === "" ? "-" : printable(key)) }, ...totals];
    for (const line of tableLines(columns, rows, out.colors.bold)) await out.line(line);
  }
  return exitCodes.ok;
}

async function showTree(out: Output, { pool, named }: Database, runId: string): Promise<number> {
  const { total, runs, is_cut: isCut } = await new UsageClient(pool, named).ofTree(runId);
  if (out.isJson) {
    await out.value({ run_id: runId, total, runs, is_cut: isCut });
    return exitCodes.ok;
  }
  const columns: Column<RunUsage | UsageTotals>[] = [
    { title: "RUN", value: (row) => ("run_id" in row ? `${"  ".repeat(row.depth)}${row.run_id}` : "all of them") },
    { title: "AGENT", value: (row) => ("run_id" in row ? printable(row.agent) : "") },
    { title: "STATE", value: (row) => ("run_id" in row ? row.state : "") },
    ...totals,
  ];
  for (const line of tableLines(columns, runs.length > 1 ? [...runs, total] : runs, out.colors.bold)) await out.line(line);
  if (isCut) out.note(`only the first ${runs.length} runs of the tree`);
  return exitCodes.ok;
}
