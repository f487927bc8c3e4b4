/**
 * The top of a turn, when no call is open: the only place where pause, deadline, inbox and limits act. Ends the run,
 * lets it rest, or says what to ask the model next. Cancel does not wait for this: it ends a run at once, from anywhere.
 */
import { policyIssues } from "../domain/compaction/policy.ts";
import type { AgentDefinition } from "../domain/definition.ts";
import { effectiveDefinition } from "../domain/effective-definition.ts";
import { decideAnswer, modelFor, type CheckOutput } from "../domain/decide.ts";
import type { WaitReason } from "../domain/event.ts";
import type { JsonObject, JsonValue } from "../domain/json.ts";
import { MAX_CRASHES, resolveLimits, type ResolvedLimits } from "../domain/limits.ts";
import { isTerminal } from "../domain/run.ts";
import { CapstanError } from "../domain/error.ts";
import { inputParts } from "../domain/transcript/derive.ts";
import { heedBudget, isWrapUp, tellSoft } from "./budget-step.ts";
import { applyCompactionItem, compactAfterOverflow, compactBeforeRequest } from "./compaction-step.ts";
import { stopIfAsked } from "./stop-turn.ts";
import { mismatch } from "./agent-match.ts";
import { checkAgainst, issuesText } from "../domain/json-schema.ts";
import type { Model } from "./model-port.ts";
import type { Turn } from "./turn.ts";

/** More than an inbox holds (16 inputs, a wish to compact and a summary): what is behind the inputs must not wait for them. */
export const INBOX_BATCH = 32;

export interface AskMove {
  readonly kind: "ask";
  readonly definition: AgentDefinition;
  readonly limits: ResolvedLimits;
  readonly model: Model;
  readonly turn: number;
  readonly attempt: number;
  readonly again: "lost" | "failed" | "interrupted" | undefined;
  /** The budget is used up, and the model answers with what it has. */
  readonly isWrapUp: boolean;
}

export type BoundaryMove = AskMove | { readonly kind: "rest" };

/** Failures inside the engine in a row until a run is parked. */
const MAX_ENGINE_ERRORS = 5;

const REST = { kind: "rest" } as const;

/** Reasons that only somebody outside can end; a job that finds the run in one of them has nothing to do. */
const heldReasons: readonly WaitReason[] = ["crash_loop"];
/** Reasons that something in the inbox ends. */
const inboxReasons: readonly WaitReason[] = ["input", "compaction", "context_exhausted"];

export async function atBoundary(turn: Turn): Promise<BoundaryMove> {
  const { session } = turn;
  const { memory, state } = session;
  if ((await checkGates(turn)) === "rest" || (await stopIfAsked(turn))) return REST;
  const prepared = await prepareAgent(turn);
  if (prepared.kind === "rest") return REST;
  const { definition, limits, model } = prepared;

  // Text that went to a blob was checked where it was enqueued; files are described by no schema.
  // What follows in a conversation is talk, whatever its first message was.
  if (state.turn === 0 && state.own?.origin !== "continue" && definition.input_schema !== undefined && !inputParts(state.input).some((part) => part.type === "file")) {
    const checked = checkAgainst(definition.input_schema, state.input);
    if (!checked.ok)
      return await fail(turn, "INPUT_INVALID", `the input does not fit the agent's schema: ${issuesText(checked.issues)}`, { issues: checked.issues as unknown as JsonObject[] });
  }

  const { phase: found, epoch } = state;
  const waitedFor = state.waitReason;
  const isOverflow = found.kind === "failed" && found.failure.error.code === "CONTEXT_OVERFLOW";
  if (memory.inboxPending > 0 && (found.kind === "boundary" || found.kind === "answered" || isOverflow)) {
    await applyInbox(turn, { definition, model, onlyCompaction: isOverflow });
  }
  // Nothing came that lets the run go on: it waits as before, with what was journaled about its compaction.
  const restsOn = state.status === "waiting" && waitedFor !== "retry" && waitedFor !== "agent_missing" && waitedFor !== "quota";
  if (restsOn && state.waitReason === waitedFor) {
    const isOver = waitedFor === "compaction" ? state.compaction.task === undefined : waitedFor === "context_exhausted" && state.epoch !== epoch;
    if (!isOver) {
      if (session.hasStaged) await turn.commit({ release: true, ...(memory.row.deadline === undefined ? {} : { wish: memory.row.deadline }) });
      return REST;
    }
    session.stage("run.resumed", { from: waitedFor as WaitReason });
  }
  // Applying the inbox may have changed it: the compiler's narrowing from above no longer holds.
  const phase = session.state.phase;
  if (phase.kind === "answered") {
    // A worker died between the answer and what follows from it.
    const rested = await afterAnswer(turn, definition, model);
    if (rested === "rest") return REST;
  }
  return await nextRequest(turn, definition, limits);
}

