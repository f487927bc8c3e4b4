/**
 * The run's budget at a boundary. What is reached is read off the journal (domain/budget.ts) and journaled in the commit of
 * the next request, so that it is told once whoever makes that request; wall time alone is the database's clock.
 */
import { addSpent, hardReached, reachedText, shareOf, softReached, takenBy, WRAP_UP_TEXT, type Budget, type Reached, type Spent, type Taken } from "../domain/budget.ts";
import { turnAtHand } from "../domain/compaction/fold.ts";
import { decideAnswer, type CheckOutput } from "../domain/decide.ts";
import { AGENT_TOOL, type AgentDefinition } from "../domain/definition.ts";
import type { EventPayload } from "../domain/event.ts";
import type { RunState } from "../domain/fold.ts";
import type { JsonObject } from "../domain/json.ts";
import { answerText, type AssistantPart } from "../domain/transcript/message.ts";
import { SUBMIT_OUTPUT_TOOL } from "../domain/transcript/render.ts";
import { fail } from "./boundary.ts";
import { gaugeOf } from "./context-gauge.ts";
import type { Model } from "./model-port.ts";
import type { Turn } from "./turn.ts";

/** "again": the model has been told to wrap up, and its turn is another one now. */
export type BudgetMove = "go_on" | "again" | "rest";

/**
 * To be asked before a request. With `model`: also whether that call would pass a hard limit, as far as that is known: its
 * input by the gauge, its answer by the definition's `max_output_tokens`.
 */
export async function heedBudget(turn: Turn, definition: AgentDefinition, model?: Model): Promise<BudgetMove> {
  const { budget } = definition;
  if (budget === undefined) return "go_on";
  const { state } = turn.session;
  const { over, wrapTurn } = state.budget;
  if (over !== undefined) {
    if (wrapTurn === turnAtHand(state)) return "go_on";
    return await exhausted(turn, budget, { limit: over, used: takenOf(turn)[over], of: budget.hard?.[over] ?? takenOf(turn)[over] });
  }
  const taken = takenOf(turn);
  tellSoft(turn, budget, taken);
  // The turn that is asked again was counted when it began.
  const isNew = turnAtHand(state) > state.turn;
  const reached = hardReached(budget, isNew ? taken : { ...taken, turns: taken.turns - 1 }, model === undefined ? {} : mostOf(turn, definition, model));
  if (reached === undefined) return "go_on";
  if (budget.wrap_up !== true) return await exhausted(turn, budget, reached);
  turn.session.stage("budget.reached", { level: "hard", ...reached, text: WRAP_UP_TEXT });
  const fields = { runId: turn.session.memory.row.id, turn: state.turn, level: "hard", ...reached };
  turn.onceCommitted(() => turn.deps.log.warn(fields, "budget reached"));
  return "again";
}

/** Also of a run that is about to end. */
export function tellSoft(turn: Turn, budget: Budget, taken: Taken = takenOf(turn)): void {
  const { session, deps } = turn;
  for (const reached of softReached(budget, taken, session.state.budget)) {
    session.stage("budget.reached", { level: "soft", ...reached });
    const fields = { runId: session.memory.row.id, turn: session.state.turn, level: "soft", ...reached };
    turn.onceCommitted(() => deps.log.warn(fields, "budget reached"));
  }
}

async function exhausted(turn: Turn, budget: Budget, reached: Reached): Promise<"rest"> {
  const { session } = turn;
  if (session.state.budget.over === undefined) session.stage("budget.reached", { level: "hard", ...reached });
  const advice = budget.wrap_up === true ? "" : "; with budget.wrap_up the model gets one more turn to answer with what it has";
  return (await fail(turn, "BUDGET_EXHAUSTED", `${reachedText(reached)}${advice}`, reached as unknown as JsonObject)).kind;
}

/** Whether the turn at hand is the one in which the model answers with what it has. */
export function isWrapUp({ budget, turn }: Pick<RunState, "budget" | "turn">): boolean {
  return budget.wrapTurn !== undefined && budget.wrapTurn === turn;
}

/**
 * What the model made of its last turn, in the commit of its response: an answer ends the run with it, whatever waits in
 * the inbox; anything else is no answer. Undefined: a structured result is on its way through its tool.
 */
