import type { Command } from "commander";
import { agentDetail, listAgents, type AgentSummary } from "../store/agent-list.ts";
import { action, addCommand, addGroup } from "./command.ts";
import { withDatabase } from "./database.ts";
import { CliError, exitCodes } from "./exit.ts";
import { age } from "./format.ts";
import { factLines, tableLines, type Column } from "./table.ts";

const columns: Column<AgentSummary>[] = [
  { title: "AGENT", value: (agent) => `${agent.name}${agent.retired ? " (retired)" : ""}` },
  { title: "MODEL", value: (agent) => agent.model },
  { title: "TOOLS", align: "right", value: (agent) => String(agent.tools) },
  { title: "WORKERS", align: "right", value: (agent) => String(agent.workers) },
  { title: "OPEN RUNS", align: "right", value: (agent) => String(agent.open_runs) },
  { title: "VERSIONS", align: "right", value: (agent) => String(agent.versions) },
  { title: "PROMOTED", value: (agent) => `${agent.promoted_sha.slice(0, 19)} ${age(agent.updated_at)} ago` },
];

export function addAgentCommands(program: Command): void {
  const agents = addGroup(program, "agents", "what agents the database knows");
  addCommand(agents, "list", { summary: "list agents with their models, workers and open runs", examples: ["agents list", "agents list --json"] }).action(
    action(async (out) =>
      withDatabase(out, async ({ pool, named }) => {
        const rows = await listAgents(pool, named);
        if (out.isJson) await out.value({ agents: rows });
        else if (rows.length === 0) out.note("no agents yet: a worker that starts brings its own");
        else for (const line of tableLines(columns, rows, out.colors.bold)) await out.line(line);
        return exitCodes.ok;
      }),
    ),
  );

  addCommand(agents, "show", { summary: "show an agent's promoted definition and its history", examples: ["agents show auditor", "agents show auditor --json | jq .definition"] })
    .argument("<name>")
    .action(
      action(async (out, name: string) =>
        withDatabase(out, async ({ pool, named }) => {
          const agent = await agentDetail(pool, named, name);
          if (agent === undefined) throw new CliError("AGENT_UNKNOWN", `no agent ${JSON.stringify(name)}; capstan agents list shows those there are`);
          if (out.isJson) {
            await out.value(agent);
            return exitCodes.ok;
          }
          const states = Object.entries(agent.runs_by_state).map(([state, n]) => `${n} ${state}`);
          const facts = factLines(
            [
              ["agent", `${agent.name}${agent.retired ? " (retired)" : ""}`],
              ["model", agent.model],
              ["promoted", `${agent.promoted_sha} (${agent.updated_at.toISOString()})`],
              ["versions", String(agent.versions)],
              ["workers", String(agent.workers)],
              ["runs", states.length === 0 ? "none" : states.join(", ")],
            ],
            out.colors.dim,
          );
          for (const line of facts) await out.line(line);
          await out.line(`\n${JSON.stringify(agent.definition, null, 2)}`);
          if (agent.promotions.length > 1)
            await out.line(`\n${agent.promotions.map(({ sha, at, actor }) => `${at.slice(0, 19)}  ${sha.slice(0, 19)}  ${actor ?? ""}`.trimEnd()).join("\n")}`);
          return exitCodes.ok;
        }),
      ),
    );
}