/** What may keep a job from touching its run at all: also asked by a worker that finds calls open which another left behind. */
export async function checkGates(turn: Turn): Promise<"rest" | "go_on"> {
  const { memory, state } = turn.session;
  const { row } = memory;
  if (isTerminal(state.status)) return "rest";
  // A memory of an earlier job may tell of a pause that is over: the claim says whether it is. What is held was told by its own last commit.
  if (memory.paused && (memory.fresh || turn.session.token !== undefined)) {
    if (turn.session.token !== undefined) await turn.commit({ release: true, wish: "now" });
    return "rest";
  }
  if (row.deadline !== undefined && turn.now >= row.deadline) {
    await fail(turn, "RUN_DEADLINE", `the run's deadline ${row.deadline.toISOString()} has passed`);
    return "rest";
  }
  if (state.waitReason !== undefined && heldReasons.includes(state.waitReason)) return "rest";
  if (state.waitReason !== undefined && inboxReasons.includes(state.waitReason) && memory.inboxPending === 0) return "rest";
  const mayBeStopped = state.interactive && memory.inboxPending > 0;
  if ((state.waitReason === "retry" || state.waitReason === "quota") && !mayBeStopped && row.wakeAt !== undefined && row.wakeAt > turn.now) return "rest";
  if (memory.fresh && row.crashCount >= MAX_CRASHES) {
    await park(turn, "crash_loop", { crashes: row.crashCount, turn: state.turn, phase: state.phase.kind });
    return "rest";
  }
  const failed = turn.deps.inFlight.engineError(row.id);
  if (failed !== undefined && failed.times >= MAX_ENGINE_ERRORS) {
    // A row that the database refuses for good, or a defect of ours: the same each time. The run is kept for people to look at.
    await park(turn, "crash_loop", { code: "ENGINE_ERROR", message: failed.message, turn: state.turn, phase: state.phase.kind });
    return "rest";
  }
  return "go_on";
}

/** What follows from an answer without calls. "go_on" means that the view has something new for the model. */
export async function afterAnswer(turn: Turn, definition: AgentDefinition, model: Model): Promise<"rest" | "go_on"> {
  const { session } = turn;
  const { phase } = session.state;
  if (phase.kind !== "answered") return "go_on";
  if (session.memory.inboxPending > 0) {
    if (session.hasStaged) await turn.commit();
    // It came beside the answer: the turn has ended by itself, and whoever stopped it is told that it is over.
    if (await stopIfAsked(turn)) return "rest";
    await applyInbox(turn, { definition, model });
    // Only news for the model makes one more turn of it: a compaction does not.
    if (session.state.phase.kind !== "answered") return "go_on";
  }
  const decision = decideAnswer(definition, session.state, phase.response, (output) => checkOutput(definition, output));
  if (definition.budget !== undefined && decision.kind !== "correct") tellSoft(turn, definition.budget);
  if (decision.kind === "correct") {
    session.stage("model.corrected", { reason: decision.reason, text: decision.text });
    return "go_on";
  }
  const deadline = session.memory.row.deadline;
  const ended = await turn.commitEnd(
    () => {
      if (decision.kind === "complete") session.stage("run.completed", { output: decision.output });
      else if (decision.kind === "await_input") session.stage("run.parked", { reason: "input" });
      else session.stage("run.failed", { error: { code: decision.code, message: decision.message } });
    },
    decision.kind === "await_input" ? deadline : undefined,
  );
  if (ended === "ended" || (await stopIfAsked(turn))) return "rest";
  await applyInbox(turn, { definition, model });
  return session.state.phase.kind === "answered" ? await afterAnswer(turn, definition, model) : "go_on";
}

