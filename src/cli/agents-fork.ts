import type { Command } from "commander";
import { createAgents } from "../client/agents.ts";
import { readOverlay, type OverlayFlags } from "./agents-overlay.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { changeLines } from "./definition-text.ts";
import { exitCodes } from "./exit.ts";

const collect = (value: string, before: string[]): string[] => [...before, value];

export function addAgentsFork(agents: Command): void {
  addCommand(agents, "fork", {
    summary: "store a changed definition of an agent",
    description:
      "Stores a changed definition of an agent, and writes its sha. Nothing uses it until it is promoted. Groups (compaction, limits, settings...) are changed field by field, lists and JSON Schemas are replaced, --unset removes a field. tools lists the names of those that are kept: a fork can drop tools and grants, not add them.",
    examples: [
      "agents fork auditor --set compaction.autocompact_at_pct=70 --unset compaction.model",
      'agents fork auditor --at 3f2a91bc --set \'tools=["list_folder","read_file"]\' --promote',
      "agents fork auditor --overlay shorter.json --json | jq -r .sha",
    ],
  })
    .argument("<name>")
    .option("--at <sha>", "fork this definition instead of the promoted one")
    .option("--set <field=value>", "change a field (may be repeated); the value is JSON, or text where it is none", collect, [] as string[])
    .option("--unset <field>", "remove a field (may be repeated)", collect, [] as string[])
    .option("--overlay <file>", "JSON object of fields to change, null removes one; - is standard input")
    .option("--promote", "runs enqueued by name get it from now on")
    .action(
      action(async (out, name: string, flags: OverlayFlags & { at?: string; promote?: boolean }) => {
        const overlay = await readOverlay(flags);
        return await withDatabase(out, async ({ pool, named }) => {
          const client = createAgents(pool, named);
          const base = await (flags.at === undefined ? client.get(name) : client.get(flags.at, { agent: name }));
          const fork = await client.fork(base.sha, overlay, { promote: flags.promote === true, actor: "cli" });
          const changes = await client.diff(base.sha, fork.sha);
          if (out.isJson) {
            await out.value({
              name: base.name,
              sha: fork.sha,
              created: fork.created,
              promoted: flags.promote === true,
              forked_from: base.sha,
              changes,
              definition: fork.definition,
            });
            return exitCodes.ok;
          }
          await out.line(fork.sha);
          for (const line of changeLines(changes, out.colors)) out.note(line);
          if (fork.sha === base.sha) out.note("nothing is different: this is the definition that was forked");
          else if (!fork.created) out.note("a definition with this content was there already");
          if (flags.promote !== true) out.note(`runs enqueued by name get it once it is promoted: capstan agents promote ${base.name} ${fork.sha.slice(7, 19)}`);
          return exitCodes.ok;
        });
      }),
    );
}
