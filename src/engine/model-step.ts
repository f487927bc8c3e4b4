/** Asks the model once: commits the request, makes the call, commits the response or the failure, and what follows. */
import type { EventPayload } from "../domain/event.ts";
import { canonicalJson, toJsonValue, type JsonValue } from "../domain/json.ts";
import { PayloadTooLargeError } from "../domain/append-error.ts";
import { recordError } from "../domain/error.ts";
import { backoffMs } from "../domain/retry.ts";
import { breakpointsOf, renderCall } from "../domain/transcript/render.ts";
import { usageSchema, type Usage } from "../domain/usage.ts";
import type { AssistantPart } from "../domain/transcript/message.ts";
import { effectOutcome, genAi } from "../telemetry/names.ts";
import { afterAnswer, checkOutput, fail, type AskMove } from "./boundary.ts";
import { endWrappedUp } from "./budget-step.ts";
import { compactAfterOverflow } from "./compaction-step.ts";
import { admitCall } from "./admission.ts";
import { approvalFor } from "./call-waits.ts";
import { isPossiblyBilled, modelEffect } from "./effects.ts";
import { silentlyCutTo } from "./context-gauge.ts";
import { hitFailpoint } from "./failpoints.ts";
import type { ModelFailure, ModelOutcome, ModelResponse } from "./model-port.ts";
import { stopIfAsked } from "./stop-turn.ts";
import { Interrupted, type Turn } from "./turn.ts";

/** A slot is held no longer than this for a retry; beyond, the run waits without one. */
const HOLD_SLOT_MS = 2_000;
const RETRY_BACKOFF = { firstMs: 500, maxMs: 60_000 };
/** So often in one turn a vendor's "at once" is believed: rate limits cost no attempt, and one that never ends must not fill the journal. */
const TRUSTED_RETRIES = 5;
/** A vendor that asks for more is asked again after this: nobody waits for a date that is a mistake. */
const MAX_RETRY_AFTER_MS = 24 * 3_600_000;

