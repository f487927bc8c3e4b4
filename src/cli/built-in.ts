/** The agents that come with Capstan. */
import { join } from "node:path";
import type { Agent } from "../agents/agent.ts";
import { auditorAgent } from "../agents/auditor.ts";
import type { Config } from "../config.ts";

/** `auditor` reads the folder that the worker was started in. */
export function builtInAgents(config: Config, env: NodeJS.ProcessEnv): Agent[] {
  return [auditorAgent({ reportsDir: join(config.dir, "reports"), env })];
}
