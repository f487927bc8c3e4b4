/**
 * Makes one summary: finds the summarizer, makes its input fit, calls it through the capability ring, and judges what it
 * says. Whatever happens is a value; nothing here changes a view. Called by a worker of the `summarize` pool.
 */
import type { CompactionPolicy } from "../domain/compaction/policy.ts";
import { summaryTarget } from "../domain/compaction/size.ts";
import type { CompactionTrigger } from "../domain/compaction/types.ts";
import { recordError, type RecordedError } from "../domain/error.ts";
import type { Message } from "../domain/transcript/message.ts";
import type { Usage } from "../domain/usage.ts";
import type { ModelCatalogue } from "../engine/model-port.ts";
import type { EffectRing } from "../engine/ports.ts";
import { climb, type Climbed } from "./climb.ts";
import type { SummarizerEffect } from "./effect.ts";
import { SummarizerEmptyError } from "./errors.ts";
import { textBytes } from "./ladder.ts";
import { openSummarizer, summarizerName, type OpenSummarizer } from "./open-summarizer.ts";
import { rejected, type Rejection, type SummaryReason } from "./reply.ts";

export interface SummarizeInput {
  readonly runId: string;
  readonly tenant: string;
  readonly agent: string;
  readonly turn: number;
  /** Of the task. */
  readonly attempt: number;
  /** Patterns of what the agent may use. */
  readonly grants: readonly string[];
  /** Origins of tainted content among the messages. */
  readonly taint: readonly string[];
  /** The run's model, full name. */
  readonly model: string;
  /** The effective policy. */
  readonly policy: CompactionPolicy;
  readonly trigger: CompactionTrigger;
  readonly byBytes: boolean;
  /** The span that the summary stands for, oldest first; without the pinned task and without an earlier head. */
  readonly messages: readonly Message[];
  /** The pinned task, for functions that want to know what the work is about. */
  readonly task?: Message | undefined;
  /** The earlier head's summary: to be updated and replaced. */
  readonly previousSummary?: string | undefined;
  /** What the engine's own tables say is open. */
  readonly obligations?: readonly string[];
  /** Estimated tokens of what is replaced, an earlier summary included. */
  readonly replacedTokens: number;
  /** The next request would not fit: a skeleton without a call is better than nothing. */
  readonly hard: boolean;
  readonly signal: AbortSignal;
  /** Milliseconds for each call. */
  readonly timeoutMs: number;
}

export interface SummarizeDeps {
  readonly ring: EffectRing;
  readonly models: ModelCatalogue;
  readonly summarizers: ReadonlyMap<string, SummarizerEffect>;
  readonly clockMs: () => number;
  /** Most output tokens of a model by full name; undefined when unknown. */
  readonly outputLimitOf?: (model: string) => number | undefined;
}

/** One call as the ledger wants it, also when its reply was rejected. */
export interface SummaryCallReport {
  readonly model: string | undefined;
  readonly outcome: "summarized" | SummaryReason;
  readonly usage?: Usage;
  readonly costUsdMicros?: number;
  /** Nobody said what it cost, and it may have been billed. */
  readonly possiblyBilled: boolean;
  readonly durationMs: number;
}

interface SummaryFacts {
  readonly summarizer: string;
  readonly model?: string;
  /** Sum over all calls that were made on one scale. */
  readonly usage?: Usage;
  readonly costUsdMicros?: number;
  readonly calls: readonly SummaryCallReport[];
  readonly durationMs: number;
  /** UTF-8 bytes of the flattened span. */
  readonly recordBytes: number;
  readonly limitTokens?: number;
}

export type SummaryOutcome =
  | ({ readonly kind: "summarized"; readonly summary: string; readonly rung: 0 | 1 | 2 | 3 | 4 } & SummaryFacts)
  | ({ readonly kind: "rejected"; readonly reason: SummaryReason; readonly retryable: boolean; readonly retryAfterMs?: number; readonly error: RecordedError } & SummaryFacts);