/** "rest": the run has ended, waits, or was given back. "go_on": calls are open, or the model is to be asked again. */
export async function askModel(turn: Turn, move: AskMove): Promise<"rest" | "go_on"> {
  const { session, deps, held } = turn;
  const { definition, limits, model } = move;
  const frame = deps.frames.of(definition, model, { withoutTools: move.isWrapUp });
  session.windowTokens = model.window.tokens;
  const breakpoints = breakpointsOf(session.state.view.length);
  const tail = { model: frame.model, settings: frame.settings, ...(frame.output === undefined ? {} : { output: frame.output }), breakpoints };
  const { hash, sizeBytes } = session.memory.meter.close(frame, session.state, tail);
  const call = renderCall(frame, [...session.state.view], breakpoints);
  const turnSpan = turn.spans.turn(move.turn);
  const admission = await admitCall(turn, modelEffect(turn, move, call, sizeBytes));
  if (admission === undefined) return "rest";
  const mergesResults = session.hasStaged && session.token !== undefined;
  session.stage(
    "model.requested",
    {
      model: model.name,
      to_seq: session.state.viewSeq,
      ...(session.state.marker === undefined ? {} : { marker: session.state.marker }),
      render: frame.renderVersion,
      ...(frame.output === undefined ? {} : { native_output: true }),
      ...(move.isWrapUp ? { no_tools: true as const } : {}),
      breakpoints,
      size_bytes: sizeBytes,
      hash,
      ...(move.again === undefined ? {} : { again: move.again }),
    },
    { turn: move.turn, attempt: move.attempt },
  );
  hitFailpoint("request.before_append");
  // Input that waits is applied before the call, not a turn later; results that ride along must not be refused for it.
  // A request that is made again is the same request: its turn has begun, and input waits for the next boundary.
  try {
    await turn.commit({ ...(mergesResults || move.again !== undefined ? {} : { inboxAtMost: 0 }), turnDone: mergesResults });
  } catch (error) {
    await admission.abandon();
    throw error;
  }
  if (mergesResults) hitFailpoint("results.committed");
  hitFailpoint("request.committed");

  const startedMs = deps.clockMs();
  const span = turn.spans.model(model.name);
  const { row } = session.memory;
  const timeout = AbortSignal.timeout(limits.modelTimeoutMs);
  const signal = AbortSignal.any([held.signal, timeout]);
  let outcome = await admission.run(
    () =>
      deps.deltas.during({ runId: row.id, tenant: row.tenant, turn: move.turn, attempt: move.attempt }, (onDelta) =>
        model.call(call, { signal, tenant: row.tenant, runId: row.id, turn: move.turn, onDelta }),
      ),
    (result) => reportOf(result, deps.models.costUsdMicros(model.name, usageOf(result)), held.reason === "lost"),
  );
  hitFailpoint("model.returned");
  const durationMs = Math.round(deps.clockMs() - startedMs);
  if (outcome.kind === "responded") outcome = fitting(outcome, turn, limits.inlinePayloadBytes);
  if (outcome.kind === "aborted" && !held.signal.aborted) outcome = timedOut(limits.modelTimeoutMs);
  if (outcome.kind === "responded") {
    span.set({
      [genAi.responseModel]: outcome.servedModel,
      [genAi.responseId]: outcome.responseId,
      [genAi.finishReasons]: [outcome.finish.reason],
      [genAi.inputTokens]: outcome.usage.input,
      [genAi.outputTokens]: outcome.usage.output,
      [genAi.cacheReadTokens]: outcome.usage.cache_read,
      [genAi.cacheWriteTokens]: outcome.usage.cache_write,
    });
  } else {
    span.fail(outcome.kind === "failed" ? outcome.code : "INTERRUPTED", outcome.kind === "failed" ? outcome.message : "aborted");
    turnSpan.set({ [genAi.errorType]: outcome.kind === "failed" ? outcome.code : "INTERRUPTED" });
  }
  span.end();

  if (held.reason === "lost") {
    await recordLostCall(turn, move, outcome);
    throw new Interrupted();
  }
  if (outcome.kind === "aborted" && held.reason === "stopped") {
    stageFailure(
      turn,
      move,
      { code: "STOPPED", message: "the turn was stopped from outside before the model had answered", retryable: false, countsAsAttempt: false },
      durationMs,
      undefined,
    );
    if (await stopIfAsked(turn)) return "rest";
    await turn.commit({ release: true, wish: "now" });
    return "rest";
  }
  if (outcome.kind === "aborted") return await giveUpForShutdown(turn, move, durationMs);
  if (outcome.kind === "failed") return await afterFailure(turn, move, outcome, durationMs);
  return await afterResponse(turn, move, outcome, durationMs);
}

async function afterResponse(turn: Turn, move: AskMove, outcome: ModelResponse, durationMs: number): Promise<"rest" | "go_on"> {
  const { session, deps } = turn;
  const { definition, limits, model } = move;
  const cost = deps.models.costUsdMicros(model.name, outcome.usage);
  const announced = move.isWrapUp ? [] : announcedCalls(turn, outcome.content, limits.parallelTools);
  const truncatedTo = silentlyCutTo(turn, definition, model, outcome.usage);
  if (truncatedTo !== undefined) {
    deps.log.warn(
      { runId: session.memory.row.id, turn: move.turn, model: model.name, window: model.window.tokens ?? null, truncatedTo },
      "the server cut the prompt and did not say so: its window is taken to be what it counted",
    );
  }
  session.stage(
    "model.responded",
    {
      content: [...outcome.content],
      finish: outcome.finish,
      usage: outcome.usage,
      ...(cost === undefined ? {} : { cost_usd_micros: cost }),
      ...(outcome.servedModel === undefined ? {} : { model: outcome.servedModel }),
      ...(outcome.responseId === undefined ? {} : { response_id: outcome.responseId }),
      ...(outcome.wire === undefined ? {} : { wire: outcome.wire }),
      ...(outcome.rawUsage === undefined ? {} : { raw_usage: outcome.rawUsage }),
      ...(truncatedTo === undefined ? {} : { truncated_to: truncatedTo }),
      ...(announced.length === 0 ? {} : { announced }),
      duration_ms: durationMs,
    } satisfies EventPayload<"model.responded">,
    { attempt: move.attempt, stepKey: `m${move.turn}` },
  );
  if (move.isWrapUp) {
    const ended = await endWrappedUp(turn, definition, outcome, (output) => checkOutput(definition, output));
    if (ended !== undefined) return ended;
  }
  if (session.state.phase.kind === "calling") {
    await turn.commit();
    hitFailpoint("response.committed");
    return "go_on";
  }
  return await afterAnswer(turn, definition, model);
}

