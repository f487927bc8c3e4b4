/**
 * The pure function from events to what a run knows. `evolve` is its single step; folding again performs no effect.
 *
 * A state owns its `view` and its open calls and `evolve` appends to them in place: a run of 10,000 turns would
 * otherwise copy its message list at every event. Do not keep a state across an `evolve` that you did not ask for.
 */
import { addSpent, noBudget, type Budget, type BudgetState } from "./budget.ts";
import type { CompactionPolicy } from "./compaction/policy.ts";
import { foldCompaction, noCompactions, type CompactionState } from "./compaction/fold.ts";
import type { Place } from "./compaction/types.ts";
import type { CallWait, CapstanEvent, EventOf, EventPayload, WaitReason } from "./event.ts";
import type { JsonValue } from "./json.ts";
import { assertTransition, type RunStatus } from "./run.ts";
import { inputMessage, resultMessage } from "./transcript/derive.ts";
import type { Message, ToolCallPart, ToolResultPart } from "./transcript/message.ts";
import { addUsage, noUsage, type TokenScale, type UsageTotals } from "./usage.ts";

/** A call of the current turn: answered when `result` is there. */
export interface OpenCall {
  readonly index: number;
  readonly call: ToolCallPart;
  /** Its execution may have begun: recorded before the first side effect. */
  announced: boolean;
  /** It is answered from outside; until then nothing of it is executed. */
  waiting?: { readonly id: string; readonly wait: CallWait };
  /** Somebody gave leave, perhaps with other arguments. */
  approved?: { readonly input?: JsonValue; readonly expired?: true };
  result?: ToolResultPart;
  /** seq of the event that holds the result. */
  resultSeq?: number;
}

/** Where the run is inside a turn. `boundary` is the only place where input, cancel, pause and compaction act. */
export type TurnPhase =
  | { readonly kind: "boundary" }
  /** A request was committed; its response is not known. */
  | { readonly kind: "requested"; readonly attempt: number }
  /** The request failed; the same turn is to be asked again. */
  | {
      readonly kind: "failed";
      readonly attempt: number;
      readonly failure: Pick<EventPayload<"model.failed">, "error">;
      /** The view has become smaller since: what was refused for length may be asked once more. */
      readonly smaller?: true;
    }
  /** A response with calls, at least one of them unanswered. */
  | { readonly kind: "calling"; readonly calls: OpenCall[] }
  /** A response without calls: the run's owner decides what it means (end, correction, wait for input). */
  | { readonly kind: "answered"; readonly response: EventPayload<"model.responded"> };

/** Where the run's own part of its line begins; undefined for a run whose view begins with its own input. */
export interface OwnPart {
  readonly origin: EventPayload<"run.created">["origin"];
  /** Position of its `run.created`. */
  readonly position: number;
  /** The turn that its line was at: the run's own turns are counted from here, their numbers go on. */
  readonly turn: number;
}

/** All numbers called seq are positions in the run's line (position.ts). */
export interface RunState {
  seq: number;
  own: OwnPart | undefined;
  status: RunStatus;
  waitReason: WaitReason | undefined;
  agent: string;
  definitionSha: string | undefined;
  /** What was set for this run alone (fields that somebody set, no defaults), and what it may use at most. */
  ownCompaction: CompactionPolicy | undefined;
  handedDown: readonly string[] | undefined;
  ownBudget: Budget | undefined;
  budget: BudgetState;
  input: JsonValue;
  interactive: boolean;
  turn: number;
  phase: TurnPhase;
  /** seq of the last event that changed the view: what a request's `to_seq` names. */
  viewSeq: number;
  epoch: number;
  marker: number | undefined;
  /** The messages that a model sees now. */
  view: Message[];
  /** Which events each message of the view comes from; as long as `view`. */
  places: Place[];
  compaction: CompactionState;
  usage: UsageTotals;
  /** The last request's whole prompt plus its response, by the provider's count; right after a compaction an estimate. */
  contextTokens: number | undefined;
  contextScale: TokenScale | undefined;
  /** The window that the server turned out to have, when it cut a prompt silently. */
  truncatedTo: number | undefined;
  /** Messages of the view that the count above covers. */
  countedMessages: number;
  /** Failures that count, in this turn. */
  modelFailures: number;
  /** Corrections since the last good response, by reason. */
  corrections: { empty: number; truncated: number; output_invalid: number };
  /** Whether the last request asked the provider for structured output natively. */
  nativeOutput: boolean;
  output: JsonValue | undefined;
  error: EventPayload<"run.failed">["error"] | undefined;
}

