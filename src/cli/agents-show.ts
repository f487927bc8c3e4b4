import type { Command } from "commander";
import { createAgents } from "../client/agents.ts";
import { fieldsWithoutEffect } from "../domain/compaction/inherit.ts";
import type { AgentDefinition } from "../domain/definition.ts";
import { agentDetail, type AgentDetail } from "../store/agent-list.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase } from "./database.ts";
import { CliError, exitCodes } from "./exit.ts";
import type { Output } from "./output.ts";
import { factLines } from "./table.ts";

export function addAgentsShow(agents: Command): void {
  addCommand(agents, "show", {
    summary: "show an agent's promoted definition and its history",
    examples: ["agents show auditor", "agents show auditor --at 3f2a91bc", "agents show auditor --json | jq .definition"],
  })
    .argument("<name>")
    .option("--at <sha>", "show this definition instead of the promoted one")
    .action(
      action(async (out, name: string, { at }: { at?: string }) =>
        withDatabase(out, async ({ pool, named }) => {
          if (at !== undefined) {
            const stored = await createAgents(pool, named).get(at, { agent: name });
            if (out.isJson) await out.value({ ...stored, without_effect: fieldsWithoutEffect(stored.definition.compaction) });
            else {
              const created: Fact = ["stored", stored.created_at.toISOString()];
              await showDefinition(out, stored.definition, [["agent", name], ["definition", `${stored.sha}${stored.promoted ? " (promoted)" : ""}`], created]);
            }
            return exitCodes.ok;
          }
          const agent = await agentDetail(pool, named, name);
          if (agent === undefined) throw new CliError("AGENT_UNKNOWN", `no agent ${JSON.stringify(name)}; capstan agents list shows those there are`);
          const definition = agent.definition as unknown as AgentDefinition;
          if (out.isJson) await out.value({ ...agent, without_effect: fieldsWithoutEffect(definition.compaction) });
          else {
            await showDefinition(out, definition, factsOf(agent));
            if (agent.promotions.length > 1) await out.line(`\n${agent.promotions.map(promotionLine).join("\n")}`);
          }
          return exitCodes.ok;
        }),
      ),
    );
}

type Fact = readonly [name: string, value: string | undefined];

function factsOf(agent: AgentDetail): Fact[] {
  const states = Object.entries(agent.runs_by_state).map(([state, n]) => `${n} ${state}`);
  return [
    ["agent", `${agent.name}${agent.retired ? " (retired)" : ""}`],
    ["model", agent.model],
    ["promoted", `${agent.promoted_sha} (${agent.updated_at.toISOString()})`],
    ["versions", String(agent.versions)],
    ["workers", String(agent.workers)],
    ["runs", states.length === 0 ? "none" : states.join(", ")],
  ];
}

const promotionLine = ({ sha, at, actor }: AgentDetail["promotions"][number]): string => `${at.slice(0, 19)}  ${sha.slice(0, 19)}  ${actor ?? ""}`.trimEnd();

async function showDefinition(out: Output, definition: AgentDefinition, facts: readonly Fact[]): Promise<void> {
  for (const line of factLines(facts, out.colors.dim)) await out.line(line);
  // Set and yet of no use: whoever reads the policy below should not wonder.
  for (const { field, reason } of fieldsWithoutEffect(definition.compaction)) await out.line(`compaction.${field} has no effect: it ${reason}`);
  await out.line(`\n${JSON.stringify(definition, null, 2)}`);
}
