/**
 * Open calls that are answered from outside: which calls have to wait, what has come for them, and how their run rests
 * meanwhile, holding no worker. Rows in `waits` decide which of two answers counts; the journal alone says what happened.
 */
import type { AgentDefinition, ToolDefinition } from "../domain/definition.ts";
import type { CallWait, EventPayload, WaitReason } from "../domain/event.ts";
import type { OpenCall } from "../domain/fold.ts";
import type { JsonObject, JsonValue } from "../domain/json.ts";
import { checkInput, type CallEnd } from "./execute-call.ts";
import { codeOfTool } from "./code.ts";
import { hitFailpoint } from "./failpoints.ts";
import { checkAgainst, issuesText } from "../domain/json-schema.ts";
import type { ChildOutcome, InboxItem } from "./ports.ts";
import { storableResult } from "./tool-result.ts";
import type { Turn } from "./turn.ts";

/** Reasons for waiting with calls open, the one that a person has to act on first. */
const reasonsByUrgency = ["approval", "children", "signal", "timer"] as const satisfies readonly WaitReason[];
const reasonOf = { approval: "approval", question: "approval", children: "children", signal: "signal", completion: "signal", timer: "timer" } as const;
export const outsideReasons: ReadonlySet<WaitReason> = new Set(reasonsByUrgency);

/** A response may make 128 calls that all wait, beside what else an inbox holds. */
export const INBOX_LIMIT = 512;

export interface News {
  readonly stop: InboxItem | undefined;
  readonly answers: readonly InboxItem[];
  /** Items that are for the next boundary. */
  readonly left: number;
}

export async function readNews(turn: Turn): Promise<News> {
  const { session, deps, held } = turn;
  const { memory } = session;
  const pending = memory.inboxPending > 0 || held.reason === "stopped" ? await deps.store.pendingInbox(memory.row.id, INBOX_LIMIT) : [];
  // An answer that was taken and is not committed yet is no news: it would be taken again and again.
  const items = pending.filter(({ id }) => !session.hasTaken(id));
  const answers = items.filter(({ kind }) => kind === "wait");
  const stop = items.find(({ kind }) => kind === "stop");
  return { stop, answers, left: items.length - answers.length - (stop === undefined ? 0 : 1) };
}

/** Whether a run that waits has reason to go on. */
export function isNews(turn: Turn, { stop, answers }: News): boolean {
  return stop !== undefined || answers.length > 0 || waitingCalls(turn).some(({ waiting }) => isOver(turn, waiting.wait));
}

/**
 * Stages what came for the open calls, and records what time has decided. True when there was anything. An answer that was
 * given in time may be committed later than this look for it: what has expired is written only if nothing has come since.
 */
export async function takeNews(turn: Turn, { stop, answers, left }: News, definition: AgentDefinition): Promise<boolean> {
  const { session } = turn;
  for (const item of answers) {
    const { wait_id: id } = item.payload as { wait_id: string };
    const call = waitingCalls(turn).find(({ waiting }) => waiting.id === id);
    // Its call was answered otherwise (its turn was stopped): the item has nothing to say any more.
    if (call === undefined) session.consume(item.id);
    else await answer(turn, definition, call, item);
  }
  const overdue = waitingCalls(turn).filter(({ waiting }) => isOver(turn, waiting.wait));
  if (overdue.length > 0) {
    // A refusal drops what is staged and gives the run back: results that are known by now must not go with it.
    if (session.token !== undefined && session.hasStaged) await turn.commit();
    for (const call of overdue) await expire(turn, definition, call);
    hitFailpoint("answer.before_append");
    await turn.commit({ inboxAtMost: left + (stop === undefined ? 0 : 1) });
  } else if (answers.length > 0) hitFailpoint("answer.before_append");
  return answers.length > 0 || overdue.length > 0;
}

type WaitingCall = OpenCall & { readonly waiting: NonNullable<OpenCall["waiting"]> };

export function waitingCalls(turn: Turn): WaitingCall[] {
  const { phase } = turn.session.state;
  return phase.kind === "calling" ? phase.calls.filter((call): call is WaitingCall => call.result === undefined && call.waiting !== undefined) : [];
}

function overAt(wait: CallWait): string | undefined {
  return wait.kind === "timer" ? wait.wake_at : wait.kind === "children" ? undefined : wait.expires_at;
}

function isOver(turn: Turn, wait: CallWait): boolean {
  const at = overAt(wait);
  return at !== undefined && Date.parse(at) <= turn.now.getTime();
}