/** Calls with side effects that are executed right after the response's commit: from then on their outcome may be unknown. */
function announcedCalls(turn: Turn, content: readonly AssistantPart[], parallelTools: number): number[] {
  const definition = turn.session.memory.definition;
  const calls = content.flatMap((part) => (part.type === "tool_call" ? [part] : []));
  return calls.flatMap((call, index) => {
    const effect = definition?.tools.find((tool) => tool.name === call.name)?.effect;
    const isReady = index < parallelTools && effect === "once" && call.invalid === undefined;
    return isReady && definition !== undefined && approvalFor(turn, definition, { call }) === undefined ? [index] : [];
  });
}

async function afterFailure(turn: Turn, move: AskMove, failure: ModelFailure, durationMs: number): Promise<"rest" | "go_on"> {
  const { session, deps, held } = turn;
  const counted = session.state.modelFailures + (failure.countsAsAttempt ? 1 : 0);
  const ownMs = backoffMs(Math.max(1, move.attempt), deps.random(), RETRY_BACKOFF);
  const wishedMs = Math.min(MAX_RETRY_AFTER_MS, failure.retryAfterMs ?? ownMs);
  const pauseMs = move.attempt > TRUSTED_RETRIES ? Math.max(wishedMs, ownMs) : wishedMs;
  stageFailure(turn, move, failure, durationMs, failure.retryable ? pauseMs : undefined);
  deps.log.warn({ runId: session.memory.row.id, turn: move.turn, attempt: move.attempt, code: failure.code, retryable: failure.retryable, counted }, "model call failed");
  if (failure.code === "CONTEXT_OVERFLOW") return await compactAfterOverflow(turn, move.definition, move.model, failure.message);
  if (!failure.retryable) return (await fail(turn, failure.code, failure.message)).kind;
  if (pauseMs <= HOLD_SLOT_MS && !deps.inFlight.stopping) {
    await turn.commit();
    await pause(pauseMs, held.signal);
    if (held.reason === "lost") throw new Interrupted();
    if (held.reason === undefined) return "go_on";
    await deps.store.giveBack(session.memory.row.id, session.token as number, "now");
    return "rest";
  }
  const wakeAt = new Date(turn.now.getTime() + pauseMs);
  session.stage("run.parked", { reason: "retry", wake_at: wakeAt.toISOString(), detail: { code: failure.code, attempt: move.attempt } });
  await turn.commit({ release: true, wish: wakeAt });
  return "rest";
}

/** The worker stops: the call is recorded as interrupted, which costs no attempt, and the run is wanted at once elsewhere. */
async function giveUpForShutdown(turn: Turn, move: AskMove, durationMs: number): Promise<"rest"> {
  const failure = { code: "INTERRUPTED", message: "the worker stopped before the model answered", retryable: true, countsAsAttempt: false } as const;
  stageFailure(turn, move, failure, durationMs, 0);
  await turn.commit({ release: true, wish: "now" });
  return "rest";
}

function stageFailure(
  turn: Turn,
  move: AskMove,
  failure: Pick<ModelFailure, "message" | "retryable" | "countsAsAttempt" | "usage" | "httpStatus"> & { readonly code: string },
  durationMs: number,
  retryInMs: number | undefined,
): void {
  const cost = failure.usage && turn.deps.models.costUsdMicros(move.model.name, failure.usage);
  turn.session.stage(
    "model.failed",
    {
      error: {
        code: failure.code,
        message: recordError(failure.message, failure.code).message,
        ...(failure.httpStatus === undefined ? {} : { details: { http_status: failure.httpStatus } }),
      },
      retryable: failure.retryable,
      // The model can be reached: compaction bounds how often it is asked, not the budget for outages.
      counts: failure.countsAsAttempt && failure.code !== "CONTEXT_OVERFLOW",
      ...(retryInMs === undefined ? {} : { retry_in_ms: Math.round(retryInMs) }),
      ...(failure.usage === undefined ? {} : { usage: failure.usage }),
      ...(cost === undefined ? {} : { cost_usd_micros: cost }),
      duration_ms: durationMs,
    },
    { attempt: move.attempt },
  );
}