export function initialState(): RunState {
  return {
    seq: 0,
    own: undefined,
    status: "queued",
    waitReason: undefined,
    agent: "",
    definitionSha: undefined,
    ownCompaction: undefined,
    handedDown: undefined,
    ownBudget: undefined,
    budget: noBudget,
    input: null,
    interactive: false,
    turn: 0,
    phase: { kind: "boundary" },
    viewSeq: 0,
    epoch: 0,
    marker: undefined,
    view: [],
    places: [],
    compaction: noCompactions(),
    usage: noUsage,
    contextTokens: undefined,
    contextScale: undefined,
    truncatedTo: undefined,
    countedMessages: 0,
    modelFailures: 0,
    corrections: { empty: 0, truncated: 0, output_invalid: 0 },
    nativeOutput: false,
    output: undefined,
    error: undefined,
  };
}

/** Folds one event into `state`, which it changes and returns. Reads no clock: time is in the event. */
export function evolve(state: RunState, event: CapstanEvent): RunState {
  const { epoch } = state;
  const viewLength = state.view.length;
  apply(state, event);
  state.seq = event.seq;
  if (state.view.length !== viewLength || state.epoch !== epoch) state.viewSeq = event.seq;
  return state;
}

export function fold(events: Iterable<CapstanEvent>, from: RunState = initialState()): RunState {
  let state = from;
  for (const event of events) state = evolve(state, event);
  return state;
}

function apply(state: RunState, event: CapstanEvent): void {
  switch (event.type) {
    case "run.created": {
      // What came before are the events of the run that this one begins with.
      if (state.seq > 0) return beginOwnPart(state, event);
      const { agent, definition_sha, input, interactive } = event.payload;
      state.agent = agent;
      state.definitionSha = definition_sha ?? undefined;
      state.ownCompaction = event.payload.compaction;
      state.handedDown = event.payload.grants;
      state.ownBudget = event.payload.budget;
      state.input = input;
      state.interactive = interactive ?? false;
      show(state, inputMessage(input), event.seq);
      return;
    }
    case "run.pinned":
      state.definitionSha = event.payload.definition_sha;
      return;
    case "model.requested":
      move(state, "running");
      if (event.turn !== state.turn) state.modelFailures = 0;
      state.turn = event.turn;
      state.nativeOutput = event.payload.native_output ?? false;
      state.phase = { kind: "requested", attempt: event.attempt };
      return;
    case "model.responded": {
      const { content, usage, cost_usd_micros, announced } = event.payload;
      // A fold that begins at a marker may meet a response without its request.
      state.turn = event.turn;
      state.usage = addUsage(state.usage, usage, cost_usd_micros ?? 0);
      state.contextTokens = usage.input + usage.output;
      state.contextScale = usage.scale;
      if (event.payload.truncated_to !== undefined) state.truncatedTo = event.payload.truncated_to;
      if (content.length > 0) show(state, { role: "assistant", content }, event.seq);
      state.countedMessages = state.view.length;
      const calls = content.flatMap((part) => (part.type === "tool_call" ? [part] : []));
      if (calls.length === 0) {
        state.phase = { kind: "answered", response: event.payload };
        return;
      }
      state.corrections = { empty: 0, truncated: 0, output_invalid: state.corrections.output_invalid };
      state.phase = { kind: "calling", calls: calls.map((call, index) => ({ index, call, announced: announced?.includes(index) ?? false })) };
      return;
    }
    case "model.failed": {
      const { usage, cost_usd_micros, counts } = event.payload;
      if (usage !== undefined) state.usage = addUsage(state.usage, usage, cost_usd_micros ?? 0);
      if (counts) state.modelFailures++;
      state.phase = { kind: "failed", attempt: event.attempt, failure: event.payload };
      return;
    }
    case "model.corrected":
      state.corrections[event.payload.reason]++;
      show(state, { role: "user", content: [{ type: "text", text: event.payload.text }] }, event.seq);
      state.phase = { kind: "boundary" };
      return;
    case "tool.started":
      move(state, "running");
      openCall(state, event.payload.index).announced = true;
      return;
    case "call.waiting":
      move(state, "running");
      openCall(state, event.payload.index).waiting = { id: event.payload.wait_id, wait: event.payload.wait };
      return;
    case "approval.decided": {
      move(state, "running");
      const { index, decision, input, expired } = event.payload;
      const call = openCall(state, index);
      delete call.waiting;
      // A call that was denied is answered by the event behind this one.
      if (decision === "approve") call.approved = { ...(input === undefined ? {} : { input }), ...(expired === undefined ? {} : { expired }) };
      return;
    }
    case "turn.stopped":
      move(state, "running");
      state.phase = { kind: "boundary" };
      state.modelFailures = 0;
      return;
    case "tool.completed":
    case "tool.failed":
    case "tool.interrupted": {
      // A run that was parked with open calls (its agent was missing) goes on with their results, not with a request.
      move(state, "running");
      const call = openCall(state, event.payload.index);
      call.result = resultMessage(event, call.approved?.input);
      delete call.waiting;
      call.resultSeq = event.seq;
      if (event.type === "tool.completed" && event.payload.context !== undefined) foldCompaction(state, event);
      if (event.type === "tool.completed" && event.payload.spent !== undefined) {
        const { tokens, cost_usd_micros: costUsdMicros } = event.payload.spent;
        state.budget = { ...state.budget, spent: addSpent(state.budget.spent, { tokens, costUsdMicros }) };
      }
      if (event.type === "tool.failed" && event.payload.error.code === "OUTPUT_INVALID") state.corrections.output_invalid++;
      if (state.phase.kind === "calling" && state.phase.calls.every((c) => c.result !== undefined)) {
        const parts = state.phase.calls.map((c) => c.resultSeq as number);
        state.view.push({ role: "tool", content: state.phase.calls.map((c) => c.result as ToolResultPart) });
        state.places.push({ first: Math.min(...parts), last: Math.max(...parts), parts });
        state.phase = { kind: "boundary" };
      }
      return;
    }
    case "input.applied":
      move(state, "running");
      show(state, { role: "user", content: event.payload.content }, event.seq);
      state.phase = { kind: "boundary" };
      return;
    case "compaction.requested":
    case "compaction.prepared":
    case "compaction.skipped":
    case "compaction.failed":
    case "context.compacted":
    case "context.pruned":
      foldCompaction(state, event);
      return;
    case "budget.reached": {
      const { level, limit, text } = event.payload;
      if (level === "soft") {
        state.budget = { ...state.budget, told: [...state.budget.told, limit] };
        return;
      }
      state.budget = { ...state.budget, over: limit, ...(text === undefined ? {} : { wrapTurn: state.turn + 1 }) };
      if (text === undefined) return;
      move(state, "running");
      show(state, { role: "user", content: [{ type: "text", text }] }, event.seq);
      state.phase = { kind: "boundary" };
      return;
    }
    case "run.parked":
      move(state, "waiting");
      state.waitReason = event.payload.reason;
      // An interactive run waits for input after an answer that was good: what went wrong before it is over.
      if (event.payload.reason === "input") state.corrections = { empty: 0, truncated: 0, output_invalid: 0 };
      return;
    case "run.resumed":
      move(state, "running");
      return;
    case "run.completed":
      move(state, "completed");
      state.output = event.payload.output;
      return;
    case "run.failed":
      move(state, "failed");
      state.error = event.payload.error;
      return;
    case "run.cancelled":
      move(state, "cancelled");
      return;
    default:
      event satisfies never;
  }
}