export function checkOutput({ output_schema: schema = {} }: AgentDefinition, output: JsonValue): ReturnType<CheckOutput> {
  const checked = checkAgainst(schema, output);
  return checked.ok ? { ok: true } : { ok: false, issues: issuesText(checked.issues) };
}

async function nextRequest(turn: Turn, definition: AgentDefinition, limits: ResolvedLimits): Promise<BoundaryMove> {
  const { state } = turn.session;
  if ((await heedBudget(turn, definition)) === "rest") return REST;
  const { phase } = state;
  const repeats = phase.kind === "requested" || phase.kind === "failed";
  const failures = repeats ? state.modelFailures : 0;
  const name = modelFor(definition, failures, limits);
  if (name === undefined) {
    const last = phase.kind === "failed" ? phase.failure.error : { code: "PROVIDER_UNAVAILABLE", message: "the model could not be reached" };
    return await fail(turn, last.code, `${last.message} (${failures} failed tries)`);
  }
  const number = repeats ? state.turn : state.turn + 1;
  if (number - (state.own?.turn ?? 0) > limits.maxTurns)
    return await fail(turn, "TURN_LIMIT", `the run has used its ${limits.maxTurns} turns; raise limits.maxTurns of agent ${definition.name}, or narrow the task`);
  const model = await resolveModel(turn, name);
  if (model === undefined) return REST;
  if (!repeats && (await compactBeforeRequest(turn, definition, model)) === "rest") return REST;
  // No summary came of it: the same request would be refused again.
  if (phase.kind === "failed" && phase.failure.error.code === "CONTEXT_OVERFLOW" && phase.smaller !== true) {
    if ((await compactAfterOverflow(turn, definition, model, phase.failure.error.message)) === "rest") return REST;
  }
  const budgeted = await heedBudget(turn, definition, model);
  if (budgeted === "rest") return REST;
  if (budgeted === "again") return await nextRequest(turn, definition, limits);
  const again = phase.kind === "requested" ? "lost" : phase.kind === "failed" ? (phase.failure.error.code === "INTERRUPTED" ? "interrupted" : "failed") : undefined;
  return { kind: "ask", definition, limits, model, turn: number, attempt: repeats ? phase.attempt + 1 : 1, again, isWrapUp: isWrapUp({ budget: state.budget, turn: number }) };
}

