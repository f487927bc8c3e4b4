import type { Command } from "commander";
import { PauseClient } from "../client/pauses.ts";
import { waitReasons, type WaitReason } from "../domain/event.ts";
import { runStatuses, type RunStatus } from "../domain/run.ts";
import { listRuns, type RunFilter, type RunSummary } from "../store/run-list.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes, usageError } from "./exit.ts";
import { age, gauge, parseCount, parseRunId, short } from "./format.ts";
import type { Colors } from "./output.ts";
import { printable } from "./output.ts";
import { pausesOf, pauseText } from "./pause-text.ts";
import { tableLines, type Column } from "./table.ts";

interface ListFlags {
  readonly state?: string;
  readonly tenant?: string;
  readonly agent?: string;
  readonly limit: number;
  readonly before?: string;
}

export function addRunsList(runs: Command): void {
  addCommand(runs, "list", {
    summary: "list runs, newest first",
    examples: ["runs list", "runs list --state failed --agent researcher", "runs list --state awaiting_input", "runs list --json --limit 500 | jq '.runs[].id'"],
  })
    .option("--state <states>", `one or more, with commas: ${runStatuses.join(", ")}, open (not ended), or awaiting_<reason>`)
    .option("--tenant <name>")
    .option("--agent <name>")
    .option("--limit <n>", "runs on a page, 1 to 1000", parseCount("--limit", { min: 1, max: 1_000 }), 50)
    .option("--before <run id>", "the page after this one: only runs older than it")
    .action(
      action(async (out, flags: ListFlags) => {
        const filter: RunFilter = {
          limit: flags.limit,
          ...stateFilter(flags.state),
          ...(flags.tenant === undefined ? {} : { tenant: flags.tenant }),
          ...(flags.agent === undefined ? {} : { agent: flags.agent }),
          ...(flags.before === undefined ? {} : { before: parseRunId(flags.before) }),
        };
        return await withDatabase(out, async ({ pool, named }) => {
          const page = await listRuns(pool, named, filter);
          const tenants = new Set([...page.runs.map(({ tenant }) => tenant), ...(filter.tenant === undefined ? [] : [filter.tenant])]);
          const pauses = pausesOf(await new PauseClient(pool, named).list(), tenants);
          if (out.isJson) {
            await out.value({ ...page, pauses });
            return exitCodes.ok;
          }
          if (page.runs.length === 0) out.note("no runs");
          else for (const line of tableLines(columns(out.colors), page.runs, out.colors.bold)) await out.line(line);
          for (const pause of pauses) out.note(pauseText(pause));
          if (page.next_before !== null) out.note(`more: --before ${page.next_before}`);
          return exitCodes.ok;
        });
      }),
    );
}

export function stateFilter(text: string | undefined): Pick<RunFilter, "states" | "waitReason"> {
  if (text === undefined) return {};
  if (text === "open") return { states: ["queued", "running", "waiting"] };
  const reason = text.startsWith("awaiting_") ? text.slice("awaiting_".length) : undefined;
  if (reason !== undefined && (waitReasons as readonly string[]).includes(reason)) return { states: ["waiting"], waitReason: reason as WaitReason };
  const states = text.split(",");
  const strange = states.filter((state) => !(runStatuses as readonly string[]).includes(state));
  if (strange.length === 0) return { states: states as RunStatus[] };
  throw usageError(`--state ${strange.join(", ")}: use ${runStatuses.join(", ")}, open, or one of ${waitReasons.map((each) => `awaiting_${each}`).join(", ")}`);
}

/** A waiting run goes by what it waits for. */
export function stateName(run: Pick<RunSummary, "state" | "wait_reason" | "paused">): string {
  const name = run.state === "waiting" ? `awaiting_${run.wait_reason ?? "?"}` : run.state;
  return run.paused ? `${name} (paused)` : name;
}

export function colorState(colors: Colors, run: Pick<RunSummary, "state" | "wait_reason" | "paused">): string {
  const name = stateName(run);
  if (run.state === "completed") return colors.green(name);
  if (run.state === "failed" || run.state === "cancelled") return colors.red(name);
  return run.state === "waiting" ? colors.yellow(name) : colors.cyan(name);
}

function columns(colors: Colors): Column<RunSummary>[] {
  return [
    { title: "RUN", value: (run) => run.id },
    { title: "STATE", value: (run) => colorState(colors, run) },
    { title: "AGENT", value: (run) => printable(run.agent) },
    { title: "TENANT", value: (run) => printable(run.tenant) },
    { title: "TURN", align: "right", value: (run) => String(run.turn) },
    { title: "AGE", align: "right", value: (run) => age(run.created_at) },
    { title: "TOKENS", align: "right", value: (run) => short(run.input_tokens + run.output_tokens) },
    { title: "CONTEXT", value: (run) => `${gauge(run.context_tokens, run.context_window).replace(/^ctx /, "")}${["", " grows", " critical"][run.growth_level] ?? ""}` },
    { title: "ERROR", value: (run) => run.error_code ?? "" },
  ];
}