/**
 * The view stays, and what belongs to it: head, excerpts, pins, the turn's number. What the run before was at (its end,
 * its wait, its failures, a compaction under way) was its own. The pinned task stays the line's first input; the next
 * message of a conversation is shown behind the view, while a fork and a retry have nothing new to say.
 */
function beginOwnPart(state: RunState, event: EventOf<"run.created">): void {
  const { origin, agent, definition_sha, input, interactive } = event.payload;
  const { compaction } = state;
  const sha = definition_sha ?? undefined;
  // Counted by another model, or under another prompt: what is left is an estimate.
  if (sha !== state.definitionSha) {
    state.contextTokens = undefined;
    state.contextScale = undefined;
    state.truncatedTo = undefined;
    state.countedMessages = 0;
  }
  state.own = { origin, position: event.seq, turn: event.turn };
  state.agent = agent;
  state.definitionSha = sha;
  state.interactive = interactive ?? false;
  state.ownCompaction = event.payload.compaction;
  state.handedDown = event.payload.grants;
  state.ownBudget = event.payload.budget;
  state.budget = noBudget;
  state.status = "queued";
  state.waitReason = undefined;
  state.usage = noUsage;
  state.modelFailures = 0;
  state.corrections = { empty: 0, truncated: 0, output_invalid: 0 };
  state.output = undefined;
  state.error = undefined;
  compaction.task = undefined;
  compaction.unappliedTurn = undefined;
  compaction.overflowTurn = undefined;
  compaction.reported = [];
  if (origin === "continue") {
    show(state, inputMessage(input), event.seq);
    state.phase = { kind: "boundary" };
  }
}

function show(state: RunState, message: Message, seq: number): void {
  state.view.push(message);
  state.places.push({ first: seq, last: seq });
}

function move(state: RunState, to: RunStatus): void {
  assertTransition(state.status, to);
  state.status = to;
  if (to !== "waiting") state.waitReason = undefined;
}

function openCall(state: RunState, index: number): OpenCall {
  const call = state.phase.kind === "calling" ? state.phase.calls[index] : undefined;
  if (call === undefined) throw new Error(`event answers call ${index} of turn ${state.turn}, which is not open: the journal is damaged`);
  return call;
}
