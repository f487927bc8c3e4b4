/** The demo's three auditors: one with nothing but the growth warning, one compacted in the background, one that compacts itself. */
import type { Agent } from "../../agents/agent.ts";
import { AUDIT_SUMMARIZER, auditSummarizer } from "../../providers/offline/auditor/summarizer.ts";
import { auditorAgent, auditorModel, type AuditInput } from "../../agents/auditor.ts";
import type { CapstanOptions } from "../../main.ts";

export const WARNED = "auditor" as const;
export const COMPACTED = "auditor-compacted" as const;
export const SELF_COMPACTED = "auditor-self" as const;
export type DemoAgentName = typeof WARNED | typeof COMPACTED | typeof SELF_COMPACTED;

/** Half of the default warning: the compacted run never comes near it. */
const AFTER_BYTES = 128 * 1024;
/** For the offline model, which has no window of its own: so that its gauge has something to show. */
const SHOWN_WINDOW = 60_000;

export interface DemoPlaces {
  readonly root: string;
  readonly reportsDir: string;
}

export function demoAgents(places: DemoPlaces): Record<DemoAgentName, Agent<AuditInput, string>> {
  // A real model's summary is written by a model; the offline auditor goes on from what its own summarizer noted.
  const summarizer = isOffline() ? { summarizer: AUDIT_SUMMARIZER } : {};
  return {
    [WARNED]: auditorAgent(places),
    [COMPACTED]: auditorAgent({ ...places, name: COMPACTED, compaction: { after_bytes: AFTER_BYTES, keep_last_n: 2, ...summarizer } }),
    [SELF_COMPACTED]: auditorAgent({ ...places, name: SELF_COMPACTED, selfCompacting: true, compaction: { autocompact_at_pct: 50, keep_last_n: 2, ...summarizer } }),
  };
}

export function demoOptions(places: DemoPlaces): Pick<CapstanOptions, "agents" | "summarizers" | "models"> {
  return {
    agents: Object.values(demoAgents(places)),
    summarizers: { [AUDIT_SUMMARIZER]: auditSummarizer },
    ...(isOffline() ? { models: { windows: { [auditorModel(process.env)]: SHOWN_WINDOW } } } : {}),
  };
}

function isOffline(): boolean {
  return auditorModel(process.env).startsWith("offline:");
}
