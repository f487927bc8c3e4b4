/** Makes the summaries of compactions, and nothing else. */
export const SUMMARIZE_POOL = "summarize";

/** One graphile-worker task per pool and agent: a worker is handed only jobs of agents that it has. */
export function taskName(pool: string, agent: string): string {
  return `capstan/${pool}/${agent}`;
}
