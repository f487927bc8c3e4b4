import type { Command } from "commander";
import { createAgents } from "../client/agents.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes } from "./exit.ts";

export function addAgentsAct(agents: Command): void {
  addCommand(agents, "promote", {
    summary: "choose the definition that runs enqueued by name get",
    description: "Chooses the definition that runs enqueued by name get from now on. Runs that are there keep theirs. Going back is promoting the older one.",
    examples: ["agents promote auditor 3f2a91bc", "agents promote auditor sha256:3f2a91bc…"],
  })
    .argument("<name>")
    .argument("<sha>", "its first 8 hex digits are enough while they are its alone")
    .action(
      action(async (out, name: string, given: string) =>
        withDatabase(out, async ({ pool, named }) => {
          const { sha, changed } = await createAgents(pool, named).promote(name, given, { actor: "cli" });
          if (out.isJson) await out.value({ name, sha, changed });
          else await out.line(changed ? `${name} is ${sha} now` : `${name} was ${sha} already`);
          return exitCodes.ok;
        }),
      ),
    );

  addRetirement(agents, "retire", {
    summary: "start no more runs by an agent's name",
    description: "Starts no more runs by an agent's name: enqueuing by it is refused. Runs that are there go on, and a deploy does not bring it back; agents unretire does.",
    isRetired: true,
  });
  addRetirement(agents, "unretire", { summary: "let runs be started by a retired agent's name again", isRetired: false });
}

interface Retirement {
  readonly summary: string;
  readonly description?: string;
  readonly isRetired: boolean;
}

function addRetirement(agents: Command, verb: "retire" | "unretire", { isRetired, ...texts }: Retirement): void {
  addCommand(agents, verb, { ...texts, examples: [`agents ${verb} auditor`] })
    .argument("<name>")
    .action(
      action(async (out, name: string) =>
        withDatabase(out, async ({ pool, named }) => {
          const changed = await createAgents(pool, named)[verb](name, { actor: "cli" });
          if (out.isJson) await out.value({ name, retired: isRetired, changed });
          else await out.line(`${name} ${changed ? "is" : "was"} ${isRetired ? "retired" : "not retired"}${changed ? " now" : " already"}`);
          return exitCodes.ok;
        }),
      ),
    );
}
