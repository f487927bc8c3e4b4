import type { Command } from "commander";
import { createAgents, type Agents, type HistoryEntry } from "../client/agents.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { changeLines } from "./definition-text.ts";
import { CliError, exitCodes } from "./exit.ts";
import { parseCount } from "./format.ts";
import { printable } from "./output.ts";
import { tableLines, type Column } from "./table.ts";

const columns: Column<HistoryEntry>[] = [
  { title: "AT", value: ({ at }) => at.toISOString().slice(0, 19) },
  { title: "WHAT", value: ({ what }) => what },
  { title: "SHA", value: ({ sha }) => sha?.slice(0, 19) ?? "" },
  { title: "BY", value: ({ actor }) => printable(actor ?? "") },
];

export function addAgentsHistory(agents: Command): void {
  addCommand(agents, "history", {
    summary: "list an agent's definitions and promotions, newest first",
    examples: ["agents history auditor", "agents history auditor --limit 5 --json"],
  })
    .argument("<name>")
    .option("--limit <n>", "at most this many lines (default 100)", parseCount("--limit", { min: 1, max: 10_000 }))
    .action(
      action(async (out, name: string, { limit = 100 }: { limit?: number }) =>
        withDatabase(out, async ({ pool, named }) => {
          const entries = await createAgents(pool, named).history(name, { limit });
          if (out.isJson) await out.value({ name, history: entries });
          else for (const line of tableLines(columns, entries, out.colors.bold)) await out.line(line);
          return exitCodes.ok;
        }),
      ),
    );

  addCommand(agents, "diff", {
    summary: "compare two definitions of an agent",
    description: "Compares two definitions of an agent field by field. Without shas: the one promoted before with the promoted one; with one sha: that one with the promoted one.",
    examples: ["agents diff auditor", "agents diff auditor 3f2a91bc", "agents diff auditor 3f2a91bc 77c01d2e --json"],
  })
    .argument("<name>")
    .argument("[before]", "sha")
    .argument("[after]", "sha")
    .action(
      action(async (out, name: string, before?: string, after?: string) =>
        withDatabase(out, async ({ pool, named }) => {
          const client = createAgents(pool, named);
          const now = await (after === undefined ? client.get(name) : client.get(after, { agent: name }));
          const then = before === undefined ? await promotedBefore(client, name, now.sha) : (await client.get(before, { agent: name })).sha;
          const changes = await client.diff(then, now.sha);
          if (out.isJson) await out.value({ name, before: then, after: now.sha, changes });
          else {
            out.note(`${then.slice(0, 19)} → ${now.sha.slice(0, 19)}${changes.length === 0 ? ": no difference" : ""}`);
            for (const line of changeLines(changes, out.colors)) await out.line(line);
          }
          return exitCodes.ok;
        }),
      ),
    );

  addCommand(agents, "verify", {
    summary: "check that stored definitions still have their sha",
    description:
      "Computes the sha of every stored definition, or of one agent's, from its content. A difference means that a row was changed past Capstan: runs pinned to it would not be what they say.",
    examples: ["agents verify", "agents verify auditor --json"],
  })
    .argument("[name]")
    .action(
      action(async (out, name?: string) =>
        withDatabase(out, async ({ pool, named }) => {
          const definitions = await createAgents(pool, named).verifyAll(name);
          const bad = definitions.filter(({ matches }) => !matches);
          if (out.isJson) await out.value({ ok: bad.length === 0, definitions });
          else {
            for (const { sha, name: agent, computed } of bad) await out.line(`${agent}  ${sha}  its content has ${computed}`);
            out.note(`${definitions.length - bad.length} of ${definitions.length} definitions are what their sha says`);
          }
          return bad.length === 0 ? exitCodes.ok : exitCodes.verifyDiffers;
        }),
      ),
    );
}

async function promotedBefore(client: Agents, name: string, sha: string): Promise<string> {
  const earlier = (await client.history(name, { limit: 10_000 })).find((entry) => entry.what === "promoted" && entry.sha !== sha);
  if (earlier === undefined || earlier.sha === null)
    throw new CliError("DEFINITION_UNKNOWN", `agent ${name} has had no other promoted definition; name one: capstan agents diff ${name} <sha>`);
  return earlier.sha;
}
