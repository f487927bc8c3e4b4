/**
 * One compaction as engine and summarize pool make it, in one process and without a database: plan, summary through the
 * ring, head, marker, fold; then what must hold of the view that comes of it.
 */
import { createRing } from "../../../src/capabilities/ring.ts";
import { summarize, type SummarizeDeps } from "../../../src/compaction/summarize.ts";
import { summarizerText } from "../../../src/compaction/summarizer-text.ts";
import type { SummarizerEffect } from "../../../src/compaction/effect.ts";
import { estimateTokens } from "../../../src/domain/compaction/footprint.ts";
import { markedView, replacedBy, turnAtHand } from "../../../src/domain/compaction/fold.ts";
import { composeHead, HEAD_VERSION } from "../../../src/domain/compaction/head.ts";
import { planCut } from "../../../src/domain/compaction/plan.ts";
import type { ResolvedPolicy } from "../../../src/domain/compaction/policy.ts";
import { resumeAtMarker } from "../../../src/domain/compaction/resume.ts";
import type { FactsCheck } from "../../../src/domain/compaction/types.ts";
import { validateView } from "../../../src/domain/compaction/validate.ts";
import type { EventOf } from "../../../src/domain/event.ts";
import type { JsonObject } from "../../../src/domain/json.ts";
import { inputParts } from "../../../src/domain/transcript/derive.ts";
import type { Message } from "../../../src/domain/transcript/message.ts";
import type { Model } from "../../../src/engine/model-port.ts";
import { viewDigest } from "../../../src/engine/run-memory.ts";
import { createModelCatalogue } from "../../../src/providers/catalogue.ts";
import type { MemoryRun } from "./memory-run.ts";
import { effectOf } from "./story.ts";

export interface Summarizing {
  readonly name: string;
  /** Of the run: the built-in summarizer uses it, or `offline:extractive` for an offline one. */
  readonly model: string;
  readonly policy: ResolvedPolicy;
  readonly deps: SummarizeDeps;
  /** A skeleton is made where nothing else can be. */
  readonly hard: boolean;
  readonly windowTokens: number;
}

export function summarizing(
  name: string,
  policy: ResolvedPolicy,
  windowTokens: number,
  { model, summarizers = {}, hard = false }: { readonly model?: Model; readonly summarizers?: { readonly [name: string]: SummarizerEffect }; readonly hard?: boolean } = {},
): Summarizing {
  const clockMs = (): number => performance.now();
  const models = createModelCatalogue({ models: model === undefined ? {} : { [model.name]: model }, env: {} });
  return {
    name,
    model: model?.name ?? "offline:auditor",
    policy,
    hard,
    windowTokens,
    deps: { ring: createRing({ meter() {}, clockMs }), models, summarizers: new Map(Object.entries(summarizers)), clockMs },
  };
}

export type Compacted =
  | {
      readonly kind: "applied";
      readonly firstKeptSeq: number;
      readonly beforeTokens: number;
      readonly afterTokens: number;
      readonly check: FactsCheck;
      readonly rung: number;
      /** What is wrong with the view: empty when all holds. */
      readonly problems: readonly string[];
    }
  | { readonly kind: "not_applied"; readonly reason: string };

