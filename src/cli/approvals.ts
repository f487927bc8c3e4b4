import type { Command } from "commander";
import { WaitClient, type WaitFilter, type WaitView } from "../client/waits.ts";
import { addApprovalsDecide } from "./approvals-decide.ts";
import { addApprovalsShow } from "./approvals-show.ts";
import { action, addCommand, addGroup } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes } from "./exit.ts";
import { age, parseCount, parseRunId } from "./format.ts";
import { printable } from "./output.ts";
import { tableLines, type Column } from "./table.ts";
import { askedText, expiryText } from "./wait-text.ts";

const ASKED_CHARS = 60;
const everyKind: readonly WaitView["kind"][] = ["approval", "question", "signal", "timer", "children", "completion"];

const columns: Column<WaitView>[] = [
  { title: "ID", value: ({ id }) => id },
  { title: "KIND", value: ({ kind }) => kind },
  { title: "AGENT", value: ({ agent, tenant }) => printable(tenant === "default" ? agent : `${tenant}/${agent}`) },
  { title: "TOOL", value: ({ name }) => printable(name) },
  { title: "ASKED", value: (wait) => askedText(wait, ASKED_CHARS) },
  { title: "AGE", align: "right", value: ({ requested_at: at }) => age(at) },
  { title: "EXPIRES", value: (wait) => expiryText(wait) },
  { title: "RUN", value: ({ run_id: id }) => id },
];

interface ListFlags {
  readonly tenant?: string;
  readonly run?: string;
  readonly allKinds?: boolean;
  readonly limit: number;
  readonly after?: string;
}

export function addApprovalCommands(program: Command): void {
  const approvals = addGroup(program, "approvals", "what agents ask people: calls to approve, questions to answer");
  addCommand(approvals, "list", {
    summary: "list calls that wait for a person",
    description: "Lists calls that wait for a person: approvals and questions, by id. With --all-kinds also what waits for signals, times, children and completions.",
    examples: ["approvals list", "approvals list --tenant acme --json | jq -r '.waits[].id'", "approvals list --run 0190… --all-kinds"],
  })
    .option("--tenant <name>")
    .option("--run <run id>", "only this run's")
    .option("--all-kinds", "whatever calls wait for, not only what a person can decide")
    .option("--limit <n>", "at most this many, 1 to 1000", parseCount("--limit", { min: 1, max: 1_000 }), 100)
    .option("--after <id>", "the page after this one")
    .action(
      action(async (out, { tenant, run, allKinds, limit, after }: ListFlags) => {
        const filter: WaitFilter = {
          limit,
          ...(tenant === undefined ? {} : { tenant }),
          ...(run === undefined ? {} : { runId: parseRunId(run) }),
          ...(allKinds === true ? { kinds: everyKind } : {}),
          ...(after === undefined ? {} : { after }),
        };
        return await withDatabase(out, async ({ pool, named }) => {
          const waits = await new WaitClient(pool, named).list(filter);
          if (out.isJson) await out.value({ waits });
          else if (waits.length === 0) out.note("nobody is waited for");
          else for (const line of tableLines(columns, waits, out.colors.bold)) await out.line(line);
          if (!out.isJson && waits.length === limit) out.note(`there may be more: --after ${waits.at(-1)?.id}`);
          return exitCodes.ok;
        });
      }),
    );
  addApprovalsShow(approvals);
  addApprovalsDecide(approvals);
}