export async function endWrappedUp(
  turn: Turn,
  definition: AgentDefinition,
  response: Pick<EventPayload<"model.responded">, "finish"> & { readonly content: readonly AssistantPart[] },
  checkOutput: CheckOutput,
): Promise<"rest" | undefined> {
  const { session } = turn;
  const { state } = session;
  const calls = response.content.flatMap((part) => (part.type === "tool_call" ? [part.name] : []));
  const failed = async (why: string): Promise<"rest"> =>
    (
      await fail(turn, "BUDGET_EXHAUSTED", `the budget was used up (budget.hard.${state.budget.over}), and the model's last turn gave no answer: ${why}`, {
        limit: state.budget.over ?? null,
      })
    ).kind;
  if (calls.length > 0) return calls.every((name) => name === SUBMIT_OUTPUT_TOOL) ? undefined : await failed(`it called ${calls.join(", ")}`);
  const decision = decideAnswer(definition, state, { ...response, content: [...response.content] }, checkOutput);
  if (decision.kind === "correct") return await failed(decision.text);
  if (decision.kind === "fail") return await failed(decision.message);
  session.stage("run.completed", { output: decision.kind === "complete" ? decision.output : answerText([...response.content]) });
  await turn.commit({ release: true, turnDone: true });
  return "rest";
}

function takenOf(turn: Turn): Taken {
  const { state, memory } = turn.session;
  const { createdAt, runAt } = memory.row;
  const startMs = Math.max(createdAt.getTime(), runAt?.getTime() ?? 0);
  return takenBy(state.usage, state.budget, { ownTurns: state.turn - (state.own?.turn ?? 0), wallMs: turn.now.getTime() - startMs });
}

function mostOf(turn: Turn, definition: AgentDefinition, model: Model): Partial<Taken> {
  const input = gaugeOf(turn, definition, model).usedTokens;
  const output = definition.settings?.max_output_tokens ?? 0;
  return { tokens: input + output, cost_usd_micros: Math.round(turn.deps.models.costUsdMicros(model.name, { input, output, scale: "estimate" }) ?? 0) };
}

/** What this turn's calls have handed to children: also those that no event tells of yet. */
const handedOut = new WeakMap<Turn, { readonly children: readonly string[]; readonly share: Spent }[]>();

/**
 * What the children of a call get of the run's budget: an equal part, as do the other calls of the response that are to
 * start children. To be asked when nothing more is awaited before they are handed over: of two calls the second one sees what
 * the first one took. Names the limit that leaves them nothing.
 */
export function handDown(turn: Turn, definition: AgentDefinition, children: readonly string[]): { readonly budget?: Budget } | { readonly refused: string } {
  const { budget } = definition;
  if (budget?.hard === undefined || children.length === 0) return {};
  const handed = handedOut.get(turn) ?? [];
  handedOut.set(turn, handed);
  const { phase } = turn.session.state;
  const open = phase.kind === "calling" ? phase.calls.filter(({ result, call }) => result === undefined && call.name === AGENT_TOOL) : [];
  const journaled = open.flatMap(({ waiting }) => (waiting?.wait.kind === "children" ? waiting.wait.children : []));
  const known = new Set(journaled.map(({ run_id: id }) => id));
  const unknown = handed.filter(({ children: [first = ""] }) => !known.has(first));
  const out = [
    ...journaled.map(({ budget: share }) => ({ tokens: share?.hard?.tokens ?? 0, costUsdMicros: share?.hard?.cost_usd_micros ?? 0 })),
    ...unknown.flatMap(({ children: ids, share }) => ids.map(() => share)),
  ].reduce(addSpent, { tokens: 0, costUsdMicros: 0 });
  const calls = Math.max(1, open.filter(({ waiting }) => waiting === undefined).length - unknown.length);
  const own = takenOf(turn);
  const taken = { ...own, tokens: own.tokens + out.tokens, cost_usd_micros: own.cost_usd_micros + out.costUsdMicros };
  const { hard, exhausted: none } = shareOf(budget, taken, children.length * calls);
  if (none !== undefined) return { refused: `the run's budget (budget.hard.${none}) leaves nothing for ${children.length === 1 ? "a child" : `${children.length} children`}` };
  if (hard === undefined) return {};
  handed.push({ children, share: { tokens: hard.tokens ?? 0, costUsdMicros: hard.cost_usd_micros ?? 0 } });
  return { budget: { hard } };
}