/** A call whose run was cancelled or taken over cost money though no event can tell of it any more. */
async function recordLostCall(turn: Turn, move: AskMove, outcome: ModelOutcome): Promise<void> {
  const { row } = turn.session.memory;
  const usage = usageOf(outcome);
  await turn.deps.ledger.record({
    runId: row.id,
    tenant: row.tenant,
    agent: row.agent,
    model: move.model.name,
    kind: "turn",
    turn: move.turn,
    attempt: move.attempt,
    outcome: outcome.kind === "aborted" ? "aborted" : "lost",
    usage: {
      inputTokens: usage.input,
      outputTokens: usage.output,
      cacheReadTokens: usage.cache_read ?? 0,
      cacheWriteTokens: usage.cache_write ?? 0,
      costUsdMicros: turn.deps.models.costUsdMicros(move.model.name, usage) ?? 0,
    },
    estimated: outcome.kind === "aborted",
  });
}

const NO_USAGE: Usage = { input: 0, output: 0, scale: "provider" };

function usageOf(outcome: ModelOutcome): Usage {
  if (outcome.kind !== "aborted" && outcome.usage !== undefined) return outcome.usage;
  return NO_USAGE;
}

/** @param isLate the run was cancelled or taken over before the answer came: its tokens are paid for and used by nobody. */
function reportOf(outcome: ModelOutcome, cost: number | undefined, isLate: boolean) {
  const usage = usageOf(outcome);
  return {
    outcome: isLate ? effectOutcome.late : outcome.kind === "responded" ? "ok" : outcome.kind === "failed" ? outcome.code : "aborted",
    inputTokens: usage.input,
    outputTokens: usage.output,
    ...(cost === undefined ? {} : { costUsdMicros: cost }),
    ...(isPossiblyBilled(outcome) ? { possiblyBilled: true } : {}),
  };
}

/**
 * What no event can hold is a failure that says so; the journal stays readable. A provider's client makes its strings
 * storable itself; a model of the user's own may not, and one NUL would make every append of the run fail for ever.
 */
function fitting(outcome: ModelResponse, turn: Turn, limitBytes: number): ModelOutcome {
  const bad = (message: string): ModelFailure => ({ kind: "failed", code: "PROVIDER_BAD_RESPONSE", message, retryable: false, countsAsAttempt: true, usage: outcome.usage });
  const json = toJsonValue(outcome);
  if (!json.ok) {
    // The answer is rejected and paid for all the same, unless its own numbers are what is broken.
    const usage = usageSchema.safeParse(outcome.usage);
    return { ...bad(`the model's response cannot be stored: at ${json.problem.path}, ${json.problem.problem}`), usage: usage.success ? usage.data : NO_USAGE };
  }
  const response = json.value as unknown as ModelResponse;
  const sizeBytes = Buffer.byteLength(canonicalJson(response.content as unknown as JsonValue));
  // Beside the content stand usage, ids and the announced calls.
  if (sizeBytes + Math.min(4_096, limitBytes / 4) <= limitBytes) return response;
  const { row } = turn.session.memory;
  return bad(new PayloadTooLargeError({ runId: row.id, turn: turn.session.state.turn, what: "a model response", sizeBytes, limitBytes }).message);
}

function timedOut(afterMs: number): ModelFailure {
  return { kind: "failed", code: "MODEL_TIMEOUT", message: `the model did not answer within ${afterMs} ms (limits.modelTimeoutMs)`, retryable: true, countsAsAttempt: true };
}

export async function pause(ms: number, signal: AbortSignal): Promise<void> {
  if (signal.aborted) return;
  await new Promise<void>((resolve) => {
    const done = (): void => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done, { once: true });
  });
}
