import type { Command } from "commander";
import { WaitClient, type WaitView } from "../client/waits.ts";
import { canonicalJson } from "../domain/json.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes } from "./exit.ts";
import { age, parseWaitId } from "./format.ts";
import { printable } from "./output.ts";
import { factLines } from "./table.ts";
import { commandFor, expiryText } from "./wait-text.ts";

export function addApprovalsShow(approvals: Command): void {
  addCommand(approvals, "show", {
    summary: "show one of them in full, and what became of it",
    examples: ["approvals show 0f3c…", "approvals show 0f3c… --json | jq .detail.input"],
  })
    .argument("<id>")
    .action(
      action(async (out, given: string) => {
        const id = parseWaitId(given);
        return await withDatabase(out, async ({ pool, named }) => {
          const wait = await new WaitClient(pool, named).get(id);
          if (out.isJson) await out.value(wait);
          else for (const line of lines(wait, out.colors.dim)) await out.line(line);
          return exitCodes.ok;
        });
      }),
    );
}

function lines(wait: WaitView, style: (text: string) => string): string[] {
  const { id, kind, agent, tenant, name, run_id: runId, turn, requested_at: asked, expires_at: expires, detail } = wait;
  const isOpen = wait.answered_at === undefined && wait.settled_at === undefined;
  const facts = factLines(
    [
      ["id", id],
      ["kind", kind],
      ["agent", printable(agent)],
      ["tenant", printable(tenant)],
      ["tool", printable(name)],
      ["run", `${runId} (turn ${turn})`],
      ["asked", `${asked} (${age(asked)} ago)`],
      ["expires", expires === undefined ? undefined : `${expires}${isOpen ? ` (${expiryText(wait)})` : ""}`],
      ["answered", wait.answered_at === undefined ? undefined : `${wait.answered_at}${wait.answered_by === undefined ? "" : ` by ${printable(wait.answered_by)}`}`],
      ["answer", wait.answer === undefined ? undefined : printable(canonicalJson(wait.answer))],
      ["over", wait.settled_at],
      ["to decide", isOpen ? commandFor(wait) : undefined],
    ],
    style,
  );
  return [...facts, "", ...askedLines(kind, detail)];
}

function askedLines(kind: WaitView["kind"], detail: WaitView["detail"]): string[] {
  if (kind === "approval") return [printable(JSON.stringify(detail["input"], undefined, 2))];
  if (kind !== "question") return [printable(canonicalJson(detail))];
  const options = (detail["options"] ?? []) as readonly string[];
  const schema = detail["schema"];
  return [
    printable(detail["question"] as string),
    ...options.map((option) => `  - ${printable(option)}`),
    ...(schema === undefined ? [] : ["", `the answer has to fit ${printable(canonicalJson(schema))}`]),
  ];
}
