import type { Command } from "commander";
import { RunsClient, type BulkFilter, type BulkResult } from "../client/bulk.ts";
import { ResultPoller } from "../client/result-poller.ts";
import type { RunStatus } from "../domain/run.ts";
import { CapstanError } from "../domain/error.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase, type Database } from "./database.ts";
import { exitCodes, usageError } from "./exit.ts";
import { parseCount, parseRunId, parseWhen } from "./format.ts";
import { printable, type Output } from "./output.ts";
import { runHandle } from "./run-client.ts";
import { tableLines, type Column } from "./table.ts";

interface WhereFlags {
  readonly tenant?: string;
  readonly agent?: string;
  readonly state?: string;
  readonly error?: string;
  readonly label?: string;
  readonly createdBefore?: string;
  readonly createdAfter?: string;
  readonly limit?: number;
  readonly all?: boolean;
  readonly yes?: boolean;
}

export function addRunsBulk(runs: Command): void {
  where(
    addCommand(runs, "retry", {
      summary: "start failed runs again from their last good place",
      description:
        "Starts failed or cancelled runs again, each as a run of its own that goes on from the last good event, and writes their ids. Runs are named, or chosen by what they have in common; then it only says which they would be until --yes is given, and each run is retried once however often this is done.",
      examples: [
        "runs retry 0190…",
        "runs retry --error PROVIDER_OVERLOADED --created-after 2026-12-01T00:00:00Z",
        "runs retry --error PROVIDER_OVERLOADED --yes",
        "runs retry --all --tenant acme --yes --json",
      ],
    }).argument("[run ids...]"),
  ).action(
    action(async (out, given: string[], flags: WhereFlags) => {
      const runIds = given.map(parseRunId);
      const filter = filterOf(runIds, flags);
      return await withDatabase(out, async (database) => {
        if (filter !== undefined) {
          const result = await bulk(database).retryAll(filter, { dryRun: flags.yes !== true, actor: "cli", signal: database.signal });
          return await report(out, result, "retried");
        }
        return await each(out, runIds, async (runId) => {
          const retry = await runHandle(database, runId).retry({ actor: "cli" });
          return { run_id: runId, outcome: "retried", retry_id: retry.id };
        });
      });
    }),
  );

  where(
    addCommand(runs, "cancel", {
      summary: "end runs and their descendants at once",
      description:
        "Ends runs and their descendants at once, whatever they do. A run that had ended already stays as it is. Runs are named, or chosen by what they have in common; then it only says which they would be until --yes is given.",
      examples: ["runs cancel 0190…", 'runs cancel 0190… 0191… --reason "wrong input"', "runs cancel --tenant acme --agent auditor", "runs cancel --label batch-7 --yes"],
    })
      .argument("[run ids...]")
      .option("--reason <text>", "recorded in the journal"),
  ).action(
    action(async (out, given: string[], flags: WhereFlags & { reason?: string }) => {
      const runIds = given.map(parseRunId);
      const filter = filterOf(runIds, flags);
      const reason = flags.reason;
      return await withDatabase(out, async (database) => {
        if (filter !== undefined) {
          const options = { dryRun: flags.yes !== true, actor: "cli", signal: database.signal, ...(reason === undefined ? {} : { reason }) };
          return await report(out, await bulk(database).cancelAll(filter, options), "cancelled");
        }
        return await each(out, runIds, async (runId) => ({
          run_id: runId,
          outcome: (await runHandle(database, runId).cancel(reason, { actor: "cli" })) ? "cancelled" : "had ended already",
        }));
      });
    }),
  );

  addCommand(runs, "failures", {
    summary: "count failed runs by their error's code",
    examples: ["runs failures", "runs failures --tenant acme --created-after 2026-12-01T00:00:00Z", "runs failures --json | jq '.failures[0]'"],
  })
    .option("--tenant <name>")
    .option("--agent <name>")
    .option("--created-after <when>", "an ISO 8601 time with a zone")
    .action(
      action(async (out, flags: { tenant?: string; agent?: string; createdAfter?: string }) => {
        const filter = {
          ...(flags.tenant === undefined ? {} : { tenant: flags.tenant }),
          ...(flags.agent === undefined ? {} : { agent: flags.agent }),
          ...(flags.createdAfter === undefined ? {} : { createdAfter: parseWhen("--created-after", flags.createdAfter) }),
        };
        return await withDatabase(out, async (database) => {
          const failures = await bulk(database).failures(filter);
          if (out.isJson) await out.value({ failures });
          else if (failures.length === 0) out.note("no failed runs");
          else for (const line of tableLines(columns, failures, out.colors.bold)) await out.line(line);
          return exitCodes.ok;
        });
      }),
    );
}