type Answer = {
  readonly decision?: "approve" | "deny";
  readonly input?: JsonValue;
  readonly reason?: string;
  readonly declined?: true;
  readonly answer?: JsonValue;
};

async function answer(turn: Turn, definition: AgentDefinition, call: WaitingCall, item: InboxItem): Promise<void> {
  const { wait } = call.waiting;
  const said = item.payload as Answer;
  const by = { inboxId: item.id, ...(item.actor === undefined ? {} : { actor: item.actor }) };
  switch (wait.kind) {
    case "approval":
      return decide(
        turn,
        call,
        { decision: said.decision ?? "deny", ...(said.input === undefined ? {} : { input: said.input }), ...(said.reason === undefined ? {} : { reason: said.reason }) },
        by,
      );
    case "children": {
      const outcomes = await turn.deps.store.childOutcomes(turn.session.memory.row.id, `t${turn.session.state.turn}.${call.index}`);
      const spent = definition.budget === undefined ? undefined : await turn.deps.store.childSpending(turn.session.memory.row.id, `t${turn.session.state.turn}.${call.index}`);
      return await complete(turn, definition, call, { results: outcomes.map(childResult) }, by, {
        origin: originOf(wait),
        ...(spent === undefined ? {} : { spent: { tokens: Math.round(spent.tokens), cost_usd_micros: Math.round(spent.costUsdMicros) } }),
      });
    }
    case "completion": {
      const result = said.answer as { output?: JsonValue; error?: string } | null | undefined;
      if (typeof result?.error === "string") return refuse(turn, call, "TOOL_FAILED", result.error, by);
      return await checked(turn, definition, call, wait.schema, result?.output ?? null, by);
    }
    case "question":
      if (said.declined === true) return refuse(turn, call, "ANSWER_DECLINED", "nobody will answer this; go on without the answer, or say why you cannot", by);
      return await checked(turn, definition, call, wait.schema, said.answer ?? null, by);
    case "signal":
      return await checked(turn, definition, call, wait.schema, said.answer ?? null, by);
    case "timer":
      throw new Error("nobody answers a timer");
  }
}

type By = { readonly inboxId?: string; readonly actor?: string };

/** What came through SQL was checked by nobody: what does not fit the schema is told to the model, not passed on. */
async function checked(turn: Turn, definition: AgentDefinition, call: WaitingCall, schema: JsonObject | undefined, value: JsonValue, by: By): Promise<void> {
  const result = schema === undefined ? ({ ok: true } as const) : checkAgainst(schema, value);
  if (result.ok) return await complete(turn, definition, call, value, by);
  return refuse(turn, call, "ANSWER_INVALID", `what came does not fit what was asked for: ${issuesText(result.issues)}`, by);
}

async function complete(
  turn: Turn,
  definition: AgentDefinition,
  call: WaitingCall,
  value: unknown,
  by: By,
  { origin, spent }: { readonly origin?: string; readonly spent?: NonNullable<EventPayload<"tool.completed">["spent"]> } = {},
): Promise<void> {
  const result = await storableResult(turn, toolOf(definition, call), value);
  if (result.kind === "failed") return refuse(turn, call, result.error.code, result.error.message, by);
  const { kind: _, ...payload } = result;
  end(turn, { type: "tool.completed", call, payload: { ...payload, ...(spent === undefined ? {} : { spent }), duration_ms: 0 } }, by, origin);
}

function refuse(turn: Turn, call: WaitingCall, code: string, message: string, by: By = {}): void {
  end(turn, { type: "tool.failed", call, payload: { error: { code, message }, duration_ms: 0 } }, by);
}

function end(turn: Turn, made: Exclude<CallEnd, { type: "call.waiting" }>, by: By, origin?: string): void {
  const { id } = (made.call as WaitingCall).waiting;
  turn.stageEnd(made, { ...by, ...(origin === undefined ? {} : { origin }) });
  turn.session.settle(id);
}

function decide(turn: Turn, call: WaitingCall, decided: { decision: "approve" | "deny"; input?: JsonValue; reason?: string; expired?: true }, by: By): void {
  const { session } = turn;
  const { id } = call.waiting;
  const base = { call_id: call.call.call_id, index: call.index };
  session.stage("approval.decided", { ...base, wait_id: id, ...decided }, by);
  session.settle(id);
  if (decided.decision === "approve") return;
  const why = decided.expired === true ? "nobody decided in time" : decided.reason === undefined ? "no reason was given" : `the reason: ${decided.reason}`;
  turn.stageEnd(
    {
      type: "tool.failed",
      call,
      payload: {
        error: { code: "APPROVAL_DENIED", message: `this call was not approved and not made; ${why}. Do not try to get the same effect in another way.` },
        duration_ms: 0,
      },
    },
    {},
  );
}

