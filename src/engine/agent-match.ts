/** Whether this worker's code can run a stored definition: by agent and tool names, and what a tool takes and does. */
import type { AgentDefinition } from "../domain/definition.ts";
import { canonicalJson } from "../domain/json.ts";
import { isMcpName } from "../domain/mcp-name.ts";
import type { AgentCode } from "./code.ts";

/** What is missing or does not fit, in words; undefined when all fits. Prompts, models and limits may differ freely: the stored ones count. */
export function mismatch(definition: AgentDefinition, code: AgentCode): string | undefined {
  const problems: string[] = [];
  for (const stored of definition.tools) {
    // The stored ones count here too: what its server says now is looked at when a tool is called.
    if (isMcpName(stored.name)) {
      if (code.remote?.toolOf(stored) === undefined) problems.push(`tool ${stored.name} is of an MCP server that the agent does not have here`);
      continue;
    }
    const here = code.tools.get(stored.name)?.definition;
    if (here === undefined) problems.push(`tool ${stored.name} is missing`);
    else if (here.effect !== stored.effect) problems.push(`tool ${stored.name} is ${here.effect} in code, ${stored.effect} in the definition`);
    else if (canonicalJson(here.input_schema) !== canonicalJson(stored.input_schema)) problems.push(`tool ${stored.name} takes another input in code than in the definition`);
  }
  return problems.length === 0 ? undefined : problems.join("; ");
}
