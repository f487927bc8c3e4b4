/**
 * Says once that a transcript grows without compaction (G1 to G6 of the specification). It reads counters and writes
 * nothing: journal and requests are the same bytes with the warning on, off, or thrown by its sink.
 */
import { CRITICAL_TRANSCRIPT_BYTES, warnThreshold, isCritical, type GrowthNumbers } from "../domain/growth.ts";
import type { AgentDefinition } from "../domain/definition.ts";
import type { JsonObject } from "../domain/json.ts";
import type { Log, WarnSink } from "./ports.ts";

export const GROWTH_WARNING_CODE = "CAPSTAN_STATE_GROWTH";

export interface GrowthFacts {
  readonly runId: string;
  readonly agent: string;
  readonly turn: number;
  readonly definition: AgentDefinition;
  readonly before: GrowthNumbers;
  readonly after: GrowthNumbers;
  /** The lease came from a worker that died: it may have crossed and not lived to say so (G6). */
  readonly takenOver: boolean;
  readonly agentSink: WarnSink | undefined;
  readonly appSink: WarnSink | undefined;
  readonly log: Log;
}

/** Whether this commit made the counter pass the threshold: a pure function of journaled content (G5). */
export function crosses(definition: AgentDefinition, beforeBytes: number, afterBytes: number): boolean {
  const threshold = warnThreshold(definition);
  return threshold !== undefined && beforeBytes <= threshold && afterBytes > threshold;
}

export function warnOfGrowth(facts: GrowthFacts): void {
  const { definition, before, after, takenOver, log, runId, turn } = facts;
  const threshold = warnThreshold(definition);
  const isAbove = threshold !== undefined && after.transcriptBytes > threshold;
  if (isAbove && (takenOver || before.transcriptBytes <= threshold)) emit(facts, threshold);
  if (isCritical(after) && (takenOver || !isCritical(before))) {
    log.warn({ runId, turn, code: "STATE_GROWTH_CRITICAL", ...after }, "run is near the limits of its context window or of what its journal should hold");
  }
}

/** Exactly one sink: the agent's, else the application's, else the process's warning. */
function emit(facts: GrowthFacts, thresholdBytes: number): void {
  const { runId, agent, turn, after, agentSink, appSink, log } = facts;
  const text = warningText(facts, thresholdBytes);
  const detail: JsonObject = { code: GROWTH_WARNING_CODE, run_id: runId, agent, turn, transcript_bytes: after.transcriptBytes, threshold_bytes: thresholdBytes };
  const sink = agentSink ?? appSink;
  if (sink === undefined) {
    process.emitWarning(text, { type: "CapstanWarning", code: GROWTH_WARNING_CODE });
    return;
  }
  const failed = (error: unknown): void => log.warn({ runId, err: error }, "the growth warning's sink failed");
  try {
    Promise.resolve(sink(text, detail)).catch(failed);
  } catch (error) {
    failed(error);
  }
}

function warningText({ runId, agent, turn, after }: GrowthFacts, thresholdBytes: number): string {
  return (
    `Agent ${agent}: the transcript of run ${runId} has grown to ${after.transcriptBytes} bytes at turn ${turn} (warning above ${thresholdBytes}) and no compaction is configured. ` +
    "Every turn sends it whole; the limits ahead are the model's context window and Postgres's 268,435,455-byte JSONB cap " +
    `(critical from ${CRITICAL_TRANSCRIPT_BYTES} bytes). Configure \`compaction\` to bound it. \`claimCheck\` slows the growth by keeping listed tools' results out of it, ` +
    "but withholds an offloaded result from the model except for its digest and preview, so list only tools whose full output the model does not need. " +
    'See docs/scaling.md, section "Agent state growth". Set `warnTranscriptBytes: false` on the agent to silence this.'
  );
}
