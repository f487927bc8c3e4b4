/** One function computes how full the window is: for the triggers, for `op=self`, for the marker and for whoever watches. */
import { detectSilentTruncation, estimateTokens, firesAt, footprint, frameTokens, hardLine } from "../domain/compaction/footprint.ts";
import { resolvePolicy } from "../domain/compaction/policy.ts";
import { compactsItself, type AgentDefinition } from "../domain/definition.ts";
import type { TokenScale, Usage } from "../domain/usage.ts";
import type { CallFrame } from "../domain/transcript/render.ts";
import type { Model } from "./model-port.ts";
import type { Turn } from "./turn.ts";

export interface Gauge {
  readonly usedTokens: number;
  readonly scale: TokenScale;
  /** The model's window; undefined while nobody knows it. */
  readonly maxTokens: number | undefined;
  /** What no compaction can reduce: system prompt and tools. */
  readonly overheadTokens: number;
  /** Where the percentage trigger fires. */
  readonly firesAtTokens: number | undefined;
  readonly prefetchAtTokens: number | undefined;
  /** Above it the next request does not fit. */
  readonly hardLineTokens: number | undefined;
  readonly isOverHardLine: boolean;
}

/** Asked for by requests that set no limit: what vendors' own defaults are about. */
const DEFAULT_OUTPUT_TOKENS = 4_096;
/** Share of the window that stays free for what estimates miss. */
const MARGIN = 0.02;

const overheads = new WeakMap<CallFrame, number>();

export function gaugeOf(turn: Turn, definition: AgentDefinition, model: Model): Gauge {
  const { state } = turn.session;
  const overheadTokens = overheadOf(turn.deps.frames.of(definition, model));
  const maxTokens = knownWindow(Math.min(model.window.tokens ?? Number.POSITIVE_INFINITY, state.truncatedTo ?? Number.POSITIVE_INFINITY));
  const { contextTokens, contextScale } = state;
  const used = footprint({
    lastUsage:
      contextTokens === undefined || contextScale === undefined ? undefined : { tokens: contextTokens, scale: contextScale, epoch: state.epoch, messages: state.countedMessages },
    epoch: state.epoch,
    view: state.view,
    frameTokens: overheadTokens,
  });
  const policy = resolvePolicy(definition.compaction);
  const line = { windowTokens: maxTokens, outputTokens: definition.settings?.max_output_tokens ?? DEFAULT_OUTPUT_TOKENS, marginTokens: Math.ceil((maxTokens ?? 0) * MARGIN) };
  const hard = hardLine(line);
  return {
    usedTokens: used.tokens,
    scale: used.scale,
    maxTokens,
    overheadTokens,
    firesAtTokens: firesAt({ policy, ...line }),
    prefetchAtTokens: policy.prefetch_at_pct === undefined ? undefined : firesAt({ policy, pct: policy.prefetch_at_pct, ...line }),
    hardLineTokens: hard,
    isOverHardLine: hard !== undefined && used.tokens > hard,
  };
}

/** These refuse a prompt that is too long. Others, local servers first of all, may cut it and answer as if nothing were. */
const refusing = /^(?:anthropic|openai|openai-chat|offline):/;

/** To be asked when a response has come and is not staged yet: the view is that of its request. */
export function silentlyCutTo(turn: Turn, definition: AgentDefinition, model: Model, usage: Usage): number | undefined {
  if (!compactsItself(definition) || usage.scale !== "provider" || refusing.test(model.name)) return undefined;
  const { memory, state } = turn.session;
  const now = { counted: usage.input, estimated: overheadOf(turn.deps.frames.of(definition, model)) + estimateTokens(state.view) };
  const found = detectSilentTruncation(now, memory.lastCount)?.windowTokens;
  memory.lastCount = now;
  return found === state.truncatedTo ? undefined : found;
}

/** System prompt and tools of a frame, by our estimate. */
export function overheadOf(frame: CallFrame): number {
  let tokens = overheads.get(frame);
  if (tokens === undefined) overheads.set(frame, (tokens = frameTokens(frame)));
  return tokens;
}

function knownWindow(tokens: number | undefined): number | undefined {
  return tokens !== undefined && Number.isFinite(tokens) && tokens > 0 ? tokens : undefined;
}