/** Finds definition and code, or parks the run with the difference named. */
export async function prepareAgent(turn: Turn): Promise<{ kind: "ready"; definition: AgentDefinition; limits: ResolvedLimits; model: Model } | { kind: "rest" }> {
  const { deps, session } = turn;
  const { state, memory } = session;
  const code = deps.agents.get(state.agent);
  if (code === undefined) return await park(turn, "agent_missing", { missing: `agent ${state.agent} is not in this worker` });
  if (memory.definition === undefined) {
    const lacking = code.remote?.missing();
    if (lacking !== undefined) return await park(turn, "agent_missing", { missing: lacking });
    const sha = state.definitionSha;
    const found = sha === undefined ? await deps.definitions.promoted(state.agent) : { sha, definition: await deps.definitions.get(sha) };
    if (found?.definition === undefined)
      return await park(turn, "agent_missing", { missing: sha === undefined ? `agent ${state.agent} has no promoted definition` : `definition ${sha} is not stored` });
    const problem = mismatch(found.definition, code);
    if (problem !== undefined) return await park(turn, "agent_missing", { missing: problem, definition_sha: found.sha });
    memory.definition = effectiveDefinition(found.definition, state);
    if (sha === undefined) session.stage("run.pinned", { definition_sha: found.sha });
    // Enqueued before anybody could hold its settings against the definition's.
    const [conflict] = sha !== undefined || state.ownCompaction === undefined ? [] : policyIssues(memory.definition.compaction);
    if (conflict !== undefined) return await fail(turn, "COMPACTION_INVALID", `compaction.${conflict.path} of this run, with the definition's own policy, ${conflict.message}`);
  }
  const { definition } = memory;
  const frameModel = await resolveModel(turn, definition.model);
  if (frameModel === undefined) return REST;
  session.frame ??= deps.frames.of(definition, frameModel);
  session.windowTokens ??= frameModel.window.tokens;
  turn.startMeasuring();
  return { kind: "ready", definition, limits: resolveLimits(definition, state.interactive), model: frameModel };
}

async function resolveModel(turn: Turn, name: string): Promise<Model | undefined> {
  try {
    return turn.deps.models.resolve(name, turn.session.memory.row.tenant);
  } catch (error) {
    if (!(error instanceof CapstanError)) throw error;
    await park(turn, "agent_missing", { missing: error.message, code: error.code });
    return undefined;
  }
}

async function applyInbox(
  turn: Turn,
  { definition, model, onlyCompaction = false }: { readonly definition: AgentDefinition; readonly model: Model; readonly onlyCompaction?: boolean },
): Promise<void> {
  const { deps, session } = turn;
  const wasWaiting = session.state.waitReason === "input";
  const items = await deps.store.pendingInbox(session.memory.row.id, INBOX_BATCH);
  for (const item of items) {
    // Taken, not committed yet, and so still shown: taken twice it would be counted twice, and no append would go through.
    if (session.hasTaken(item.id)) continue;
    if (await applyCompactionItem(turn, item, definition, model)) continue;
    if (onlyCompaction) continue;
    if (item.kind !== "input") {
      // A stop that came when the turn had ended, an answer whose call was answered otherwise.
      session.consume(item.id);
      continue;
    }
    session.stage(
      "input.applied",
      { content: inputParts(item.payload), ...(wasWaiting ? {} : { steering: true }) },
      { inboxId: item.id, ...(item.actor === undefined ? {} : { actor: item.actor }) },
    );
  }
}

/** @param lookAgain what is waited for may have come before this commit, when nobody wished for a job. */
export async function park(turn: Turn, reason: WaitReason, detail: JsonObject, { lookAgain = false }: { readonly lookAgain?: boolean } = {}): Promise<{ kind: "rest" }> {
  const { session } = turn;
  const { state, memory } = session;
  if (state.status === "waiting" && state.waitReason === reason) return REST;
  session.stage("run.parked", { reason, detail });
  const wish = lookAgain ? ("now" as const) : memory.row.deadline;
  await turn.commit({ release: true, ...(wish === undefined ? {} : { wish }) });
  turn.deps.log.warn({ runId: memory.row.id, turn: state.turn, reason, ...detail }, "run parked");
  return REST;
}

export async function fail(turn: Turn, code: string, message: string, details?: JsonObject): Promise<{ kind: "rest" }> {
  const { session } = turn;
  session.stage("run.failed", { error: { code, message, ...(details === undefined ? {} : { details }) } });
  await turn.commit({ release: true, turnDone: true });
  turn.deps.log.info({ runId: session.memory.row.id, turn: session.state.turn, code }, "run failed");
  return REST;
}
