import type { Command } from "commander";
import { WaitClient } from "../client/waits.ts";
import type { JsonObject } from "../domain/json.ts";
import { actorName } from "./actor.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes, usageError } from "./exit.ts";
import { parseWaitId } from "./format.ts";
import { readInput, type InputForm } from "./input.ts";
import type { Output } from "./output.ts";

export function addApprovalsDecide(approvals: Command): void {
  addCommand(approvals, "approve", {
    summary: "let a call be made",
    description: "Lets a call be made, as the model wrote it or with other arguments. The first decision counts; a later one is refused with WAIT_DECIDED.",
    examples: ["approvals approve 0f3c…", `approvals approve 0f3c… --input '{"amount": 3}' --reason "not more than that"`, "approvals approve 0f3c… --input @edited.json"],
  })
    .argument("<id>")
    .option("--input <json>", "arguments to use instead of the model's own: JSON, - or @file")
    .option("--reason <text>", "recorded in the journal")
    .action(
      action(async (out, id: string, { input: given, reason }: { input?: string; reason?: string }) => {
        const input = given === undefined ? undefined : await readArguments(given);
        return await decide(out, id, "approved", (waits, waitId) => waits.approve(waitId, { ...by(reason), ...(input === undefined ? {} : { input }) }));
      }),
    );

  addCommand(approvals, "deny", {
    summary: "keep a call from being made",
    description: "Keeps a call from being made. The run goes on: the model reads that it was not approved, and the reason.",
    examples: ['approvals deny 0f3c… --reason "ask the customer first"'],
  })
    .argument("<id>")
    .option("--reason <text>", "the model reads it")
    .action(action(async (out, id: string, { reason }: { reason?: string }) => decide(out, id, "denied", (waits, waitId) => waits.deny(waitId, by(reason)))));

  addCommand(approvals, "answer", {
    summary: "answer a question",
    description: "Answers a question. The answer is given as an input to enqueue; one that does not fit what was asked for is refused and the question stays.",
    examples: ["approvals answer 0f3c… blue", `approvals answer 0f3c… '{"n": 3}'`, "approvals answer 0f3c… 42 --as-json"],
  })
    .argument("<id>")
    .argument("<answer>", "text, JSON, - or @file")
    .option("--text", "the answer is text, even if it looks like JSON")
    .option("--as-json", "the answer is JSON; anything else is refused")
    .action(
      action(async (out, id: string, given: string, form: InputForm) => {
        const answer = await readInput(given, form);
        return await decide(out, id, "answered", (waits, waitId) => waits.answer(waitId, answer, { actor: actorName() }));
      }),
    );

  addCommand(approvals, "decline", { summary: "tell a run that nobody will answer its question", examples: ["approvals decline 0f3c…"] })
    .argument("<id>")
    .action(action(async (out, id: string) => decide(out, id, "declined", (waits, waitId) => waits.decline(waitId, { actor: actorName() }))));
}

function by(reason: string | undefined): { readonly actor: string; readonly reason?: string } {
  return { actor: actorName(), ...(reason === undefined ? {} : { reason }) };
}

async function readArguments(given: string): Promise<JsonObject> {
  const input = await readInput(given, { asJson: true });
  if (typeof input === "object" && input !== null && !Array.isArray(input)) return input as JsonObject;
  throw usageError("--input: give a JSON object, the arguments to use instead");
}

async function decide(out: Output, given: string, what: string, act: (waits: WaitClient, id: string) => Promise<void>): Promise<number> {
  const id = parseWaitId(given);
  return await withDatabase(out, async ({ pool, named }) => {
    await act(new WaitClient(pool, named), id);
    if (out.isJson) await out.value({ id, outcome: what });
    else await out.line(`${id}  ${what}`);
    return exitCodes.ok;
  });
}