function where(command: Command): Command {
  return command
    .option("--tenant <name>")
    .option("--agent <name>")
    .option("--state <states>", "one or more, with commas")
    .option("--error <code>", "the error's code")
    .option("--label <label>")
    .option("--created-before <when>", "an ISO 8601 time with a zone")
    .option("--created-after <when>", "an ISO 8601 time with a zone")
    .option("--limit <n>", "the oldest so many", parseCount("--limit", { min: 1, max: 2_147_483_647 }))
    .option("--all", "all runs that it can be done to")
    .option("--yes", "do it; without this the runs are only counted");
}

/** Undefined when runs are named one by one. */
function filterOf(runIds: readonly string[], flags: WhereFlags): BulkFilter | undefined {
  const { tenant, agent, state, error, label, createdBefore, createdAfter, limit } = flags;
  const filter: BulkFilter = {
    ...(tenant === undefined ? {} : { tenant }),
    ...(agent === undefined ? {} : { agent }),
    ...(state === undefined ? {} : { states: state.split(",") as RunStatus[] }),
    ...(error === undefined ? {} : { errorCode: error }),
    ...(label === undefined ? {} : { label }),
    ...(createdBefore === undefined ? {} : { createdBefore: parseWhen("--created-before", createdBefore) }),
    ...(createdAfter === undefined ? {} : { createdAfter: parseWhen("--created-after", createdAfter) }),
    ...(limit === undefined ? {} : { limit }),
  };
  const chooses = Object.keys(filter).length > 0 || flags.all === true;
  if (runIds.length > 0 && chooses) throw usageError("give run ids, or what the runs have in common, and not both");
  if (runIds.length === 0 && !chooses) throw usageError("give run ids, or say what the runs have in common (--tenant, --agent, --error...), or --all");
  return runIds.length > 0 ? undefined : filter;
}

function bulk({ pool, named }: Database): RunsClient {
  return new RunsClient({ db: pool, named, poller: new ResultPoller(pool, named) });
}

async function report(out: Output, result: BulkResult, done: string): Promise<number> {
  if (out.isJson) await out.value(result);
  else {
    for (const { code, runs } of result.by_code) await out.line(`${String(runs).padStart(6)}  ${printable(code)}`);
    for (const id of result.dry_run ? result.first : result.run_ids) await out.line(id);
  }
  for (const { run_id, code, message } of result.refused) out.note(`${run_id}  ${code}: ${message}`);
  const unchanged = result.unchanged === 0 ? "" : `, ${result.unchanged} had ended meanwhile`;
  if (result.matched === 0) out.note("no such runs");
  else if (result.dry_run) out.note(`${result.matched} runs would be ${done}; --yes does it`);
  else out.note(`${result.done} of ${result.matched} runs ${done}${unchanged}${result.refused.length === 0 ? "" : `, ${result.refused.length} refused`}`);
  return result.refused.length > 0 ? exitCodes.failed : exitCodes.ok;
}

interface OneResult {
  readonly run_id: string;
  readonly outcome: "cancelled" | "had ended already" | "retried" | "refused";
  readonly retry_id?: string;
  readonly error?: { readonly code: string; readonly message: string };
}

/** One id that is wrong must not keep the others. */
async function each(out: Output, runIds: readonly string[], act: (runId: string) => Promise<OneResult>): Promise<number> {
  const results: OneResult[] = [];
  for (const runId of runIds) {
    try {
      results.push(await act(runId));
    } catch (error) {
      if (!(error instanceof CapstanError)) throw error;
      results.push({ run_id: runId, outcome: "refused", error: { code: error.code, message: error.message } });
    }
  }
  if (out.isJson) await out.value({ runs: results });
  for (const { run_id, outcome, retry_id, error } of results) {
    if (error !== undefined) out.note(`${error.code}: ${error.message}`);
    else if (!out.isJson) await out.line(retry_id === undefined ? `${run_id}  ${outcome}` : retry_id);
  }
  return results.some(({ error }) => error !== undefined) ? exitCodes.failed : exitCodes.ok;
}

const columns: readonly Column<{ code: string; runs: number; open: number; agents: readonly string[]; last_run_id: string; last_at: string }>[] = [
  { title: "ERROR", value: ({ code }) => printable(code) },
  { title: "RUNS", align: "right", value: ({ runs }) => String(runs) },
  { title: "NOT RETRIED", align: "right", value: ({ open }) => String(open) },
  { title: "AGENTS", value: ({ agents }) => printable(agents.join(", ")) },
  { title: "NEWEST", value: ({ last_run_id: id, last_at: at }) => `${id} ${at.slice(0, 19)}` },
];