export async function compactOnce(run: MemoryRun, by: Summarizing, obligations: readonly string[]): Promise<Compacted> {
  const { state } = run;
  const before = [...state.view];
  const hasHead = state.marker !== undefined;
  const plan = planCut({
    view: state.view,
    places: state.places,
    hasHead,
    nextSeq: state.seq + 1,
    policy: by.policy,
    windowTokens: by.windowTokens,
    interactive: state.interactive,
    trigger: "manual",
    shortened: state.compaction.excerpts,
  });
  if (plan.kind === "skip") return { kind: "not_applied", reason: plan.reason };
  const { cut } = plan;
  const { from, to: kept, messages: span } = replacedBy(state, cut);
  const tail = state.view.slice(kept);
  const replacedTokens = estimateTokens([...(hasHead ? state.view.slice(0, 1) : []), ...span]);
  const outcome = await summarize(
    {
      runId: "bench",
      tenant: "default",
      agent: "bench",
      turn: state.turn,
      attempt: 1,
      grants: ["model:*", "summarizer:*"],
      taint: ["tool:lookup"],
      model: by.model,
      policy: by.policy,
      trigger: "manual",
      byBytes: false,
      messages: span,
      previousSummary: state.compaction.head?.summary,
      replacedTokens,
      hard: by.hard,
      signal: new AbortController().signal,
      timeoutMs: 60_000,
    },
    by.deps,
  );
  if (outcome.kind === "rejected") return { kind: "not_applied", reason: outcome.reason };
  const { head, factsCheck } = composeHead({
    previous: state.compaction.head,
    spanMessages: span,
    spanPlaces: state.places.slice(from, kept),
    toolEffect: effectOf,
    pins: state.compaction.pins,
    summary: outcome.summary,
    obligations,
    taskText: summarizerText([{ role: "user", content: inputParts(state.input) }]),
    tailText: summarizerText(tail),
    tail,
    requestSeq: cut.request_seq,
    windowTokens: by.windowTokens,
    tainted: true,
  });
  // As the engine has it: what would not make the view smaller is not put in.
  if (viewDigest(markedView(state, head, cut)).bytes >= viewDigest(before).bytes) return { kind: "not_applied", reason: "not_smaller" };
  const { compaction } = state;
  const beforeTokens = estimateTokens(before);
  run.append("context.compacted", {
    task_id: `task-${state.epoch}`,
    trigger: "manual",
    cut,
    head,
    before: { tokens: beforeTokens, scale: "estimate", bytes: viewDigest(before).bytes },
    after: { tokens: 0, scale: "estimate", bytes: 0 },
    summarizer: outcome.summarizer,
    calls: outcome.calls.length,
    rung: outcome.rung,
    facts_check: factsCheck,
    policy: by.policy as unknown as JsonObject,
    source_digest: viewDigest(span).digest,
    view_digest: "",
    algorithm: HEAD_VERSION,
    carry: {
      turn: state.turn,
      native_output: state.nativeOutput,
      corrections: { ...state.corrections },
      model_failures: state.modelFailures,
      applied_turns: [...compaction.appliedTurns, turnAtHand(state)].slice(-8),
      reported: [...compaction.reported],
      pins: [...compaction.pins],
    },
    duration_ms: outcome.durationMs,
  });
  const afterTokens = estimateTokens(state.view);
  return {
    kind: "applied",
    firstKeptSeq: cut.first_kept_seq,
    beforeTokens,
    afterTokens,
    check: factsCheck,
    rung: outcome.rung,
    problems: problemsOf(run, before, kept, afterTokens < beforeTokens),
  };
}

function problemsOf(run: MemoryRun, before: readonly Message[], kept: number, isSmaller: boolean): string[] {
  const { state } = run;
  const atRest = state.view.at(-1)?.role === "assistant";
  const problems = validateView(state.view, { atRest }).map(({ protocol, at, problem }) => `${protocol}: message ${at} ${problem}`);
  if (!isSmaller) problems.push("the view is not smaller than before");
  // Kept messages are the same objects, so that nothing of them can have changed.
  if (!before.slice(kept).every((message, i) => state.view[i + 1] === message)) problems.push("the tail is not what it was");
  const resumed = resumeAtMarker({
    created: run.events[0] as EventOf<"run.created">,
    marker: run.events.at(-1) as EventOf<"context.compacted">,
    tail: run.events.slice(Math.min((run.events.at(-1) as EventOf<"context.compacted">).payload.cut.first_kept_seq, run.events.length) - 1),
    definitionSha: state.definitionSha,
    usage: state.usage,
  });
  if (viewDigest(resumed.view).digest !== viewDigest(state.view).digest) problems.push("a fold that begins at the marker gives another view");
  return problems;
}
