import type { Command } from "commander";
import { ConversationsClient, type ConversationBudget, type ConversationView } from "../client/conversations.ts";
import { ResultPoller } from "../client/result-poller.ts";
import { toolOutputText } from "../domain/transcript/message.ts";
import { action, addCommand, addGroup } from "./command.ts";
import { withDatabase, type Database } from "./database.ts";
import { exitCodes, usageError } from "./exit.ts";
import { age, parseCount, parseDuration } from "./format.ts";
import { readInput, type InputForm } from "./input.ts";
import { showMessages } from "./message-text.ts";
import { printable } from "./output.ts";
import { readSettings, withSettings, type SettingFlags } from "./run-settings.ts";
import { factLines, tableLines, type Column } from "./table.ts";

const uuid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

export function addConversationCommands(program: Command): void {
  const group = addGroup(program, "conversations", "threads of runs: each message is answered by the next run");
  addCommand(group, "list", { summary: "list conversations, newest first", examples: ["conversations list", "conversations list --tenant acme --json"] })
    .option("--tenant <name>")
    .option("--agent <name>")
    .option("--limit <n>", "1 to 1000", parseCount("--limit", { min: 1, max: 1_000 }), 50)
    .option("--before <conversation id>", "only conversations older than it")
    .action(
      action(async (out, flags: { tenant?: string; agent?: string; limit: number; before?: string }) => {
        const options = { ...flags, ...(flags.before === undefined ? {} : { before: parseConversationId(flags.before) }) };
        return await withDatabase(out, async (database) => {
          const conversations = await clientOf(database).list(options);
          if (out.isJson) await out.value({ conversations });
          else if (conversations.length === 0) out.note("no conversations");
          else for (const line of tableLines(columns, conversations, out.colors.bold)) await out.line(line);
          return exitCodes.ok;
        });
      }),
    );

  addCommand(group, "create", {
    summary: "begin a conversation with an agent",
    examples: ["conversations create auditor", 'conversations create auditor --title "The ledger" --tenant acme'],
  })
    .argument("<agent>")
    .option("--tenant <name>", "whose it is (default: default)")
    .option("--title <text>")
    .option("--budget <tokens>", "carry it by a rolling summary from so many tokens on (at least 512)", parseCount("--budget", { min: 512, max: 2_147_483_647 }))
    .option("--summarizer <name>", "who writes that summary")
    .action(
      action(async (out, agent: string, { budget, summarizer, ...flags }: { tenant?: string; title?: string; budget?: number; summarizer?: string }) => {
        if (summarizer !== undefined && budget === undefined) throw usageError("--summarizer belongs to --budget");
        const kept: { budget?: ConversationBudget } = budget === undefined ? {} : { budget: { max_tokens: budget, ...(summarizer === undefined ? {} : { summarizer }) } };
        return await withDatabase(out, async (database) => {
          const { id } = await clientOf(database).create({ agent, ...flags, ...kept });
          if (out.isJson) await out.value({ conversation_id: id });
          else await out.line(id);
          return exitCodes.ok;
        });
      }),
    );

  addCommand(group, "show", { summary: "show a conversation and its messages", examples: ["conversations show 0190…", "conversations show 0190… --json | jq '.messages[-1]'"] })
    .argument("<conversation id>")
    .action(
      action(async (out, given: string) => {
        const id = parseConversationId(given);
        return await withDatabase(out, async (database) => {
          const conversation = clientOf(database).open(id);
          const view = await conversation.get();
          const runs = (await conversation.runs()).map((run) => run.id);
          const { messages } = await conversation.transcript();
          if (out.isJson) {
            await out.value({ ...view, run_ids: runs, messages });
            return exitCodes.ok;
          }
          for (const line of factLines(factsOf(view, runs), out.colors.dim)) await out.line(line);
          await out.line("");
          await showMessages(out, messages, 0);
          return exitCodes.ok;
        });
      }),
    );

  withSettings(
    addCommand(group, "send", {
      summary: "send the next message of a conversation",
      description:
        "Sends the next message of a conversation and writes the id of the run that answers it. Refused (CONVERSATION_BUSY, exit 1) while the last run is at work; an interactive run that waits for input takes the message itself. The input is given as to enqueue.",
      examples: ['conversations send 0190… "And in May?"', "conversations send 0190… @question.txt --wait", "conversations send 0190… - --idempotency-key mail-17"],
    }),
  )
    .argument("<conversation id>")
    .argument("<input>", "text, JSON, - or @file")
    .option("--text", "the input is text, even if it looks like JSON")
    .option("--as-json", "the input is JSON; anything else is refused")
    .option("--idempotency-key <key>", "sent again with the same key it is the same message")
    .option("--wait", "wait for the run's end and print the output")
    .option("--timeout <duration>", "how long --wait waits (30s, 10m); the run goes on")
    .action(
      action(async (out, given: string, content: string, flags: InputForm & SettingFlags & { idempotencyKey?: string; wait?: boolean; timeout?: string }) => {
        const id = parseConversationId(given);
        if (flags.timeout !== undefined && flags.wait !== true) throw usageError("--timeout belongs to --wait");
        const timeoutMs = flags.timeout === undefined ? undefined : parseDuration("--timeout", flags.timeout);
        const { compaction, budget: runBudget } = readSettings(flags);
        const settings = { ...(compaction === undefined ? {} : { compaction }), ...(runBudget === undefined ? {} : { runBudget }) };
        const input = await readInput(content, flags);
        return await withDatabase(out, async (database) => {
          const run = await clientOf(database)
            .open(id)
            .send(input, { actor: "cli", ...settings, ...(flags.idempotencyKey === undefined ? {} : { idempotencyKey: flags.idempotencyKey }) });
          if (flags.wait !== true) {
            if (out.isJson) await out.value({ run_id: run.id });
            else await out.line(run.id);
            return exitCodes.ok;
          }
          out.note(`run ${run.id}`);
          const output = await run.result({ signal: database.signal, ...(timeoutMs === undefined ? {} : { timeoutMs }) });
          if (out.isJson) await out.value({ run_id: run.id, output });
          else await out.line(printable(toolOutputText(output)));
          return exitCodes.ok;
        });
      }),
    );
}