/** Never throws. */
export async function summarize(input: SummarizeInput, deps: SummarizeDeps): Promise<SummaryOutcome> {
  const startedMs = deps.clockMs();
  const calls: SummaryCallReport[] = [];
  const summarizer = summarizerName(input.policy);
  let opened: OpenSummarizer | undefined;
  let recordBytes = 0;
  let result: Climbed;
  try {
    recordBytes = textBytes(input.messages);
    opened = await openSummarizer(input, deps, calls);
    const { limitTokens } = opened;
    const targetTokens = summaryTarget(limitTokens, { replacedTokens: input.replacedTokens, targetPercentage: input.policy.target_percentage });
    result = inflationChecked(await climb(opened, { ...input, limitTokens, targetTokens }), input, recordBytes);
  } catch (error) {
    // Before any call: no such summarizer, no such model, no key. What calls give is a reply.
    result = faultOf(error, input.signal);
  }
  const facts: SummaryFacts = {
    summarizer,
    ...(opened?.model === undefined ? {} : { model: opened.model }),
    ...(opened === undefined ? {} : { limitTokens: opened.limitTokens }),
    ...totals(calls),
    calls,
    durationMs: Math.max(0, Math.round(deps.clockMs() - startedMs)),
    recordBytes,
  };
  if (result.kind === "summarized") return { ...result, ...facts };
  const { reason, retryable, retryAfterMs } = result;
  return { kind: "rejected", reason, retryable, ...(retryAfterMs === undefined ? {} : { retryAfterMs }), error: errorOf(result, summarizer), ...facts };
}

function faultOf(error: unknown, signal: AbortSignal): Rejection {
  const { code, message } = recordError(error, "SUMMARIZER_FAILED");
  if (signal.aborted) return rejected("interrupted", message, true);
  return { ...rejected(code === "SUMMARIZER_MISSING" ? "summarizer_missing" : "provider", message, false), code };
}

function errorOf({ reason, code, message }: Rejection, summarizer: string): RecordedError {
  if (reason === "empty") return recordError(new SummarizerEmptyError(summarizer, message), "SUMMARIZER_EMPTY");
  return recordError(message, code ?? `SUMMARY_${reason.toUpperCase()}`);
}

/** Four bytes a token, the scale on which `replacedTokens` is estimated. */
const BYTES_PER_TOKEN = 4;

/** Nothing may grow: measured in tokens as estimated, and, where all of the span is text, in bytes of that text. */
function inflationChecked(climbed: Climbed, input: SummarizeInput, recordBytes: number): Climbed {
  if (climbed.kind !== "summarized") return climbed;
  const bytes = Buffer.byteLength(climbed.summary);
  const hasMedia = input.messages.some(({ content }) => content.some((part) => part.type === "file"));
  const replacedBytes = recordBytes + Buffer.byteLength(input.previousSummary ?? "");
  const isInflated = bytes / BYTES_PER_TOKEN >= input.replacedTokens || (!hasMedia && bytes >= replacedBytes);
  if (!isInflated) return climbed;
  return rejected(
    "inflated",
    `the summary has ${bytes} bytes (about ${Math.ceil(bytes / BYTES_PER_TOKEN)} tokens), what it would replace ${replacedBytes} (about ${input.replacedTokens} tokens)`,
    false,
  );
}

function totals(calls: readonly SummaryCallReport[]): Pick<SummaryFacts, "usage" | "costUsdMicros"> {
  const usages = calls.flatMap(({ usage }) => (usage === undefined ? [] : [usage]));
  const [first] = usages;
  const costs = calls.flatMap(({ costUsdMicros }) => (costUsdMicros === undefined ? [] : [costUsdMicros]));
  const cost = costs.length === 0 ? {} : { costUsdMicros: costs.reduce((sum, own) => sum + own, 0) };
  if (first === undefined) return cost;
  // Numbers of different scales are never added; the calls themselves tell the rest.
  const usage = usages.filter(({ scale }) => scale === first.scale).reduce(addUsage);
  return { usage, ...cost };
}

function addUsage(a: Usage, b: Usage): Usage {
  const both = (key: "cache_read" | "cache_write" | "reasoning") => (a[key] === undefined && b[key] === undefined ? {} : { [key]: (a[key] ?? 0) + (b[key] ?? 0) });
  return { input: a.input + b.input, output: a.output + b.output, ...both("cache_read"), ...both("cache_write"), ...both("reasoning"), scale: a.scale };
}