async function expire(turn: Turn, definition: AgentDefinition, call: WaitingCall): Promise<void> {
  const { wait } = call.waiting;
  switch (wait.kind) {
    case "approval":
      return decide(turn, call, { decision: wait.on_expiry ?? "deny", expired: true }, {});
    case "timer":
      return await complete(turn, definition, call, { woke_at: wait.wake_at }, {});
    case "question":
      if (wait.default !== undefined) return await complete(turn, definition, call, wait.default, {});
      return refuse(turn, call, "WAIT_EXPIRED", `nobody answered until ${wait.expires_at}; go on without the answer, or say why you cannot`);
    case "signal":
      return refuse(turn, call, "WAIT_EXPIRED", `the signal ${wait.signal} did not come until ${wait.expires_at}`);
    default:
      return refuse(turn, call, "WAIT_EXPIRED", `nobody completed this call until ${overAt(wait)}; its outcome is unknown`);
  }
}

function childResult({ index, agent, runId, output, error }: ChildOutcome): JsonObject {
  return { index, agent, run_id: runId, ok: error === undefined, ...(error === undefined ? { output: output ?? null } : { error }) };
}

/** Whose words these are: taint names the agent where it is one. */
function originOf({ children }: Extract<CallWait, { kind: "children" }>): string {
  const names = new Set(children.map(({ agent }) => agent));
  return names.size === 1 ? `agent:${[...names][0]}` : "agent:children";
}

function toolOf(definition: AgentDefinition, call: OpenCall): ToolDefinition {
  return definition.tools.find((tool) => tool.name === call.call.name) as ToolDefinition;
}

/** Whether a person has to give leave before this call is made. Arguments that do not fit are refused without asking anybody. */
export function approvalFor(turn: Turn, definition: AgentDefinition, call: Pick<OpenCall, "call" | "approved">): CallWait | undefined {
  if (call.approved !== undefined) return undefined;
  const tool = toolOf(definition, call as OpenCall);
  const { approvals } = definition;
  const isListed = approvals !== undefined && (approvals.tools.includes("*") || approvals.tools.includes(tool.name));
  const rule = isListed ? approvals : tool.approval;
  if (rule === undefined) return undefined;
  const code = codeOfTool(turn.deps.agents.get(turn.session.state.agent), tool);
  const input = call.call.input ?? {};
  const fits = code === undefined ? undefined : checkInput(code, input);
  if (fits?.ok === false) return undefined;
  if (!isListed && tool.approval?.when === "predicate" && code?.needsApproval !== undefined && fits?.ok === true && !isWanted(code.needsApproval.bind(code), fits.value))
    return undefined;
  return {
    kind: "approval",
    input,
    ...(rule.expires_ms === undefined ? {} : { expires_at: new Date(turn.now.getTime() + rule.expires_ms).toISOString() }),
    ...(rule.on_expiry === undefined ? {} : { on_expiry: rule.on_expiry }),
  };
}

function isWanted(predicate: (input: unknown) => boolean, value: unknown): boolean {
  try {
    return predicate(value);
  } catch {
    // Whoever wrote it wanted a person to look at some calls; which ones is not known now.
    return true;
  }
}

/** All open calls wait: the run gives its lease back. "look_again" when something came before this commit. */
export async function parkForCalls(turn: Turn, left: number): Promise<"parked" | "look_again"> {
  const { session } = turn;
  const waiting = waitingCalls(turn);
  const reason = reasonsByUrgency.find((r) => waiting.some(({ waiting: { wait } }) => reasonOf[wait.kind] === r)) ?? "signal";
  const times = waiting.flatMap(({ waiting: { wait } }) => overAt(wait) ?? []).map((at) => Date.parse(at));
  const { deadline } = session.memory.row;
  if (deadline !== undefined) times.push(deadline.getTime());
  const wakeAt = times.length === 0 ? undefined : new Date(Math.min(...times));
  const waits = waiting.map(({ call, waiting: { id, wait } }) => ({ wait_id: id, kind: wait.kind, name: call.name }));
  hitFailpoint("wait.before_append");
  const ended = await turn.commitEnd(
    () => session.stage("run.parked", { reason, ...(wakeAt === undefined ? {} : { wake_at: wakeAt.toISOString() }), detail: { waits } }),
    wakeAt,
    left,
  );
  hitFailpoint("wait.committed");
  return ended === "ended" ? "parked" : "look_again";
}
