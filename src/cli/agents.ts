import type { Command } from "commander";
import { listAgents, type AgentSummary } from "../store/agent-list.ts";
import { addAgentsAct } from "./agents-act.ts";
import { addAgentsFork } from "./agents-fork.ts";
import { addAgentsHistory } from "./agents-history.ts";
import { addAgentsShow } from "./agents-show.ts";
import { action, addCommand, addGroup } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes } from "./exit.ts";
import { age } from "./format.ts";
import { tableLines, type Column } from "./table.ts";

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
  addAgentsShow(agents);
  addAgentsFork(agents);
  addAgentsAct(agents);
  addAgentsHistory(agents);
}