function clientOf({ pool, named }: Database): ConversationsClient {
  return new ConversationsClient({ db: pool, named, poller: new ResultPoller(pool, named) });
}

function parseConversationId(text: string): string {
  if (uuid.test(text)) return text.toLowerCase();
  throw usageError(`${JSON.stringify(text)} is not a conversation's id; capstan conversations list shows them`);
}

function stateOf({ last_state: state, last_wait_reason: reason }: ConversationView): string {
  return state === "waiting" && reason !== undefined ? `awaiting_${reason}` : (state ?? "empty");
}

function factsOf(view: ConversationView, runs: readonly string[]): (readonly [string, string | undefined])[] {
  return [
    ["conversation", view.id],
    ["title", view.title === undefined ? undefined : printable(view.title)],
    ["agent", printable(view.agent)],
    ["tenant", printable(view.tenant)],
    ["state", stateOf(view)],
    ["budget", view.budget === undefined ? undefined : `${view.budget.max_tokens} tokens${view.budget.summarizer === undefined ? "" : `, ${printable(view.budget.summarizer)}`}`],
    ["runs", runs.join(" ")],
  ];
}

const columns: readonly Column<ConversationView>[] = [
  { title: "CONVERSATION", value: ({ id }) => id },
  { title: "STATE", value: stateOf },
  { title: "AGENT", value: ({ agent }) => printable(agent) },
  { title: "TENANT", value: ({ tenant }) => printable(tenant) },
  { title: "RUNS", align: "right", value: ({ runs }) => String(runs) },
  { title: "AGE", align: "right", value: ({ created_at: at }) => age(at) },
  { title: "TITLE", value: ({ title }) => printable(title ?? "") },
];
